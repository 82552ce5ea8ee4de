// host_lane.h: a thread that copies, one copy after the other, beside the thread of a rank: the
// lane of a step's moves between host and device.
//
//   start(copy) --> number   ..   wait(number): the copy and all before it are done
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace armillary::train {

/// Threads: start() and wait() from that of the rank. The thread of the lane ends with the object,
/// after the copy that is under way; copies behind it are left out.
class HostLane {
 public:
  /// No wait is longer than `timeout_s`.
  explicit HostLane(double timeout_s);

  /// Begins a copy behind those before it. Returns its number; numbers ascend from 1.
  std::int64_t start(std::function<void()> copy);
  /// Returns when the copy of this number is done; 0: at once.
  /// @throws what a copy threw, after which none is made; Error if the copy takes too long.
  void wait(std::int64_t number);
  /// The same for all copies.
  void finish() { wait(started_); }

 private:
  void run(const std::stop_token& stop);

  const double timeout_s_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> copies_;
  std::int64_t started_ = 0;  ///< Only the rank's thread uses it.
  std::int64_t done_ = 0;
  std::exception_ptr failure_;
  std::jthread thread_;  ///< Last: it uses all of the above.
};

}  // namespace armillary::train
