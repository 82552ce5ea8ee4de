// reference.h: block attention in ATen: the kernel that others are tested against, kept for ever.
//
// Takes every dtype and any shape, and multiplies in the accumulator dtype only: a bf16 matrix
// product rounds every block, and is 50 times slower on a CPU without BF16. Works patch by patch
// (patches.h), so a call needs about 3 MiB of its own in fp32 whatever the length (some 4 MiB more
// with every feature on); K and V are never repeated for the query heads that share them. Nothing
// but ATen, hence any device in principle; tested on CPU.
#pragma once

#include "armillary/kernel/block_attention.h"

namespace armillary::kernel {

/// The one reference kernel. Stateless; lives as long as the program.
const Kernel& reference();

}  // namespace armillary::kernel
