// Bytes are gathered until a newline comes; prefix, line and newline go out as one text. A write to
// a pipe of at most 4 KiB is not mixed with those of other processes.
#include "armillary/host/launch/line_forwarder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "armillary/core/error.h"

namespace armillary::launch {

namespace {

/// A program that writes without newlines must not fill the memory of the launcher.
constexpr std::size_t kLongestLine = 1 << 16;

}  // namespace

void LineForwarder::take(std::string_view bytes) {
  rest_ += bytes;
  std::size_t begin = 0;
  while (begin < rest_.size()) {
    const std::size_t end = rest_.find('\n', begin);
    const std::size_t length = std::min(end - begin, kLongestLine);
    if (end == std::string::npos && rest_.size() - begin < kLongestLine) break;
    write_line(std::string_view(rest_).substr(begin, length));
    begin += length;
    // The newline itself, unless the line was cut before it.
    if (begin == end) ++begin;
  }
  rest_.erase(0, begin);
}

void LineForwarder::finish() {
  if (!rest_.empty()) write_line(rest_);
  rest_.clear();
}

void LineForwarder::write_line(std::string_view line) {
  const std::string whole = fmt::format("{}{}\n", prefix_, line);
  for (std::size_t written = 0; written < whole.size();) {
    const ssize_t count = write(to_, whole.data() + written, whole.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail<Error>("launch: output cannot be written: {}", std::strerror(errno));
    written += static_cast<std::size_t>(count);
  }
}

}  // namespace armillary::launch
