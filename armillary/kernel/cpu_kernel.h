// cpu_kernel.h: the fast kernel of CPUs (armillary/kernel/cpu/) behind the interface of every
// kernel.
//
// fp32, bf16 and fp16, with every feature of score.h, head and value dims of 1 to 256. fp64 goes to
// reference(). Elements that are not neighbours (a last stride above 1) are copied first.
#pragma once

#include <string_view>

#include "armillary/kernel/block_attention.h"

namespace armillary::kernel {

/// The kernel of the instruction set that is fastest on this CPU, as cpu::current_isa() takes it
/// (cpu/isa.h), or of the one that the environment variable ARMILLARY_ISA names: amx, avx512_bf16,
/// avx512, avx2, portable. `armillary doctor` says which and why. Stateless; lives as long as the
/// program.
/// @throws InvalidArgument for a name that is not one of them, or a set that this CPU lacks.
///
/// Besides what every kernel refuses, its calls refuse head and value dims that are not 1 to 256,
/// tensors that are not on the CPU, and outputs of which two elements are one.
const Kernel& cpu_kernel();

/// The same for one instruction set, whatever the environment says. @throws as above.
const Kernel& cpu_kernel(std::string_view isa);

}  // namespace armillary::kernel
