// Facts are read from /proc and /sys, whose files are missing in some containers: a number that is
// not there is -1 and no error.
#include "armillary/host/doctor/host_facts.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "armillary/core/process_stat.h"

namespace armillary::doctor {
namespace {

/// The value behind `key` and a colon in a file of lines such as /proc/meminfo; empty without it.
std::string line_value(const char* path, const std::string& key) {
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

/// A line of /proc/meminfo, which counts in KiB; -1 without it.
std::int64_t memory_line(const std::string& key) {
  const std::string value = line_value("/proc/meminfo", key);
  return value.empty() ? -1 : std::atoll(value.c_str()) * 1024;
}

/// The limit of the control group, in its second or first version; -1 for none.
std::int64_t control_group_limit() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream stream(path);
    std::int64_t bytes = 0;
    // No limit is the word "max", or a number beyond any machine.
    if (stream >> bytes && bytes < std::int64_t{1} << 60) return bytes;
  }
  return -1;
}

/// The limit that this process has now; it may raise it up to the hard one.
std::int64_t soft_limit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return -1;
  return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<std::int64_t>(limit.rlim_cur);
}

/// Cores by the mask of this process, which launchers and containers make smaller.
int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

/// Looks at the clock of all times and deadlines for a millisecond.
void measure_clock(HostFacts& facts) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLooks = 20000;
  const Clock::time_point begin = Clock::now();
  Clock::time_point before = begin;
  Clock::duration least = std::chrono::seconds(1);
  for (int i = 0; i < kLooks; ++i) {
    const Clock::time_point now = Clock::now();
    if (now > before) least = std::min(least, now - before);
    before = now;
  }
  const auto in_ns = [](Clock::duration time) {
    return std::chrono::duration<double, std::nano>(time).count();
  };
  facts.clock_tick_ns = in_ns(least);
  facts.clock_look_ns = in_ns(before - begin) / kLooks;
  timex state{};
  facts.clock_synchronized = adjtimex(&state) >= 0 && (state.status & STA_UNSYNC) == 0;
}

}  // namespace

HostFacts host_facts() {
  HostFacts facts{.host = this_host()};
  utsname system{};
  if (uname(&system) == 0) {
    facts.system = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  }
  facts.cpu = line_value("/proc/cpuinfo", "model name");
  facts.cores = usable_cores();
  facts.memory = memory_line("MemTotal");
  facts.memory_available = memory_line("MemAvailable");
  facts.memory_limit = control_group_limit();
  struct statvfs disk {};
  if (statvfs("/dev/shm", &disk) == 0) {
    facts.shared_memory = static_cast<std::int64_t>(disk.f_blocks * disk.f_frsize);
    facts.shared_memory_free = static_cast<std::int64_t>(disk.f_bavail * disk.f_frsize);
  }
  facts.locked_memory_limit = soft_limit(RLIMIT_MEMLOCK);
  facts.open_files_limit = soft_limit(RLIMIT_NOFILE);
  measure_clock(facts);
  return facts;
}

std::string size_text(std::int64_t bytes) {
  if (bytes < 0) return "none";
  const auto size = static_cast<double>(bytes);
  if (bytes >= std::int64_t{1} << 30) return fmt::format("{:.1f} GiB", size / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", size / (1 << 20));
  return fmt::format("{:.1f} KiB", size / (1 << 10));
}

}  // namespace armillary::doctor
