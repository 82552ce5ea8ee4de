// isa.h: the compiled sets of kernels, and the one that runs: the fastest on this CPU, or another
// that was asked for.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "armillary/kernel/cpu/cpu_flags.h"
#include "armillary/kernel/cpu/isa_choice.h"
#include "armillary/kernel/cpu/tiles.h"

namespace armillary::kernel::cpu {

/// Every set that was compiled, best first: "amx", "avx512_bf16", "avx512", "avx2", "portable".
/// Then "emulated" and "emulated_amx", which are avx512_bf16 and amx in portable C++: slow, and for
/// tests on CPUs without.
std::span<const Tiles* const> all_isas();

/// Whether this process can run it; cpu_flags.h says why not.
bool runs_here(const Tiles& isa);

/// By name. @throws InvalidArgument for an unknown name, and for a set that does not run here.
const Tiles& isa_named(std::string_view name);

/// The set that ARMILLARY_ISA names, or else the one that choose_isa takes: for all dtypes, for
/// each set has kernels of all. Taken once, so a process never mixes the bits of two sets.
///
/// Where avx512_bf16 is the best set that runs, the first call probes both its rates for a
/// millisecond (probe_gflops), since only a measurement tells whether its pairs are worth taking.
/// It is a probe, not a benchmark: right about a factor of two, not about a tenth.
/// @throws as isa_named.
const Tiles& current_isa();

/// All sets in the order of all_isas(), with their rates and why current_isa() takes which. The
/// first call measures every set that runs here, in milliseconds. @throws as isa_named.
std::vector<IsaReport> report_isas();

}  // namespace armillary::kernel::cpu
