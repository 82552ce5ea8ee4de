// cpu_views.h: converts tensors and ATen's threads to the types of the CPU kernel, which does not
// know libtorch (kernel/cpu/).
#pragma once

#include <ATen/core/Tensor.h>

#include "armillary/kernel/cpu/attention_args.h"
#include "armillary/kernel/cpu/row_ops.h"

namespace armillary::kernel {

/// A team of ATen's intra-op threads of the calling thread, as many as `flops` of work keep busy.
/// One thread inside a parallel region of ATen.
cpu::Team intra_op_team(double flops);

/// Whether the elements of a row are contiguous: the last dim has at most one element or stride 1.
bool has_rows(const at::Tensor& x);

/// Whether row ops of the CPU kernel take this tensor: [B, L, H, E] of fp32, bf16 or fp16 on the
/// CPU with contiguous rows. Requires a dtype that kernels take.
bool suits_row_ops(const at::Tensor& x);

/// Conversions. They require suits_row_ops(), or for [B, L, H] the same with rows of one element.
cpu::Element element_of(at::ScalarType dtype);
cpu::RowShape shape_of(const at::Tensor& x_BLHE);
cpu::Input input_of(const at::Tensor& x_BLHE);

/// A result [B, L, H, E] that a call only writes, rounded to the dtype of the tensor.
cpu::RoundedOutput result_of(const at::Tensor& x_BLHE);

/// An fp32 accumulator [B, L, H] or [B, L, H, E].
cpu::Output output_of(const at::Tensor& x);

}  // namespace armillary::kernel
