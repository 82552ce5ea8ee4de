// peak.h: measured peak rate of one thread: independent multiply-adds on registers, and nothing
// else (for AMX also the tile loads that no kernel can avoid).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "armillary/kernel/cpu/isa_kernels.h"

namespace armillary::kernel::cpu {

/// One kind of multiply-add instruction.
struct BurnUnit {
  std::string_view isa;  ///< best set (isa.h) whose kernels use it
  std::string_view instruction;
  bool bf16 = false;  ///< multiplies bf16 and adds in fp32; else fp32 only
  /// Runs the instruction in a loop of so many iterations.
  void (*burn)(std::int64_t iterations) = nullptr;
  double flops_per_iteration = 0;      ///< 2 flops a multiply-add
  std::int64_t iterations_per_ms = 0;  ///< iterations of about a millisecond
};

/// All units, best set first: tiles ("amx") of bf16, and of fp32 as three bf16 parts (amx-inl.h);
/// the bf16 dot product of vectors ("avx512_bf16"); fp32 vectors of three widths ("avx512", "avx2",
/// "portable"). A unit may only burn where its set runs.
std::span<const BurnUnit> burn_units();

/// Units that run here and that multiply `element` in the set `isa` or a lesser one, best first.
/// For bf16: tiles, bf16 dot product, fp32; else fp32 alone. The last one is always the fp32 of
/// `isa`, which must run here. @throws InvalidArgument for a set without units.
std::vector<const BurnUnit*> units_up_to(std::string_view isa, Element element);

/// GFLOP/s of the calling thread over about `seconds`, and at least a millisecond.
double measure_gflops(const BurnUnit& unit, double seconds);

/// Largest rate of each unit, in GFLOP/s, over a few windows of a tenth of a millisecond. Units
/// alternate window by window, so a disturbance of one window, or of all units, changes no order.
/// Each unit is measured once per process; later calls return the same rate. Threads: any, one at a
/// time.
std::vector<double> probe_gflops(std::span<const BurnUnit* const> units);

}  // namespace armillary::kernel::cpu
