// orphans.cpp: Linux gives orphans to the nearest ancestor that has asked for them (prctl), and
// lists the children of a thread in /proc.
#include "armillary/host/launch/orphans.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace armillary::launch {
namespace {

/// A process that the system holds in a call does not end when it is killed; nobody waits on for
/// it.
constexpr std::chrono::seconds kLimit(2);

}  // namespace

Orphans::Orphans() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Orphans::~Orphans() {
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// A child that is killed may leave children of its own, which are then seen the next time.
void Orphans::end_all() const {
  const auto begin = std::chrono::steady_clock::now();
  const std::string list = fmt::format("/proc/self/task/{}/children", getpid());
  while (std::chrono::steady_clock::now() - begin < kLimit) {
    std::ifstream children(list);
    for (pid_t pid = 0; children >> pid;) ::kill(pid, SIGKILL);
    pid_t ended = 0;
    while ((ended = waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    if (ended < 0) return;  // There are no more.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace armillary::launch
