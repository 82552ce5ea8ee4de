// process.cpp: the state of MPI in this process. It is initialised once, by this file unless the
// caller has, with settings of Open MPI made before; it is finalized at exit, unless peers may be
// gone: MPI_Finalize would wait for them.
#include "armillary/comm/mpi/process.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "armillary/comm/mpi.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// Seconds that MPI_Finalize may take after a failure.
constexpr std::chrono::seconds kFinalize(5);

/// Seconds that MPI_Init_thread may take beside the wait for others.
constexpr double kStart = 5;

/// Ends this process unless it dies within some seconds.
class EndUnless {
 public:
  explicit EndUnless(double limit_s)
      : thread_([this, limit_s] {
          std::unique_lock lock(mutex_);
          if (over_.wait_for(lock, std::chrono::duration<double>(limit_s),
                             [&] { return is_over_; }))
            return;
          std::fprintf(stderr,
                       "mpi: MPI_Init_thread does not return within %g s: a process has not come\n",
                       limit_s);
          std::_Exit(EXIT_FAILURE);
        }) {}
  EndUnless(const EndUnless&) = delete;
  EndUnless& operator=(const EndUnless&) = delete;
  ~EndUnless() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    over_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread thread_;
};

/// Settings of Open MPI, unless the user has made them in the environment. Its tcp asks the
/// receiver of a long message first, and the answer waits behind all bytes that go the other way:
/// two ranks that exchange messages would send one at a time. A piece of a message
/// (MpiOptions::piece_bytes) is sent without asking, with room for MPI's header.
void set_defaults() {
  const std::int64_t bytes = MpiOptions().piece_bytes + 256;
  setenv("OMPI_MCA_btl_tcp_eager_limit", std::to_string(bytes).c_str(), /*replace=*/0);
}

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  fail<CommError>("{}: {}", call, text);
}

MpiProcess& MpiProcess::instance(double timeout_s) {
  // Never destroyed: the handler at exit uses it.
  static auto* const process = new MpiProcess(timeout_s);
  return *process;
}

MpiProcess::MpiProcess(double timeout_s) {
  int initialised = 0;
  int finalized = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalized);
  if (finalized) fail<CommError>("mpi: MPI is finalized; it can be used only once per process");
  // A caller that initialised MPI also finalizes it.
  if (initialised) {
    MPI_Query_thread(&level);
  } else {
    set_defaults();
    const EndUnless in_time(timeout_s + kStart);
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    std::atexit([] { instance().finalize(); });
  }
  if (level < MPI_THREAD_SERIALIZED) {
    fail<CommError>("mpi: thread level {}; MPI_THREAD_SERIALIZED ({}) is required", level,
                    MPI_THREAD_SERIALIZED);
  }
  // Errors come back as codes instead of ending the process; duplicates are told the same.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &processes_);
}

// MPI_Finalize waits for all processes, so it is not called by one that exits within a group or
// whose peers do not answer: mpirun sees an exit without it as a failure and ends the others.
void MpiProcess::finalize() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized || !usable() || open_groups_ > 0) return;
  if (any_failed_) {
    std::thread([] {
      std::this_thread::sleep_for(kFinalize);
      std::fputs("mpi: MPI_Finalize does not return after a failure; the process ends\n", stderr);
      std::_Exit(EXIT_FAILURE);
    }).detach();
  }
  MPI_Finalize();
}

MPI_Comm MpiProcess::first_processes(int world, double timeout_s) {
  // MPI_Comm_split blocks, so it is called when all processes are known to be here.
  MPI_Request arrived = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(mutex_);
    check_mpi(MPI_Ibarrier(MPI_COMM_WORLD, &arrived), "MPI_Ibarrier");
  }
  // The lock is free between two looks, for the helper threads of other groups.
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    int here = 0;
    {
      const std::lock_guard lock(mutex_);
      check_mpi(MPI_Test(&arrived, &here, MPI_STATUS_IGNORE), "MPI_Test");
    }
    if (here) break;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (waited.count() > timeout_s) {
      give_up();
      fail<CommError>("run_mpi_rank: rank {} is here, not all of {} came within {:.3g} s", rank_,
                      count_of(processes_, "process", "processes"), waited.count());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  const std::lock_guard lock(mutex_);
  MPI_Comm members = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, rank_ < world ? 0 : MPI_UNDEFINED, rank_, &members),
            "MPI_Comm_split");
  return members;
}

}  // namespace armillary::comm
