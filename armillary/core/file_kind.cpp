// file_kind.cpp: kinds by stat(). Names of open streams are compared as texts: the file behind
// /dev/stdout may be a pipe, which has its reader already.
#include "armillary/core/file_kind.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>

namespace armillary {
namespace {

/// Whether the path is a name of a file that this process has open.
bool is_open_stream(std::string_view path) {
  constexpr std::array<std::string_view, 4> kNames{"/dev/stdout", "/dev/stderr", "/dev/fd/",
                                                   "/proc/self/fd/"};
  return std::ranges::any_of(kNames, [&](std::string_view name) {
    return name.ends_with('/') ? path.starts_with(name) : path == name;
  });
}

}  // namespace

std::string_view kind_of(mode_t mode) {
  if (S_ISREG(mode)) return "";
  if (S_ISDIR(mode)) return "is a folder";
  if (S_ISFIFO(mode)) return "is a pipe";
  if (S_ISSOCK(mode)) return "is a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "is a device";
  return "is no regular file";
}

std::string_view kind_at(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? kind_of(status.st_mode) : "";
}

std::string_view why_no_output(const std::string& path) {
  const std::string_view kind = kind_at(path);
  return kind == "is a device" || is_open_stream(path) ? "" : kind;
}

}  // namespace armillary
