// session_threads.cpp: one thread owns the group of ranks, because comm::run_ranks() returns when
// all have ended. Ranks sleep between turns. One that fails says so before it leaves, so that those
// that have ended the turn do not sleep on; of one that never began they hear from the group.
#include "armillary/serve/session_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/core/threads.h"

namespace armillary::serve {
namespace {

bool has_failed(comm::Communicator& comm) {
  try {
    comm.throw_if_failed();
  } catch (const CommError&) {
    return true;
  }
  return false;
}

}  // namespace

void check_thread_ranks(int ranks) {
  if (ranks >= 1 && ranks <= kMaxThreads) return;
  fail<InvalidArgument>("sessions: {} ranks given; 1 to {} are required", ranks, kMaxThreads);
}

SessionThreads::SessionThreads(const ModelParts& parts, const SessionThreadsOptions& options)
    : ranks_(options.ranks) {
  check_thread_ranks(ranks_);
  owner_ = std::thread([this, parts, options] { own_ranks(parts, options); });
  try {
    std::unique_lock lock(mutex_);
    wait_for_turn(lock);
  } catch (...) {
    owner_.join();
    throw;
  }
}

SessionThreads::~SessionThreads() {
  end_ranks();
  owner_.join();
}

void SessionThreads::run(const Action& action) {
  const std::lock_guard call(calls_);
  std::unique_lock lock(mutex_);
  action_ = &action;
  done_ = 0;
  ++turn_;
  changed_.notify_all();
  wait_for_turn(lock);
  if (refusal_) std::rethrow_exception(std::exchange(refusal_, nullptr));
}

void SessionThreads::wait_for_turn(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return is_over_ || done_ == ranks_; });
  if (!is_over_) return;
  if (!std::exchange(is_told_, true)) std::rethrow_exception(failure_);
  try {
    std::rethrow_exception(failure_);
  } catch (const std::exception& error) {
    fail<CommError>("sessions: the ranks have ended: {}; new sessions are required", error.what());
  }
}

void SessionThreads::own_ranks(const ModelParts& parts, const SessionThreadsOptions& options) {
  std::exception_ptr failure;
  try {
    comm::run_ranks(ranks_, [&](comm::Communicator& comm) { serve(comm, parts, options); },
                    {.timeout_s = options.timeout_s});
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  failure_ = failure;
  changed_.notify_all();
}

void SessionThreads::serve(comm::Communicator& comm, const ModelParts& parts,
                           const SessionThreadsOptions& options) {
  try {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    at::set_num_threads(std::max(1, cores / ranks_));  // For this rank's thread.
    const MeshShape mesh = mesh_of_sessions(ranks_, static_cast<int>(parts.size()));
    const int tp_index = mesh_index(mesh, comm.rank(), MeshAxis::Tp);
    ModelSessions sessions(comm, parts[static_cast<std::size_t>(tp_index)], options.sessions);
    end_turn(nullptr);
    int turn = 0;
    while (const Action* action = next(comm, turn++)) {
      std::exception_ptr refusal;
      try {
        (*action)(sessions, comm.rank());
      } catch (const InvalidArgument&) {
        if (has_failed(comm)) throw;  // It came within a pass.
        refusal = std::current_exception();
      }
      end_turn(refusal);
    }
  } catch (...) {
    end_ranks();
    throw;
  }
}

const SessionThreads::Action* SessionThreads::next(comm::Communicator& comm, int turn) {
  constexpr std::chrono::milliseconds kLook{200};
  std::unique_lock lock(mutex_);
  const auto is_next = [&] { return ends_ || turn_ > turn; };
  while (!changed_.wait_for(lock, kLook, is_next)) comm.throw_if_failed();
  return ends_ ? nullptr : action_;
}

void SessionThreads::end_turn(const std::exception_ptr& refusal) {
  const std::lock_guard lock(mutex_);
  if (refusal) refusal_ = refusal;
  ++done_;
  changed_.notify_all();
}

void SessionThreads::end_ranks() {
  const std::lock_guard lock(mutex_);
  ends_ = true;
  changed_.notify_all();
}

}  // namespace armillary::serve
