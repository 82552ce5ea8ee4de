// peer_process.cpp: facts about processes from /proc and from descriptors of processes (pidfd). An
// end is told by the kernel; a stop has to be looked for, at a few processes each time.
#include "armillary/comm/liveness/peer_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>
#include <utility>

#include "armillary/core/process_stat.h"

namespace armillary::comm {
namespace {

// Looks at processes are so far apart, and each is at so many of them.
constexpr double kBetweenLooks = 0.05;
constexpr std::size_t kLooks = 4;
// Threads of the process are listed so far apart.
constexpr double kBetweenLists = 1;
constexpr const char* kHelper = "armillary-help";  // 15 characters at most
// A process that did not look for so long was stopped itself: it knows nothing of that time.
constexpr double kOwnStop = 1;

bool is_helper(const std::string& name) {
  return name.starts_with("gloo_") || name.starts_with("pt_gloo") ||
         name.starts_with("pt_tcpstore") || name == kHelper;
}

/// The clock of a thread of this process, as pthread_getcpuclockid() makes it.
clockid_t clock_of_thread(std::int64_t tid) {
  constexpr std::int64_t kOfThread = 6;
  return static_cast<clockid_t>((~tid * 8) | kOfThread);
}

}  // namespace

PeerProcess PeerProcess::of_this_process() {
  PeerProcess process;
  gethostname(process.host.data(), process.host.size() - 1);
  process.pid = getpid();
  // The boot tells machines apart, the namespace containers.
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  process.numbered_by = std::hash<std::string>()(boot + space);
  return process;
}

std::string name_of(int rank, const PeerProcess& process) {
  return fmt::format("rank {} (host {}, pid {})", rank, process.host.data(), process.pid);
}

clockid_t clock_of_this_thread() {
  clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
  pthread_getcpuclockid(pthread_self(), &clock);
  return clock;
}

double seconds_of(clockid_t clock) {
  timespec time = {};
  if (clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void call_this_thread_a_helper() {
  pthread_setname_np(pthread_self(), kHelper);
}

double ComputeClock::seconds() {
  const double now_s = seconds_of(CLOCK_MONOTONIC);
  if (!listed_at_s_) {
    listed_at_s_ = now_s - kBetweenLists;
  } else if (now_s - *listed_at_s_ >= kBetweenLists) {
    listed_at_s_ = now_s;
    list_helpers();
  }
  double used_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  for (const clockid_t helper : helpers_) used_s -= seconds_of(helper);
  return used_s;
}

void ComputeClock::list_helpers() {
  namespace fs = std::filesystem;
  helpers_.clear();
  std::error_code error;  // Threads may end meanwhile.
  for (fs::directory_iterator thread("/proc/self/task", error);
       !error && thread != fs::directory_iterator(); thread.increment(error)) {
    std::string name;
    std::ifstream(thread->path() / "comm") >> name;
    if (is_helper(name)) {
      helpers_.push_back(clock_of_thread(std::stoll(thread->path().filename().string())));
    }
  }
}

EndsOfProcesses::EndsOfProcesses(int self, const std::vector<PeerProcess>& processes) {
  const std::uint64_t here = processes[self].numbered_by;
  for (int rank = 0; rank < static_cast<int>(processes.size()); ++rank) {
    if (rank == self || processes[rank].numbered_by != here) continue;
    Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, processes[rank].pid, 0)));
    if (process.open()) watched_.push_back({rank, std::move(process)});
  }
}

std::optional<int> EndsOfProcesses::first() const {
  std::vector<pollfd> polled;
  polled.reserve(watched_.size());
  for (const WatchedEnd& one : watched_) polled.push_back({one.process.get(), POLLIN, 0});
  if (poll(polled.data(), polled.size(), 0) <= 0) return {};
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents != 0) return watched_[i].rank;
  }
  return {};
}

StopsOfProcesses::StopsOfProcesses(int self, const std::vector<PeerProcess>& processes) {
  for (int rank = 0; rank < static_cast<int>(processes.size()); ++rank) {
    if (rank == self || processes[rank].numbered_by != processes[self].numbered_by) continue;
    watched_.push_back({rank, processes[rank].pid});
  }
}

void StopsOfProcesses::look(double now_s) {
  if (now_s - looked_at_s_ < kBetweenLooks) return;
  if (now_s - looked_at_s_ > kOwnStop) stopped_.clear();
  looked_at_s_ = now_s;
  for (std::size_t i = 0; i < std::min(kLooks, watched_.size()); ++i) {
    const WatchedStop& one = watched_[next_++ % watched_.size()];
    if (stat_of_process(one.pid).stopped()) {
      stopped_.try_emplace(one.rank, now_s);
    } else {
      stopped_.erase(one.rank);
    }
  }
}

}  // namespace armillary::comm
