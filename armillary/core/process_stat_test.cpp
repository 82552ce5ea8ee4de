#include "armillary/core/process_stat.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace armillary {
namespace {

TEST(ProcessStat, OfThisProcess) {
  const ProcessStat stat = stat_of_process(getpid());
  EXPECT_GT(stat.start, 0);
  EXPECT_FALSE(stat.stopped());
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

}  // namespace
}  // namespace armillary
