// cpu_views.h: tensors and ATen's threads as the code without tensors (cpu/block.h) takes them.
#pragma once

#include <ATen/core/Tensor.h>

#include "armillary/kernel/cpu/block.h"

namespace armillary::kernel {

/// ATen's intra-op threads of the calling thread, as many as `flops` of work keep busy; one within
/// a parallel region of ATen.
cpu::Team intra_op_team(double flops);

/// Whether elements of a row are neighbours.
bool has_rows(const at::Tensor& x);

/// An fp32 tensor [B, L, H] or [B, L, H, E].
cpu::Output output_of(const at::Tensor& x);

}  // namespace armillary::kernel
