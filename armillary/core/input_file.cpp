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

namespace armillary {
namespace {

/// A kind of file that is no regular one, as errors call it.
std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "is a folder";
  if (S_ISFIFO(mode)) return "is a pipe";
  if (S_ISSOCK(mode)) return "is a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "is a device";
  return "is no regular file";
}

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
    : request_(request), path_(std::move(path)) {
  const int file = open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (file < 0) refuse(reason_of(path_, errno));
  struct stat status {};
  const bool known = fstat(file, &status) == 0;
  const int error = errno;
  const bool small = status.st_size <= request.most_bytes;
  if (known && S_ISREG(status.st_mode) && small) {
    descriptor_ = file;
    size_ = status.st_size;
    return;
  }
  close(file);
  if (!known) refuse(reason_of(path_, error));
  if (!S_ISREG(status.st_mode)) refuse(kind_of(status.st_mode));
  refuse(fmt::format("has {} bytes, more than {}", status.st_size, request.most_bytes));
}

InputFile::~InputFile() {
  close(descriptor_);
}

std::string InputFile::read() const {
  constexpr std::size_t kLeast = 1 << 16;
  std::string text(static_cast<std::size_t>(size_) + 1, '\0');  // One more, to see the end.
  std::size_t filled = 0;
  // Each iteration reads what is there. A file that is cut short meanwhile ends early.
  while (true) {
    const ssize_t count = ::read(descriptor_, text.data() + filled, text.size() - filled);
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

void InputFile::refuse(std::string_view given) const {
  fail<IoError>("{}: '{}' {}; {} is required", request_.where, path_, given, request_.required);
}

std::string read_input(const InputRequest& request, const std::string& path) {
  return InputFile(request, path).read();
}

}  // namespace armillary
