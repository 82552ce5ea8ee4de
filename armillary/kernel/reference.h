// reference.h: attention by ATen ops, the kernel that other kernels are tested against.
//
// It takes every dtype and shape and multiplies in the accumulator dtype only. It works mask tile
// by mask tile (mask_tiles.h), so a call needs about 3 MiB of temporary memory in fp32 for any
// length, and about 4 MiB more with every feature. K and V are never repeated for the query heads
// that share them. It uses ATen only, so it runs on any device; tests/gpu runs it on a GPU.
#pragma once

#include "armillary/kernel/block_attention.h"

namespace armillary::kernel {

/// The one reference kernel. Stateless; lives as long as the program.
const Kernel& reference();

}  // namespace armillary::kernel
