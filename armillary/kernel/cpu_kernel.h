// cpu_kernel.h: the fast CPU kernel (armillary/kernel/cpu/) behind the interface of every kernel.
//
// It takes fp32, bf16 and fp16, every feature of score.h, and head and value dims of 1 to 256. fp64
// goes to reference(). Tensors whose last stride is above 1 are copied first.
#pragma once

#include <string_view>

#include "armillary/kernel/block_attention.h"

namespace armillary::kernel {

/// The kernel for one instruction set: the fastest on this CPU, as cpu::current_isa() chooses it
/// (cpu/isa.h), or the one that the environment variable ARMILLARY_ISA names: amx, avx512_bf16,
/// avx512, avx2, portable. `armillary doctor` prints the choice and its reason. Stateless; lives as
/// long as the process.
/// @throws InvalidArgument for an unknown name, or an instruction set that this CPU lacks.
///
/// Its calls refuse what every kernel refuses, and also head and value dims outside 1 to 256,
/// tensors that are not on the CPU, and outputs in which two elements share memory.
const Kernel& cpu_kernel();

/// The kernel for a given instruction set, whatever the environment says. @throws as above.
const Kernel& cpu_kernel(std::string_view isa);

}  // namespace armillary::kernel
