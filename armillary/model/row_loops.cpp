// The choice follows that of the attention kernels, so ARMILLARY_ISA decides both.
#include "armillary/model/row_loops.h"

#include "armillary/kernel/cpu/isa.h"

namespace armillary::model {

#if defined(__x86_64__)
namespace avx2 {
extern const RowLoopSet kRowLoops;
}
#endif
namespace portable {
extern const RowLoopSet kRowLoops;
}

namespace {

const RowLoopSet& choose_row_loops() {
#if defined(__x86_64__)
  if (kernel::cpu::current_isa().avx2) return avx2::kRowLoops;
#endif
  return portable::kRowLoops;
}

}  // namespace

const RowLoopSet& row_loop_set() {
  static const RowLoopSet& set = choose_row_loops();
  return set;
}

}  // namespace armillary::model
