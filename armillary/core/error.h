// error.h: the five kinds of failure, told apart by who must act.
//
//   InvalidArgument   the caller: a value that cannot be used. The program exits with 2.
//   PlanError         the strategy author: a plan that is not exact attention.
//   CommError         nobody can go on: the group of ranks is unusable and must be built again.
//   IoError           the files: names the path.
//   InternalError     us: an invariant does not hold. Thrown by ARMILLARY_CHECK only.
//
// Message of every error, on one line: `where: what was given; what is required[; nearest legal]`.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace armillary {

/// Base of all errors of this library. `what()` is one line, without a trailing newline (PlanError
/// may append the grid of the plan).
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InvalidArgument : public Error {
 public:
  using Error::Error;
};

class PlanError : public Error {
 public:
  using Error::Error;
};

class CommError : public Error {
 public:
  using Error::Error;
};

class IoError : public Error {
 public:
  using Error::Error;
};

class InternalError : public Error {
 public:
  using Error::Error;
};

/// Throws E with a formatted message: `fail<InvalidArgument>("ring: world {}; at least 1", world)`.
template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace armillary

/// Checks an invariant of ours, also in release builds. What a caller can break is an
/// InvalidArgument with a text of its own instead.
#define ARMILLARY_CHECK(condition)                                                           \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      ::armillary::fail<::armillary::InternalError>("{}:{}: invariant broken: {}", __FILE__, \
                                                    __LINE__, #condition);                   \
    }                                                                                        \
  } while (false)
