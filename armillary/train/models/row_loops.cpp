// row_loops.cpp: chooses one of the compiled sets.
#include "armillary/train/models/row_loops.h"

#include "armillary/kernel/cpu/cpu_flags.h"

namespace armillary::train {

#if defined(__x86_64__)
namespace avx2 {
extern const RowLoopSet kRowLoops;
}
#endif
namespace portable {
extern const RowLoopSet kRowLoops;
}

namespace {

/// AVX2 by the CPU flags that the kernels are chosen by. ARMILLARY_ISA has no effect: the bits of
/// both sets are the same.
const RowLoopSet& choose_row_loops() {
#if defined(__x86_64__)
  if (kernel::cpu::missing_for("avx2").empty()) return avx2::kRowLoops;
#endif
  return portable::kRowLoops;
}

}  // namespace

const RowLoopSet& row_loop_set() {
  static const RowLoopSet& set = choose_row_loops();
  return set;
}

}  // namespace armillary::train
