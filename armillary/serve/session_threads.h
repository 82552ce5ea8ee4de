// session_threads.h: sessions over ranks that are threads of this process, for a caller that is
// none of them.
//
//   caller   run(action) -----------------------------> returns
//   rank 0        '--> action(sessions) --'  all ranks have ended it
//   rank 1        '--> action(sessions) --'
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "armillary/comm/communicator.h"
#include "armillary/serve/model_sessions.h"

namespace armillary::serve {

struct SessionThreadsOptions {
  int ranks = 1;           ///< Those along tp too.
  double timeout_s = 600;  ///< Timeout of every wait of a rank for others.
  SessionsOptions sessions = {};
};

/// @throws InvalidArgument for a number of ranks that threads cannot be.
void check_thread_ranks(int ranks);

/// Starts the ranks, which end with the object. Threads: any may call; calls run one after the
/// other.
class SessionThreads {
 public:
  /// `parts`: the model for each rank along tp.
  /// @throws InvalidArgument for options that cannot be, as check_thread_ranks and ModelSessions;
  /// PlanError likewise.
  SessionThreads(const ModelParts& parts, const SessionThreadsOptions& options);
  SessionThreads(const SessionThreads&) = delete;
  SessionThreads& operator=(const SessionThreads&) = delete;
  ~SessionThreads();

  /// Runs `action` on all ranks and waits for all of them. It makes the same calls everywhere.
  /// @throws InvalidArgument that it throws on all ranks; then sessions go on, unless it came
  /// within a pass. That one and any other error end the ranks: that of the rank that failed first,
  /// and CommError with its text ever after.
  using Action = std::function<void(ModelSessions& sessions, int rank)>;
  void run(const Action& action);

 private:
  void own_ranks(const ModelParts& parts, const SessionThreadsOptions& options);
  void serve(comm::Communicator& comm, const ModelParts& parts,
             const SessionThreadsOptions& options);
  /// The next action behind `turn`; null if the rank is to end. @throws CommError if the group
  /// fails before.
  const Action* next(comm::Communicator& comm, int turn);
  void end_turn(const std::exception_ptr& refusal);
  void end_ranks();
  /// Waits until all ranks have ended a turn, or the group is over, which is thrown.
  void wait_for_turn(std::unique_lock<std::mutex>& lock);

  const int ranks_;
  std::mutex calls_;  ///< Held by the caller.
  std::mutex mutex_;  ///< Guards all that follows.
  std::condition_variable changed_;
  const Action* action_ = nullptr;
  int turn_ = 0;
  int done_ = 0;                ///< Ranks that have ended the turn.
  std::exception_ptr refusal_;  ///< That of a rank, in the turn.
  bool ends_ = false;           ///< No rank begins another turn.
  bool is_over_ = false;        ///< All ranks have ended.
  std::exception_ptr failure_;  ///< Why they have.
  bool is_told_ = false;        ///< The failure was thrown.
  std::thread owner_;
};

}  // namespace armillary::serve
