#include "armillary/bench/cores.h"

#include <sched.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <functional>
#include <future>
#include <system_error>
#include <thread>

#include "armillary/core/error.h"
#include "armillary/kernel/cpu/cpu_flags.h"
#include "armillary/kernel/cpu/peak.h"

namespace armillary::bench {
namespace {

/// Threads of OpenMP spin that long after their last work, and would pass for neighbours.
constexpr std::chrono::milliseconds kSpinning(20);
constexpr double kWarmSeconds = 0.001;
constexpr double kTimedSeconds = 0.004;

/// Cores on which the thread that makes it may run, again at the end. Threads that have just been
/// woken share one for milliseconds if the system is left to part them.
class OwnCores {
 public:
  OwnCores() { known_ = sched_getaffinity(0, sizeof(before_), &before_) == 0; }
  ~OwnCores() {
    if (known_) sched_setaffinity(0, sizeof(before_), &before_);
  }
  OwnCores(const OwnCores&) = delete;
  OwnCores& operator=(const OwnCores&) = delete;

  void stay_on(int core) const {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (known_) sched_setaffinity(0, sizeof(one), &one);
  }
  /// Of the thread that calls: any core but this one.
  void leave(int core) const {
    cpu_set_t others = before_;
    CPU_CLR(core, &others);
    if (known_ && CPU_COUNT(&others) > 0) sched_setaffinity(0, sizeof(others), &others);
  }

 private:
  cpu_set_t before_;
  bool known_ = false;
};

const kernel::cpu::BurnUnit& widest_fp32() {
  const auto units = kernel::cpu::burn_units();
  return *std::find_if(units.begin(), units.end(), [](const kernel::cpu::BurnUnit& unit) {
    return !unit.bf16 && kernel::cpu::missing_for(unit.isa).empty();
  });
}

double gflops_now() {
  kernel::cpu::measure_gflops(widest_fp32(), kWarmSeconds);
  return kernel::cpu::measure_gflops(widest_fp32(), kTimedSeconds);
}

}  // namespace

double core_ratio() {
  std::this_thread::sleep_for(kSpinning);
  const OwnCores cores;
  const int here = std::max(0, sched_getcpu());
  cores.stay_on(here);
  const double before = gflops_now();
  std::barrier both(2);
  std::future<double> second;
  try {
    second = std::async(std::launch::async, [&both, &cores, here] {
      cores.leave(here);
      both.arrive_and_wait();
      return gflops_now();
    });
  } catch (const std::system_error& error) {
    fail<Error>("cores: a second thread: {}", error.what());
  }
  both.arrive_and_wait();
  const double first = gflops_now();
  const double together = first + second.get();
  return together / std::max(before, gflops_now());
}

Side cores_side() {
  return {kCoresSide, core_ratio};
}

}  // namespace armillary::bench
