#include "armillary/core/process_stat.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace armillary {

/// The name of the program, in parentheses, may hold anything; the state follows the last ')'.
ProcessStat stat_of_process(std::int64_t pid) {
  constexpr int kStartField = 19;  // counted from the state, which is field 0
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  // read() tells of a process that went after the file was opened by its count alone; iterators of
  // the buffer would throw. The fields that are read are within the first 1,000 bytes.
  std::string text(1024, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  ProcessStat stat;
  if (text.rfind(')') == std::string::npos) return stat;
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  fields >> stat.state;
  std::string field;
  for (int i = 1; i < kStartField; ++i) fields >> field;
  if (!(fields >> stat.start)) stat.start = -1;
  return stat;
}

double age_of_process_s() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double start_s = static_cast<double>(stat_of_process(getpid()).start) /
                         static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - start_s;
}

std::string this_host() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

void return_large_blocks() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);  // and glibc moves it no more
}

std::int64_t physical_memory_bytes() {
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace armillary
