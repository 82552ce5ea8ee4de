// file_kind.h: what is at a path, in words of errors.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace armillary {

/// "is a folder", "is a pipe", "is a socket", "is a device"; empty for a regular file. `mode` is
/// that of stat().
std::string_view kind_of(mode_t mode);

/// The kind of what is at the path, following links; empty also if nothing is there.
std::string_view kind_at(const std::string& path);

/// The reason why nothing may be written to the path, in the same words, or empty: opening a pipe
/// would wait for a reader. Regular files and devices such as /dev/null are written to, and
/// whatever this process has open: /dev/stdout, /dev/stderr, /dev/fd/3.
std::string_view why_no_output(const std::string& path);

}  // namespace armillary
