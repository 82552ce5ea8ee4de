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

/// Whether the code without tensors takes it: [B, L, H, E] of fp32, bf16 or fp16 on the CPU, with
/// rows. Requires a dtype that kernels take.
bool is_block(const at::Tensor& x);

cpu::Element element_of(at::ScalarType dtype);
cpu::RowShape shape_of(const at::Tensor& x_BLHE);
cpu::Input input_of(const at::Tensor& x_BLHE);

/// A tensor [B, L, H, E] that is only written.
cpu::Result result_of(const at::Tensor& x_BLHE);

/// An fp32 tensor [B, L, H] or [B, L, H, E].
cpu::Output output_of(const at::Tensor& x);

}  // namespace armillary::kernel
