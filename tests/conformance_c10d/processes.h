// processes.h: this program, started as the ranks of a group.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "armillary/comm/c10d.h"

namespace armillary::comm {

/// A socket of the loopback interface that listens on a port which was free.
class ListeningSocket {
 public:
  ListeningSocket();
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;
  ~ListeningSocket();

  int port() const { return port_; }
  int fd() const { return fd_; }
  /// Leaves the descriptor to somebody who closes it.
  int release();

 private:
  int fd_;
  int port_ = 0;
};

/// The end of one process.
struct ProcessEnd {
  int exit_code = -1;  ///< -1 if a signal ended it.
  int signal = 0;
  std::string output;  ///< Standard output and error.
  double seconds = 0;  ///< From the start of all to its end.
};

/// Starts this program `world` times with `arguments` and a place in a group, and waits for them.
/// Processes that take longer than `limit_s` are killed; so are those that are stopped when all
/// others have ended.
std::vector<ProcessEnd> run_as_ranks(int world, const std::vector<std::string>& arguments,
                                     double limit_s);

/// The place that run_as_ranks() gave this process, from the text of its argument --c10d=.
C10dRendezvous place_of(const std::string& text);

/// Runs a rank that fails, of a program started with --fault=KIND, and returns its exit code:
///
///   throw   rank 1 throws        abort   another thread of rank 1 aborts while it computes
///   exit    rank 1 exits with 3  leave   rank 1 ends well, while others wait for it
///   kill    SIGKILL ends rank 1  stop    SIGSTOP stops rank 1
int run_fault(const std::string& kind, const C10dRendezvous& place);

/// The group of all processes, which stays when groups of tests fail, so that processes can tell
/// each other how a test went. Null unless the program was started with --processes=.
Communicator*& all_processes();

}  // namespace armillary::comm
