#include "armillary/plan/parallel_for_ranks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/sanitized.h"

namespace armillary::plan {
namespace {

TEST(ParallelForRanks, IsWorkedOnOnce) {
  for (const int world : {0, 1, 5, 64, 1000}) {
    std::vector<int> calls(world);
    parallel_for_ranks(world, [&](Rank rank) { ++calls[rank]; });
    EXPECT_EQ(calls, std::vector<int>(world, 1));
  }
}

TEST(ParallelForRanks, OfFewStartsNoThread) {
  std::vector<std::thread::id> threads(8);
  parallel_for_ranks(8, [&](Rank rank) { threads[rank] = std::this_thread::get_id(); });
  EXPECT_EQ(std::set(threads.begin(), threads.end()), std::set{std::this_thread::get_id()});
}

/// Leaves this process room for less than a stack. Exits with 0 if all ranks were worked on.
void work_without_threads() {
  constexpr rlim_t kRoom = 1 << 20;
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * 4096 + kRoom;
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(2);
  std::vector<int> calls(64);
  parallel_for_ranks(64, [&](Rank rank) { ++calls[rank]; });
  std::exit(calls == std::vector<int>(64, 1) ? 0 : 1);
}

TEST(ParallelForRanks, IsWorkedOnWhereNoThreadCanStart) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] sanitizers need the memory";
  EXPECT_EXIT(work_without_threads(), testing::ExitedWithCode(0), "");
}

TEST(ParallelForRanks, PassesOnTheFailureOfTheLowest) {
  for (const int world : {7, 1000}) {
    std::vector<int> calls(world);
    try {
      parallel_for_ranks(world, [&](Rank rank) {
        ++calls[rank];
        if (rank > 2) throw std::runtime_error(std::to_string(rank));
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()), "3");
    }
    EXPECT_EQ(calls, std::vector<int>(world, 1));
  }
}

}  // namespace
}  // namespace armillary::plan
