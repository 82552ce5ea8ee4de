// child.h: a program that this process starts, with pipes for its output. Internal to launch.
//
// The kernel signals a child when this process dies, so that no rank is left behind. Output comes
// through pipes: the launcher puts a name before each line.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace armillary::launch {

/// A program to start.
struct Command {
  std::string label;               ///< As in texts: "rank 2", "mpirun".
  std::vector<std::string> words;  ///< The program, looked up in PATH, and its arguments.
  /// Variables that are set over those of this process.
  std::vector<std::pair<std::string, std::string>> variables = {};
  bool takes_input = false;  ///< Inherits standard input; otherwise reads /dev/null.
  /// Signal that the kernel sends it if this process dies.
  int orphan_signal = 9;
  /// Inherits the place of this process in a run (process_place.h), which a rank has to.
  bool is_placed = true;
  int inherits = -1;  ///< A descriptor of this process that it has too; -1: none but the streams.
};

/// A file descriptor that is closed at the end.
class Descriptor {
 public:
  /// No descriptor.
  Descriptor() = default;
  /// Takes over an open one.
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  /// The number, or -1.
  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  /// Closes it now; nothing if it is closed.
  void close();

 private:
  int number_ = -1;
};

/// A program that was started, in a process group of its own: signals of a terminal do not reach
/// it.
struct Child {
  pid_t pid = -1;
  Descriptor out;  ///< Reads its standard output, without blocking.
  Descriptor err;  ///< Likewise its standard error.
};

/// Starts a program. All signals have their default actions in it, and none is blocked.
/// @throws Error "launch: PROGRAM cannot be started: REASON".
Child start(const Command& command);

}  // namespace armillary::launch
