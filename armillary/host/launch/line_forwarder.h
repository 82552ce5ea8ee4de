// line_forwarder.h: passes the output of a program on, line by line, each with a prefix. Internal
// to launch.
#pragma once

#include <string>
#include <string_view>

namespace armillary::launch {

/// Forwards one stream to a file descriptor. A line is written in one piece, so the lines of
/// several programs do not mix. Threads: one.
class LineForwarder {
 public:
  /// `prefix` stands before each line; `to` is a descriptor that stays the caller's.
  LineForwarder(std::string prefix, int to) : prefix_(std::move(prefix)), to_(to) {}

  /// Takes the bytes that have come, and writes the lines that are complete. A line above 64 KiB is
  /// cut. @throws Error if the output cannot be written.
  void take(std::string_view bytes);
  /// Writes the rest, as a line.
  void finish();

 private:
  void write_line(std::string_view line);

  std::string prefix_;
  int to_;
  std::string rest_;  ///< Bytes of a line that is not complete.
};

}  // namespace armillary::launch
