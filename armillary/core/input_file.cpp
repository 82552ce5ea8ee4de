// O_NONBLOCK makes the open of a pipe return at once; O_NOCTTY keeps a terminal from becoming that
// of the process. Neither changes how a regular file is read.
#include "armillary/core/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/file_kind.h"
#include "armillary/core/user_text.h"

namespace armillary {
namespace {

/// The reason why a path could not be opened. A socket cannot even be opened.
std::string reason_of(const std::string& path, int error) {
  struct stat status {};
  if (error == ENXIO && stat(path.c_str(), &status) == 0)
    return std::string(kind_of(status.st_mode));
  if (error == ENOENT) return "does not exist";
  return fmt::format("cannot be read ({})", std::strerror(error));
}

}  // namespace

InputFile::InputFile(const InputRequest& request, std::string path)
    : request_(request),
      path_(std::move(path)),
      file_(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)) {
  struct stat status {};
  if (!file_.open() || fstat(file_.get(), &status) != 0) refuse(reason_of(path_, errno));
  if (!S_ISREG(status.st_mode)) refuse(kind_of(status.st_mode));
  if (status.st_size > request.most_bytes) {
    refuse(fmt::format("has {} bytes, more than {}", status.st_size, request.most_bytes));
  }
  size_ = status.st_size;
}

std::string InputFile::read() const {
  constexpr std::size_t kLeast = 1 << 16;
  std::string text(static_cast<std::size_t>(size_) + 1, '\0');  // One more, to see the end.
  std::size_t filled = 0;
  // Each iteration reads what is there. A file that is cut short meanwhile ends early.
  while (true) {
    const ssize_t count = ::read(file_.get(), text.data() + filled, text.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(fmt::format("cannot be read ({})", std::strerror(errno)));
    filled += static_cast<std::size_t>(count);
    if (count == 0) break;
    if (filled > static_cast<std::uint64_t>(request_.most_bytes)) {
      refuse(fmt::format("has more than {} bytes", request_.most_bytes));
    }
    if (filled == text.size()) text.resize(std::max(2 * filled, kLeast));
  }
  text.resize(filled);
  return text;
}

void InputFile::refuse(std::string_view value) const {
  fail<IoError>("{}: '{}' {}; {} is required", request_.where, excerpt(path_), value,
                request_.required);
}

std::string read_input(const InputRequest& request, const std::string& path) {
  return InputFile(request, path).read();
}

}  // namespace armillary
