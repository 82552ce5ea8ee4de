// late_device.h: a device for tests that runs its ops late, on threads, after random delays.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "armillary/runtime/device.h"

namespace armillary::runtime {

/// Every lane is a thread, which waits for a random time in [0, max_delay_s) before each op. So
/// lanes overtake each other, and an executor that takes a started op for a finished one reads
/// results that are not there yet. The same seed gives the same delays. One rank has one device;
/// ranks share nothing.
class LateDevice : public Device {
 public:
  explicit LateDevice(std::uint64_t seed, double max_delay_s = 2e-4);
  ~LateDevice() override;

  /// The lane on which a test queues work of the caller, as on the current stream of a GPU.
  static constexpr plan::Lane kCallerLane = -1;

  at::Device place() const override { return at::kCPU; }
  EventHandle start(plan::Lane lane, Work& work, int op) override;
  void drain(const Work& work) noexcept override;
  /// Late as well, even if the caller has queued nothing.
  EventHandle caller_event() override { return LateDevice::start(kCallerLane, nothing_, 0); }

 private:
  struct NoWork : Work {
    void run(int /*op*/) override {}
  };
  struct Started : Event {
    Work* work = nullptr;
    int op = 0;
    bool complete = false;       ///< guarded by `mutex_`, like the members below
    bool dropped = false;        ///< dropped by drain() before it began
    std::exception_ptr error{};  ///< exception of the work
  };
  struct LateLane {
    std::deque<std::shared_ptr<Started>> waiting;
    std::shared_ptr<Started> running;
    std::minstd_rand random;
    std::thread thread;
  };
  using Lock = std::unique_lock<std::mutex>;

  bool is_done(const Event& event) override;
  bool wait_for(const Event& event, double seconds) override;
  LateLane& lane_of(plan::Lane lane);
  void run(LateLane& lane);
  void run_next(Lock& lock, LateLane& lane);
  static bool is_over(const Started& started);

  NoWork nothing_;
  const std::uint64_t seed_;
  const double max_delay_s_;
  const int threads_;  ///< intra-op threads of the rank, used by its lanes
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::map<plan::Lane, LateLane> lanes_;
};

inline LateDevice::LateDevice(std::uint64_t seed, double max_delay_s)
    : seed_(seed), max_delay_s_(max_delay_s), threads_(at::get_num_threads()) {}

inline LateDevice::~LateDevice() {
  {
    const Lock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  for (auto& [number, lane] : lanes_) {
    if (lane.thread.joinable()) lane.thread.join();
  }
}

inline EventHandle LateDevice::start(plan::Lane number, Work& work, int op) {
  const auto started = std::make_shared<Started>();
  started->work = &work;
  started->op = op;
  const Lock lock(mutex_);
  lane_of(number).waiting.push_back(started);
  changed_.notify_all();
  return started;
}

inline LateDevice::LateLane& LateDevice::lane_of(plan::Lane number) {
  LateLane& lane = lanes_[number];
  if (!lane.thread.joinable()) {
    std::seed_seq seed{seed_, seed_ >> 32, static_cast<std::uint64_t>(number)};
    lane.random.seed(seed);
    lane.thread = std::thread([this, &lane] { run(lane); });
  }
  return lane;
}

inline void LateDevice::run(LateLane& lane) {
  at::set_num_threads(threads_);
  const at::NoGradGuard no_grad;
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !lane.waiting.empty(); });
    if (ends_) return;
    run_next(lock, lane);
  }
}

/// Runs the first waiting op of the lane. If it throws, later ops of the same work are dropped.
inline void LateDevice::run_next(Lock& lock, LateLane& lane) {
  const double delay_s = std::uniform_real_distribution<>(0, max_delay_s_)(lane.random);
  const std::shared_ptr<Started> started = std::move(lane.waiting.front());
  lane.waiting.pop_front();
  lane.running = started;
  changed_.wait_for(lock, std::chrono::duration<double>(delay_s),
                    [&] { return ends_ || started->dropped; });
  if (!ends_ && !started->dropped) {
    lock.unlock();
    std::exception_ptr error;
    try {
      started->work->run(started->op);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    started->complete = true;
    started->error = error;
  }
  if (started->error) {
    std::erase_if(lane.waiting, [&](const auto& later) { return later->work == started->work; });
  }
  lane.running.reset();
  changed_.notify_all();
}

inline bool LateDevice::is_over(const Started& started) {
  if (started.complete && started.error) std::rethrow_exception(started.error);
  return started.complete;
}

inline bool LateDevice::is_done(const Event& event) {
  const Lock lock(mutex_);
  return is_over(static_cast<const Started&>(event));
}

inline bool LateDevice::wait_for(const Event& event, double seconds) {
  const auto& started = static_cast<const Started&>(event);
  Lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return started.complete; });
  return is_over(started);
}

inline void LateDevice::drain(const Work& work) noexcept {
  Lock lock(mutex_);
  for (auto& entry : lanes_) {
    LateLane& lane = entry.second;
    std::erase_if(lane.waiting, [&](const auto& started) { return started->work == &work; });
    if (lane.running && lane.running->work == &work) lane.running->dropped = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !lane.running || lane.running->work != &work; });
  }
}

}  // namespace armillary::runtime
