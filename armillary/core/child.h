// child.h: a program that this process starts, with pipes for its output.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/core/descriptor.h"

namespace armillary {

/// A program to start.
struct ChildCommand {
  std::string label;               ///< As in texts: "rank 2", "mpirun".
  std::vector<std::string> words;  ///< The program, looked up in PATH, and its arguments.
  /// Its environment, as "NAME=value"; empty: that of this process.
  std::vector<std::string> environment = {};
  /// Variables that are set over those of the environment.
  std::vector<std::pair<std::string, std::string>> variables = {};
  bool takes_input = false;  ///< Inherits standard input; otherwise reads /dev/null.
  bool is_fed = false;       ///< Reads what is sent to Child::in instead.
  /// Signal that the kernel sends it if the thread that starts it dies; 0: none.
  int orphan_signal = 9;
  int inherits = -1;  ///< A descriptor of this process that it has too; -1: none but the streams.
  std::string_view where = "launch";  ///< The caller, in texts of errors.
};

/// A program that was started, in a process group of its own: signals of a terminal do not reach
/// it. The owner waits for it.
struct Child {
  pid_t pid = -1;
  Descriptor out;  ///< Reads its standard output, without blocking.
  Descriptor err;  ///< Likewise its standard error.
  Descriptor in;  ///< A socket, so that a send() that nobody reads is an error; none unless is_fed.
};

/// Starts a program. All signals have their default actions in it, and none is blocked. Threads:
/// any.
/// @throws Error "launch: PROGRAM cannot be started: REASON".
Child start_child(const ChildCommand& command);

/// Appends bytes that are there to `into`, without waiting; at the end of the stream, closes
/// `from`. Returns whether it appended any, so there may be more.
bool read_some(Descriptor& from, std::string& into);

}  // namespace armillary
