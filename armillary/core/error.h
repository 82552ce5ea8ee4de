// error.h: the five kinds of failure, told apart by who must act.
//
//   InvalidArgument   the caller: a value that cannot be used. The program exits with 2.
//   PlanError         the author of a strategy: a plan that is not exact attention.
//   CommError         the owner of the group: it is unusable and must be built again.
//   IoError           the owner of the files: the text names the path. The program exits with 2.
//   InternalError     the authors of this library: an invariant does not hold. Thrown by
//                     ARMILLARY_CHECK, and for cases that checked arguments rule out.
//
// The text of every error is one line: `where: what was given; what is required[; nearest
// legal]`, for example `ring: world 0; at least 1 is required`.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace armillary {

/// Base of all errors of this library. `what()` is one line without a trailing newline, except that
/// PlanError may append the grid of the plan. Thrown itself if a run fails for a reason that no
/// kind below covers, such as a full disk.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A value that cannot be used: an argument, a flag, a setting, or the contents of a file.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A plan that does not compute exact attention, or that differs from the one that was proved.
class PlanError : public Error {
 public:
  using Error::Error;
};

/// The group of ranks has failed, and stays failed (comm/communicator.h).
class CommError : public Error {
 public:
  using Error::Error;
};

/// A file or folder that cannot be read or written.
class IoError : public Error {
 public:
  using Error::Error;
};

/// A broken invariant: a bug of this library, whatever the caller did.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// Throws E with a formatted text: `fail<InvalidArgument>("ring: world {}; at least 1", world)`.
/// The format string is checked when it is compiled.
template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace armillary

/// Checks an invariant of this library, also in release builds. The text names the source file, the
/// line and the condition. A condition that a caller can break is an InvalidArgument with a text of
/// its own instead.
#define ARMILLARY_CHECK(condition)                                                           \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      ::armillary::fail<::armillary::InternalError>("{}:{}: invariant broken: {}", __FILE__, \
                                                    __LINE__, #condition);                   \
    }                                                                                        \
  } while (false)
