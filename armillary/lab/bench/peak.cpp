// All threads run the same window of multiply-adds, about a millisecond, between two barriers. A
// window lasts from the begin of its first thread to the end of its last. The last thread to arrive
// adds it up, unless threads still settle, and decides whether there is another.
#include "armillary/lab/bench/peak.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <functional>
#include <future>
#include <system_error>
#include <thread>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/kernel/cpu/peak.h"

namespace armillary::bench {
namespace {

using kernel::cpu::BurnUnit;

/// The fastest unit for `dtype` up to `isa`: the bf16 dot product may be slower than fp32.
const BurnUnit& fastest_unit(std::string_view isa, plan::Dtype dtype) {
  const bool bf16 = dtype == plan::Dtype::Bf16;
  const std::vector<const BurnUnit*> units = kernel::cpu::units_up_to(
      isa, bf16 ? kernel::cpu::Element::BFloat16 : kernel::cpu::Element::Float32);
  if (units.size() == 1) return *units.front();
  const std::vector<double> gflops = kernel::cpu::probe_gflops(units);
  return *units[std::max_element(gflops.begin(), gflops.end()) - gflops.begin()];
}

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// The windows of some threads, one after the other.
class Windows {
 public:
  Windows(const BurnUnit& unit, int threads, double seconds)
      : unit_(unit),
        settled_(threads > 1 ? kSettling : 0),
        seconds_(seconds),
        windows_(threads),
        together_(threads),
        judged_(threads, Judge{this}) {}

  /// Burns in one of the threads until the time is over.
  void run(int thread) {
    while (!over_) {
      together_.arrive_and_wait();
      windows_[thread].begin = Clock::now();
      unit_.burn(unit_.iterations_per_ms);
      windows_[thread].end = Clock::now();
      judged_.arrive_and_wait();
    }
  }

  /// GFLOP/s of all windows that count. Requires that all threads have returned from run().
  double gflops() const {
    const double flops = static_cast<double>(unit_.iterations_per_ms) * unit_.flops_per_iteration *
                         static_cast<double>(windows_.size());
    return flops * counted_ / taken_ / 1e9;
  }

 private:
  /// Threads that have just started may share a core for tens of milliseconds, and then look half
  /// as fast.
  static constexpr double kSettling = 0.15;

  struct TimeWindow {
    Clock::time_point begin, end;
  };
  /// Called by one thread while all others wait.
  struct Judge {
    Windows* windows;
    void operator()() noexcept { windows->judge(); }
  };

  void judge() noexcept {
    Clock::time_point begin = windows_[0].begin;
    Clock::time_point end = windows_[0].end;
    for (const TimeWindow& window : windows_) {
      begin = std::min(begin, window.begin);
      end = std::max(end, window.end);
    }
    over_ = seconds_between(start_, Clock::now()) >= settled_ + seconds_;
    // The last window counts even if threads have not settled: at least one has to.
    if (!over_ && seconds_between(start_, begin) < settled_) return;
    ++counted_;
    taken_ += seconds_between(begin, end);
  }

  const BurnUnit& unit_;
  double settled_;
  double seconds_;
  Clock::time_point start_ = Clock::now();
  std::vector<TimeWindow> windows_;  ///< The current window of each thread.
  int counted_ = 0;
  double taken_ = 0;
  bool over_ = false;  ///< Written only by judge().
  std::barrier<> together_;
  std::barrier<Judge> judged_;
};

/// Calls work(0), work(1), .. on a thread each, the first on the calling thread. Either all are
/// called or, if the system gives no more threads, none: nobody waits at a barrier that is never
/// full. @throws Error then.
void run_together(int threads, const std::function<void(int)>& work) {
  std::promise<bool> complete;
  const std::shared_future<bool> begins = complete.get_future().share();
  std::vector<std::jthread> others;
  try {
    for (int i = 1; i < threads; ++i) {
      others.emplace_back([&, i] {
        if (begins.get()) work(i);
      });
    }
  } catch (const std::system_error& error) {
    complete.set_value(false);
    fail<Error>("peak: thread {} of {}: {}", others.size() + 1, threads, error.what());
  }
  complete.set_value(true);
  work(0);
}

}  // namespace

double peak_gflops(std::string_view isa, plan::Dtype dtype, int threads, double seconds) {
  if (threads < 1) fail<InvalidArgument>("peak: {} threads; at least 1 is required", threads);
  Windows windows(fastest_unit(isa, dtype), threads, seconds);
  run_together(threads, [&](int thread) { windows.run(thread); });
  return windows.gflops();
}

}  // namespace armillary::bench
