// process.h: the use that this process makes of MPI, which knows one state per process. Internal to
// mpi.h.
#pragma once

#include <mpi.h>

#include <atomic>
#include <mutex>

namespace armillary::comm {

/// @throws CommError with MPI's text if `code` is not MPI_SUCCESS.
void check_mpi(int code, const char* call);

/// MPI in this process: initialised when it is first asked for, finalized at exit. All calls of MPI
/// are made under one lock, so MPI_THREAD_SERIALIZED is enough for helper threads.
///
/// MPI writes to memory of messages only while one of its functions runs. Therefore a process that
/// cannot end its messages, because a peer does not answer, calls none of them any more: give_up().
class MpiProcess {
 public:
  /// The first call initialises MPI. That returns when all processes have come so far, which
  /// nothing but the end of this process can break off: it ends, with a line on standard error, if
  /// it takes longer than timeout_s and some seconds that starting takes by itself.
  /// @throws CommError if MPI has too low a thread level, or was finalized already.
  static MpiProcess& instance(double timeout_s = 60);

  /// The lock. It is held for one look at MPI at a time, and while communicators are made.
  std::mutex& mutex() { return mutex_; }
  /// Whether MPI may be called: nobody has given up.
  bool usable() const { return usable_.load(std::memory_order_acquire); }
  void give_up() { usable_.store(false, std::memory_order_release); }

  /// A communicator of the first `world` processes, or MPI_COMM_NULL if this is none of them. All
  /// processes call it. @throws CommError if they do not all come within timeout_s.
  MPI_Comm first_processes(int world, double timeout_s);
  /// Number of processes that were started together.
  int processes() const { return processes_; }

  // Groups are counted, so that a process which exits within one does not wait for its peers.

  void enter_group() { ++open_groups_; }
  void leave_group(bool failed) {
    --open_groups_;
    if (failed) any_failed_ = true;
  }

 private:
  explicit MpiProcess(double timeout_s);
  /// Runs at exit. After a failure it ends the process if peers do not come.
  void finalize();

  std::mutex mutex_;
  std::atomic<bool> usable_{true};
  std::atomic<int> open_groups_{0};
  std::atomic<bool> any_failed_{false};
  int rank_ = 0;
  int processes_ = 1;
};

}  // namespace armillary::comm
