// peer_process_test.cpp: processes of this machine that are stopped, go on and end, as their peers
// see them.
#include "armillary/comm/liveness/peer_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

namespace armillary::comm {
namespace {

/// A child that sleeps; rank 1 of two, beside this process.
class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    if (pid_ == 0) {
      sleep(60);
      _exit(0);
    }
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void signal(int number) const { kill(pid_, number); }
  std::vector<PeerProcess> processes() const {
    std::vector<PeerProcess> both(2, PeerProcess::of_this_process());
    both[1].pid = pid_;
    return both;
  }

 private:
  pid_t pid_;
};

/// Whether it holds within a minute.
bool soon(const std::function<bool()>& holds) {
  for (int i = 0; i < 12000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

/// Uses a core for 0.1 s, on the clock of the thread.
void use_a_core() {
  const clockid_t clock = clock_of_this_thread();
  for (const double begin_s = seconds_of(clock); seconds_of(clock) < begin_s + 0.1;) {
  }
}

/// The seconds that the clock counts while another thread works, which does not end before it.
double counted(ComputeClock& clock, bool is_helper) {
  std::latch has_name(1), worked(1), begin(1), end(1);
  std::thread thread([&] {
    if (is_helper) call_this_thread_a_helper();
    has_name.count_down();
    begin.wait();
    use_a_core();
    worked.count_down();
    end.wait();
  });
  has_name.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // Until threads are listed again.
  const double before_s = clock.seconds();
  begin.count_down();
  worked.wait();
  const double after_s = clock.seconds();
  end.count_down();
  thread.join();
  return after_s - before_s;
}

TEST(ComputeClock, LeavesHelpersOut) {
  ComputeClock clock;
  clock.seconds();
  EXPECT_GE(counted(clock, false), 0.1);
  EXPECT_LT(counted(clock, true), 0.05);
}

TEST(StopsOfProcesses, TellsSinceWhenOneIsStopped) {
  const Sleeper sleeper;
  StopsOfProcesses stops(0, sleeper.processes());
  double now_s = 100;
  const auto is_stopped = [&] {
    stops.look(now_s += 0.1);
    return stops.stopped().contains(1);
  };
  EXPECT_FALSE(is_stopped());
  sleeper.signal(SIGSTOP);
  ASSERT_TRUE(soon(is_stopped));
  const double since_s = now_s;
  EXPECT_TRUE(is_stopped());
  EXPECT_EQ(stops.stopped().at(1), since_s);
  // This process did not look for long: it may have been stopped too, and counts from now on.
  stops.look(now_s += 10);
  EXPECT_EQ(stops.stopped().at(1), now_s);
  sleeper.signal(SIGCONT);
  EXPECT_TRUE(soon([&] { return !is_stopped(); }));
}

TEST(StopsOfProcesses, LooksAtNoProcessThatItCannotSee) {
  const Sleeper sleeper;
  sleeper.signal(SIGSTOP);
  std::vector<PeerProcess> processes = sleeper.processes();
  processes[1].numbered_by += 1;  // of another machine
  StopsOfProcesses stops(0, processes);
  stops.look(100);
  EXPECT_TRUE(stops.stopped().empty());
}

TEST(EndsOfProcesses, TellsTheRankThatHasEnded) {
  const Sleeper sleeper;
  const EndsOfProcesses ends(0, sleeper.processes());
  EXPECT_EQ(ends.first(), std::nullopt);
  sleeper.signal(SIGKILL);
  EXPECT_TRUE(soon([&] { return ends.first() == 1; }));
}

}  // namespace
}  // namespace armillary::comm
