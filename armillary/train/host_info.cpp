#include "armillary/train/host_info.h"

#include <sys/resource.h>
#include <unistd.h>

#include "armillary/kernel/cpu/cpu_flags.h"

namespace armillary::train {

// The kernels ask the same flags, so ATen's products and ours agree about bf16.
bool cpu_multiplies_bf16() {
  return kernel::cpu::multiplies_bf16();
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
