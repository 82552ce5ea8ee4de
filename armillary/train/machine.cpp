#include "armillary/train/machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace armillary::train {
namespace {

bool cpuinfo_names_bf16() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
    std::istringstream flags(line);
    for (std::string flag; flags >> flag;) {
      if (flag == "avx512_bf16" || flag == "amx_bf16" || flag == "bf16") return true;
    }
    return false;
  }
  return false;
}

}  // namespace

bool cpu_multiplies_bf16() {
  static const bool answer = cpuinfo_names_bf16();
  return answer;
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

std::int64_t physical_memory_bytes() {
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace armillary::train
