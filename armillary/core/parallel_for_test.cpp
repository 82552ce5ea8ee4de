#include "armillary/core/parallel_for.h"

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

namespace armillary {
namespace {

TEST(ParallelFor, IsWorkedOnOnce) {
  for (const int count : {0, 1, 5, 64, 1000}) {
    std::vector<int> calls(count);
    parallel_for(count, [&](int i) { ++calls[i]; });
    EXPECT_EQ(calls, std::vector<int>(count, 1));
  }
}

TEST(ParallelFor, OfFewStartsNoThread) {
  std::vector<std::thread::id> threads(15);
  parallel_for(
      15, [&](int i) { threads[i] = std::this_thread::get_id(); }, 8);
  EXPECT_EQ(std::set(threads.begin(), threads.end()), std::set{std::this_thread::get_id()});
}

/// Leaves this process room for less than a stack. Exits with 0 if all calls were worked on.
void work_without_threads() {
  constexpr rlim_t kRoom = 1 << 20;
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * 4096 + kRoom;
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(2);
  std::vector<int> calls(64);
  parallel_for(64, [&](int i) { ++calls[i]; });
  std::exit(calls == std::vector<int>(64, 1) ? 0 : 1);
}

TEST(ParallelFor, IsWorkedOnWhereNoThreadCanStart) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] sanitizers need the memory";
  EXPECT_EXIT(work_without_threads(), testing::ExitedWithCode(0), "");
}

TEST(ParallelFor, PassesOnTheFailureOfTheLowest) {
  for (const int count : {7, 1000}) {
    std::vector<int> calls(count);
    try {
      parallel_for(count, [&](int i) {
        ++calls[i];
        if (i > 2) throw std::runtime_error(std::to_string(i));
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()), "3");
    }
    EXPECT_EQ(calls, std::vector<int>(count, 1));
  }
}

}  // namespace
}  // namespace armillary
