// The thread takes the first copy of a list under a lock and makes it without; a copy that throws
// ends the list, and every later wait throws what it threw.
#include "armillary/train/host_lane.h"

#include <chrono>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::train {

HostLane::HostLane(double timeout_s)
    : timeout_s_(timeout_s), thread_([this](const std::stop_token& stop) { run(stop); }) {}

std::int64_t HostLane::start(std::function<void()> copy) {
  {
    const std::lock_guard lock(mutex_);
    copies_.push_back(std::move(copy));
  }
  changed_.notify_all();
  return ++started_;
}

void HostLane::wait(std::int64_t number) {
  std::unique_lock lock(mutex_);
  const bool is_over = changed_.wait_for(lock, std::chrono::duration<double>(timeout_s_),
                                         [&] { return done_ >= number || failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  if (is_over) return;
  fail<Error>(
      "train: copy {} between host and device is not done after {} s, copy {} is; raise "
      "comm.train_timeout_seconds",
      number, timeout_s_, done_);
}

void HostLane::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return !copies_.empty(); })) {
    if (stop.stop_requested()) return;
    const std::function<void()> copy = std::exchange(copies_.front(), {});
    copies_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      copy();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure != nullptr) {
      failure_ = failure;
      changed_.notify_all();
      return;
    }
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace armillary::train
