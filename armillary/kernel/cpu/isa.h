// isa.h: which instruction set runs: the best that the CPU has, or a lower one that was asked for.
#pragma once

#include <span>
#include <string_view>

#include "armillary/kernel/cpu/tiles.h"

namespace armillary::kernel::cpu {

/// Every set that was compiled, best first: "avx512_bf16", "avx512", "avx2", "portable". Then
/// "emulated", which is avx512_bf16 in portable C++: slow, and for tests on CPUs without.
std::span<const Tiles* const> all_isas();

/// Whether this CPU can run it.
bool runs_here(const Tiles& isa);

/// By name. @throws InvalidArgument for an unknown name, and for a set that this CPU lacks.
const Tiles& isa_named(std::string_view name);

/// What ARMILLARY_ISA names, read once, or else the best that this CPU has. @throws as isa_named.
const Tiles& current_isa();

}  // namespace armillary::kernel::cpu
