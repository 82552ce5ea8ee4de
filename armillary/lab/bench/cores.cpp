// One thread burns alone, then two burn together on different cores, then one alone again. The
// divisor is the larger of the two single-thread rates, so that a neighbour who disturbs only one
// of them does not raise the ratio.
#include "armillary/lab/bench/cores.h"

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

/// Threads of OpenMP spin for some milliseconds after their last work. They would look like
/// neighbours, so we wait for them.
constexpr std::chrono::milliseconds kSpinning(20);
constexpr double kWarmSeconds = 0.001;
constexpr double kTimedSeconds = 0.004;

/// Binds threads to cores, and at the end gives the thread that made it all of its cores back.
/// Left to the system, two threads that have just been woken share a core for milliseconds.
class OwnCores {
 public:
  OwnCores() { known_ = sched_getaffinity(0, sizeof(before_), &before_) == 0; }
  ~OwnCores() {
    if (known_) sched_setaffinity(0, sizeof(before_), &before_);
  }
  OwnCores(const OwnCores&) = delete;
  OwnCores& operator=(const OwnCores&) = delete;

  /// Binds the calling thread to one core.
  void stay_on(int core) const {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (known_) sched_setaffinity(0, sizeof(one), &one);
  }
  /// Lets the calling thread run on any core but this one.
  void leave(int core) const {
    cpu_set_t others = before_;
    CPU_CLR(core, &others);
    if (known_ && CPU_COUNT(&others) > 0) sched_setaffinity(0, sizeof(others), &others);
  }

 private:
  cpu_set_t before_;
  bool known_ = false;
};

/// The widest vectors that this CPU has: burn units are listed best first.
const kernel::cpu::BurnUnit& widest_fp32() {
  const auto units = kernel::cpu::burn_units();
  return *std::find_if(units.begin(), units.end(), [](const kernel::cpu::BurnUnit& unit) {
    return !unit.bf16 && kernel::cpu::missing_for(unit.isa).empty();
  });
}

/// Rate of the calling thread, after a warm-up.
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
  // Phase 1 of 3: one thread.
  const double before = gflops_now();
  // Phase 2 of 3: two threads at the same time.
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
  // Phase 3 of 3: one thread again.
  return together / std::max(before, gflops_now());
}

Side cores_side() {
  return {kCoresSide, core_ratio};
}

}  // namespace armillary::bench
