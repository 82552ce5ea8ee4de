// host_info.h: properties of the machine that trains, and memory of this process.
#pragma once

#include <cstdint>

namespace armillary::train {

/// Whether the CPU has instructions that multiply bf16 (AVX512_BF16, AMX_BF16 or Arm's BF16), so
/// products of bf16 are not multiplied as fp32 (kernel/cpu/cpu_flags.h).
bool cpu_multiplies_bf16();

/// Peak resident memory of the process so far, in bytes. Ranks that are its threads share it.
std::int64_t peak_resident_bytes();

/// Physical memory of the machine, in bytes.
std::int64_t physical_memory_bytes();

}  // namespace armillary::train
