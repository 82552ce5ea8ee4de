#include "armillary/lab/bench/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>

namespace armillary::bench {
namespace {

cpu_set_t cores_now() {
  cpu_set_t cores;
  EXPECT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
  return cores;
}

/// Calls back with one core for this thread, then gives all of them back.
template <class Work>
double on_one_core(const Work& work) {
  const cpu_set_t all = cores_now();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const double value = work();
  EXPECT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  return value;
}

// Other tests that run beside take from a ratio; on one core it never is that of two.
TEST(CoreRatio, OfOneCoreIsBelowThatOfTwo) {
  double least = 2;
  for (int i = 0; i < 5 && least >= kLeastCores; ++i)
    least = std::min(least, on_one_core(core_ratio));
  EXPECT_LT(least, kLeastCores);
  EXPECT_GT(least, 0);
}

TEST(CoreRatio, LeavesTheThreadItsCores) {
  const cpu_set_t before = cores_now();
  EXPECT_GT(core_ratio(), 0);
  const cpu_set_t after = cores_now();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

}  // namespace
}  // namespace armillary::bench
