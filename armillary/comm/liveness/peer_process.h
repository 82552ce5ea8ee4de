// peer_process.h: the processes of ranks: their names in error texts, and whether those of this
// machine still run. Internal to the engines of processes.
#pragma once

#include <time.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/descriptor.h"

namespace armillary::comm {

/// A process, as ranks tell each other when a group is made: bytes that can be copied.
struct PeerProcess {
  std::array<char, 64> host = {};  ///< Ends with a zero.
  std::int64_t pid = 0;
  /// Equal for processes that can see each other's pids: one machine, one PID namespace.
  std::uint64_t numbered_by = 0;

  static PeerProcess of_this_process();
};

/// "rank 2 (host node7, pid 4242)".
std::string name_of(int rank, const PeerProcess& process);

/// The clock that tells how long the calling thread has used a core. Other threads may read it.
clockid_t clock_of_this_thread();
/// Seconds of a clock; 0 if its thread has ended. CLOCK_PROCESS_CPUTIME_ID counts all threads.
double seconds_of(clockid_t clock);

/// Names the calling thread as one that helps with messages; ComputeClock leaves it out.
void call_this_thread_a_helper();

/// CPU seconds of this process without those of threads that carry messages: threads of Gloo and of
/// PyTorch's stores, by their names, and those of call_this_thread_a_helper(). Such threads can use
/// some percent of a core while all ranks wait, which would look like computing.
/// Threads: one at a time.
class ComputeClock {
 public:
  /// Cost: 1 us a helper, and once a second at most a list of the process's threads, 20 us each.
  /// The first call lists none: it comes before the engine's own threads are there.
  double seconds();

 private:
  void list_helpers();

  std::vector<clockid_t> helpers_;
  std::optional<double> listed_at_s_;
};

/// Notices the end of processes of this machine, however they end; none before Linux 5.3, which
/// brought pidfd_open. Threads: one at a time.
class EndsOfProcesses {
 public:
  EndsOfProcesses() = default;
  /// Watches those of `processes`, by rank, that this process can see, itself left out.
  EndsOfProcesses(int self, const std::vector<PeerProcess>& processes);

  /// A rank whose process has ended. Cost: one system call.
  std::optional<int> first() const;

 private:
  struct WatchedEnd {
    int rank;
    Descriptor process;
  };
  std::vector<WatchedEnd> watched_;
};

/// Notices which processes of this machine are stopped, by a signal or by a debugger, and since
/// when. Threads: one at a time.
class StopsOfProcesses {
 public:
  StopsOfProcesses() = default;
  /// Looks at those of `processes`, by rank, that this process can see, itself left out.
  StopsOfProcesses(int self, const std::vector<PeerProcess>& processes);

  /// Looks at some of the processes, if the last look was not just now. Cost: 40 us at most.
  void look(double now_s);
  /// Ranks that were stopped when last looked at, and since which look.
  const std::map<int, double>& stopped() const { return stopped_; }

 private:
  struct WatchedStop {
    int rank;
    std::int64_t pid;
  };
  std::vector<WatchedStop> watched_;
  std::size_t next_ = 0;
  double looked_at_s_ = 0;
  std::map<int, double> stopped_;
};

}  // namespace armillary::comm
