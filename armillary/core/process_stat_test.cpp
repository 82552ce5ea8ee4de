#include "armillary/core/process_stat.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/sanitized.h"

namespace armillary {
namespace {

TEST(ProcessStat, OfThisProcess) {
  const ProcessStat stat = stat_of_process(getpid());
  EXPECT_GT(stat.start, 0);
  EXPECT_FALSE(stat.stopped());
}

TEST(ProcessStat, AgeIsThatSinceTheStart) {
  const double before_s = age_of_process_s();
  EXPECT_GE(before_s, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const double after_s = age_of_process_s();
  EXPECT_GE(after_s - before_s, 0.1);
  EXPECT_LT(after_s, 3600);
  const auto then = std::chrono::steady_clock::now();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const double own_s = age_of_process_s();
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - then;
    _exit(own_s < after_s + since.count() - 0.05 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(ProcessStat, OfNoProcess) {
  EXPECT_EQ(stat_of_process(-1).start, -1);
}

// A process may go after its file was opened: reading then fails, which is no error of the caller.
TEST(ProcessStat, OfProcessesThatAreGoing) {
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(0);
    std::atomic<bool> gone = false;
    std::thread reaper([&] {
      waitpid(child, nullptr, 0);
      gone = true;
    });
    while (!gone) stat_of_process(child);
    reaper.join();
    EXPECT_EQ(stat_of_process(child).start, -1);
  }
}

std::int64_t resident_bytes() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm").ignore(64, ' ') >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// A block that was freed has taught glibc to keep others of its size.
TEST(ProcessStat, LargeBlocksAreReturned) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] sanitizers keep what is freed";
  constexpr std::size_t kBytes = 16 << 20;
  const auto hole = [] {
    const auto block = [] {
      auto memory = std::make_unique<char[]>(kBytes);  // NOLINT: written, so that it is resident
      std::memset(memory.get(), 1, kBytes);
      return memory;
    };
    block();
    auto first = block();
    const auto last = block();
    const std::int64_t before = resident_bytes();
    first.reset();
    return before - resident_bytes();
  };
  return_large_blocks();
  EXPECT_GE(hole(), std::int64_t{kBytes} / 2);
}

}  // namespace
}  // namespace armillary
