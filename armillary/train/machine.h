// machine.h: what the machine is and how much of it is used.
#pragma once

#include <cstdint>

namespace armillary::train {

/// Whether the CPU has instructions that multiply bf16 (AVX512_BF16, AMX or Arm's BF16), asked at
/// run time from /proc/cpuinfo. False where that cannot be read.
bool cpu_multiplies_bf16();

/// Largest memory the process ever held (all ranks, if they are its threads), in bytes.
std::int64_t peak_resident_bytes();

/// Memory of the machine, in bytes.
std::int64_t physical_memory_bytes();

}  // namespace armillary::train
