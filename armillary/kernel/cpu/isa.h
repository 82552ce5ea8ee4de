// isa.h: the compiled sets of kernels, and the one that runs: the best for this CPU, or the one
// that the environment names.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "armillary/kernel/cpu/cpu_flags.h"
#include "armillary/kernel/cpu/isa_choice.h"
#include "armillary/kernel/cpu/isa_kernels.h"

namespace armillary::kernel::cpu {

/// Every compiled set, best first: "amx", "avx512_bf16", "avx512", "avx2", "portable". In test
/// programs that link armillary_kernel_emulated, "emulated" and "emulated_amx" come last: the code
/// of avx512_bf16 and amx over portable C++, slow, for CPUs without those instructions.
std::span<const IsaKernels* const> all_isas();

/// Whether this process can run the set; missing_for() of cpu_flags.h gives the reason if not.
bool runs_here(const IsaKernels& isa);

/// The set of this name. @throws InvalidArgument for an unknown name, and for a set that does not
/// run here.
const IsaKernels& isa_named(std::string_view name);

/// The set that the environment variable ARMILLARY_ISA names, or else the choice of choose_isa().
/// One set serves all dtypes. The choice is made once per process, so a process never mixes the
/// bits of two sets.
///
/// If avx512_bf16 is the best set that runs, the first call probes its bf16 and fp32 rates for a
/// millisecond (probe_gflops), since only a measurement tells whether its bf16 instruction is worth
/// using. The probe tells a factor of two reliably, but not a tenth. @throws as isa_named.
const IsaKernels& current_isa();

/// All sets in the order of all_isas(), with their rates and the reasons of the choice. The first
/// call measures every set that runs here, in milliseconds. @throws as isa_named.
std::vector<IsaStatus> isa_statuses();

}  // namespace armillary::kernel::cpu
