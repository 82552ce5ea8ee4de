// isa_choice.h: the rule that takes one of the compiled sets, and its reasons.
//
// Sets are taken by the rate that the core has in them, not by their name: pairs of bf16
// (vdpbf16ps) are twice as fast as fp32 on one CPU and half as fast on the next, and no flag of a
// CPU says which. So the rates are probed, and only where there is something to decide: nothing
// beats tiles (amx), and sets without pairs multiply bf16 as fp32.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/kernel/cpu/tiles.h"

namespace armillary::kernel::cpu {

/// One compiled set, before one is taken.
struct IsaFacts {
  std::string_view name;
  std::string missing;  ///< Reason why it does not run here; empty if it does.
  // Rates of its own instructions for fp32 and for bf16, one thread; 0 if nobody measured them.
  double fp32_gflops = 0;
  double bf16_gflops = 0;
};

/// Index of the first of `sets`, given best first, that runs here and whose bf16 is not slower than
/// its fp32, as far as both were measured. At least one set must be such.
std::size_t choose_isa(std::span<const IsaFacts> sets);

/// One set for one dtype.
struct IsaUse {
  double gflops = 0;  ///< Peak of one thread in what its kernels multiply; 0 if not measured.
  bool taken = false;
  std::string why;  ///< Or why not.
};

struct IsaReport {
  std::string_view name;
  std::string missing;                 ///< Reason why it does not run here; empty if it does.
  std::array<IsaUse, kElements> uses;  ///< By Element.
};

/// Reasons for sets[taken], and against the others. `forced`: the environment named it.
std::vector<IsaReport> explain(std::span<const IsaFacts> sets, std::size_t taken, bool forced);

}  // namespace armillary::kernel::cpu
