// row_ops.h: operations on rows of tensors of one shape, without tensors: merging, adding, deltas.
//
// The contracts are those of kernel::Kernel (block_attention.h).
#pragma once

#include <cstdint>

#include "armillary/kernel/cpu/attention_args.h"

namespace armillary::kernel::cpu {

/// Shape of all tensors of a row op. Log-sum-exps and deltas have the same shape with rows of one
/// element.
struct RowShape {
  std::int64_t batch = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  int width = 0;
};

/// Arguments of kernel::merge: (out, lse) is updated, (other_out, other_lse) is only read.
struct MergeArgs {
  RowShape shape;
  Output out;
  Output lse;
  Input other_out;
  Element other_element = Element::Float32;
  Output other_lse;
};
void merge(const IsaKernels& isa, const Team& team, const MergeArgs& call);

/// Arguments of kernel::add: sum += part.
struct AddArgs {
  RowShape shape;
  Output sum;
  Input part;
  Element part_element = Element::Float32;
};
void add(const IsaKernels& isa, const Team& team, const AddArgs& call);

/// Arguments of kernel::delta: delta = rowsum(dout * out).
struct DeltaArgs {
  RowShape shape;
  Input dout;
  Input out;
  Element element = Element::Float32;  ///< dtype of dout and out
  Output delta;
};
void delta(const IsaKernels& isa, const Team& team, const DeltaArgs& call);

}  // namespace armillary::kernel::cpu
