#include "armillary/bench/peak.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <future>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/kernel/cpu/peak.h"

namespace armillary::bench {
namespace {

using kernel::cpu::BurnUnit;

/// The fastest unit for `dtype` up to `isa`: pairs of bf16 may be slower than fp32.
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

struct Window {
  Clock::time_point begin;
  Clock::time_point end;
};

}  // namespace

double peak_gflops(std::string_view isa, plan::Dtype dtype, int threads, double seconds) {
  if (threads < 1) fail<InvalidArgument>("peak: {} threads; at least 1 is required", threads);
  const BurnUnit& unit = fastest_unit(isa, dtype);
  // Threads that have just started may share a core for tens of milliseconds, and then look half as
  // fast.
  const double settled = threads > 1 ? 0.15 : 0;
  const double flops = static_cast<double>(unit.rounds_a_ms) * unit.flops_a_round * threads;
  const Clock::time_point begin = Clock::now();
  std::vector<Window> windows(threads);
  double burned = 0;
  double taken = 0;
  bool over = false;
  const auto judge = [&]() noexcept {
    const auto [first, last] = std::pair(
        std::min_element(windows.begin(), windows.end(),
                         [](const Window& a, const Window& b) { return a.begin < b.begin; }),
        std::max_element(windows.begin(), windows.end(),
                         [](const Window& a, const Window& b) { return a.end < b.end; }));
    const Clock::time_point now = Clock::now();
    over = seconds_between(begin, now) >= settled + seconds;
    if (!over && seconds_between(begin, first->begin) < settled) return;
    burned += flops;
    taken += seconds_between(first->begin, last->end);
  };
  std::barrier together(threads);
  std::barrier judged(threads, judge);
  const auto work = [&](int i) {
    while (!over) {
      together.arrive_and_wait();
      windows[i].begin = Clock::now();
      unit.burn(unit.rounds_a_ms);
      windows[i].end = Clock::now();
      judged.arrive_and_wait();
    }
  };
  // Nobody waits at a barrier before all are there.
  std::promise<bool> complete;
  const std::shared_future<bool> begins = complete.get_future().share();
  {
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
  return burned / taken / 1e9;
}

}  // namespace armillary::bench
