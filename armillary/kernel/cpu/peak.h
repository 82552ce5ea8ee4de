// peak.h: the most that one thread can multiply and add, measured: nothing but independent products
// on registers (and, for AMX, the loads of tiles that no kernel can do without).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "armillary/kernel/cpu/tiles.h"

namespace armillary::kernel::cpu {

/// One kind of multiply-add instruction.
struct BurnUnit {
  std::string_view isa;  ///< The first set (isa.h) whose kernels have it.
  std::string_view instruction;
  bool bf16 = false;  ///< Multiplies bf16 into fp32, else fp32.
  void (*burn)(std::int64_t rounds) = nullptr;
  double flops_a_round = 0;      ///< 2 a multiply-add.
  std::int64_t rounds_a_ms = 0;  ///< Rounds of about a millisecond.
};

/// All units, the best set's first: tiles ("amx"), of bf16 and of fp32 in parts (amx.h), pairs of
/// bf16 ("avx512_bf16"), and fp32 in vectors of three widths ("avx512", "avx2", "portable"). A unit
/// must only burn where its set runs.
std::span<const BurnUnit> burn_units();

/// Units that the CPU has for `element` up to the set `isa`, which must run here: for bf16 tiles,
/// pairs and fp32, in this order, else fp32 alone; last is always the fp32 of `isa`.
/// @throws InvalidArgument for a set without units.
std::vector<const BurnUnit*> units_up_to(std::string_view isa, Element element);

/// GFLOP/s of this thread over about `seconds`, at least one window of a millisecond.
double measure_gflops(const BurnUnit& unit, double seconds);

/// Largest rate of each unit, in GFLOP/s, over a few windows of a tenth of a millisecond that the
/// units take in turns: a disturbance of a window, or of all units at once, changes no order. Each
/// unit is measured once per process, in about half a millisecond; later calls give the same rate.
std::vector<double> probe_gflops(std::span<const BurnUnit* const> units);

}  // namespace armillary::kernel::cpu
