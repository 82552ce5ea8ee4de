// line_process.h: a process that is talked to by lines, with a deadline on every answer. For the
// sources of this folder.
//
//   write_line("ring")  -->  standard input
//   read_line(600)      <--  standard output; standard error is kept for the reason of a failure
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/child.h"

namespace armillary::bench {

/// A shell command that runs beside this process. It leads a process group of its own, which holds
/// whatever it starts, and which ends with this object. If this process is killed first, the
/// command sees the end of its standard input. One thread calls.
class LineProcess {
 public:
  /// Starts `/bin/sh -c command`, with all three standard streams connected to this object and
  /// these variables ("NAME=value"); none: those of this process.
  /// @throws Error if the system gives no process or no pipe.
  LineProcess(const std::string& command, const std::vector<std::string>& environment);
  /// As `end`, with five seconds of grace.
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  /// Writes a line to the standard input of the command. A command that reads no more is no error
  /// here: the next `read_line` tells why it ended.
  void write_line(std::string_view line);

  /// The next line of the standard output of the command, without its end.
  /// @throws Error "no answer within 2 s"; or, if the output has ended, the last line of standard
  /// error, or "it ended without an answer".
  std::string read_line(double deadline_s);

  /// Closes the standard input of the command, waits until the command has ended, but not longer
  /// than `grace`, and kills whatever is left of its group. Later calls do nothing.
  void end(std::chrono::milliseconds grace);

 private:
  void read_complaints();
  std::string last_words();  ///< The reason why standard output has ended.

  Child child_;             ///< Without a pid after `end`.
  std::string unread_;      ///< Standard output behind the last line that was returned.
  std::string complaints_;  ///< The last kilobytes of standard error.
};

}  // namespace armillary::bench
