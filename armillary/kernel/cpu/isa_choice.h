// isa_choice.h: the rule that chooses one of the compiled sets, and its reasons.
//
// Sets are chosen by the rate of the core, not by name: the bf16 dot product of vectors (vdpbf16ps)
// is twice as fast as fp32 on one CPU and half as fast on the next, and no CPUID flag tells which.
// Rates are probed only where they decide: tiles (amx) always win, and sets without a bf16 dot
// product multiply bf16 as fp32.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/kernel/cpu/isa_kernels.h"

namespace armillary::kernel::cpu {

/// Facts about one compiled set, known before the choice.
struct IsaFacts {
  std::string_view name;
  /// Reason why the set does not run here; empty if it does.
  std::string missing;
  /// Rates of one thread in the instructions of the set; 0 if not measured.
  double fp32_gflops = 0;
  double bf16_gflops = 0;
};

/// Index of the first set, best first, that runs here and whose bf16 rate is not below its fp32
/// rate, as far as both were measured. At least one set must qualify. Example: [amx missing,
/// avx512_bf16 at 90 and 160 GFLOP/s in bf16 and fp32, avx512, ..] gives 2.
std::size_t choose_isa(std::span<const IsaFacts> sets);

/// One set and one dtype, as `armillary doctor` prints them.
struct IsaUse {
  /// Peak of one thread in the instruction that the set multiplies this dtype with; 0 if not
  /// measured.
  double gflops = 0;
  bool taken = false;
  std::string why;  ///< reason for the choice, or against the set
};

/// One set after the choice.
struct IsaStatus {
  std::string_view name;
  std::string missing;                 ///< as in IsaFacts
  std::array<IsaUse, kElements> uses;  ///< indexed by Element
};

/// Reasons for sets[taken] and against the others. `forced`: the environment named the set.
std::vector<IsaStatus> explain(std::span<const IsaFacts> sets, std::size_t taken, bool forced);

}  // namespace armillary::kernel::cpu
