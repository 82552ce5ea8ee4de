// bound_tensors.h: the operands of all ops of a program as tensors, which a run binds to memory.
//
//   tile 3 = [B, L, heads, dim] --point--> operand k of op 7: tokens 0..63, all heads
//                                          operand k of op 9: tokens 64..127, heads 2..3
//
// Tensor objects are made once per program. A run changes only their storage, offset and strides,
// so it creates no tensor and allocates nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "armillary/runtime/machine_program.h"

namespace armillary::runtime {

/// Lets an existing tensor show a part of `storage`. Sizes and strides that stay as they are, which
/// is the rule from one layer to the next, are not set again.
void show(const at::Tensor& tensor, const c10::Storage& storage, at::IntArrayRef sizes,
          at::IntArrayRef strides, std::int64_t offset);

/// Operands of one program: one tensor for each op, operand and segment. They have no memory until
/// `point` gives it to them. Threads: one; the device's threads may read them meanwhile.
class BoundTensors {
 public:
  /// `compiled` must not move and must outlive this object. All memory that is bound later lies at
  /// the device `place`.
  BoundTensors(const MachineProgram& compiled, at::Device place);

  /// Binds every operand that views a part of `tile` to its part of `memory`, the whole tile:
  /// [B, L, heads, dim] or [B, L, heads], any strides. Cost: O(operands of the tile).
  void point(int tile, const at::Tensor& memory);

  /// Binds the operands of `tile` to other storage; offsets and strides stay the same.
  void move(int tile, const c10::Storage& memory);

  /// Releases the memory of `tile`.
  void drop(int tile);

  /// Operand of an op in one segment: [B, tokens of the segment, heads of the view, dim].
  const at::Tensor& at(int op, std::size_t operand, std::size_t segment) const {
    return parts_[static_cast<std::size_t>(op)][operand][segment].tensor;
  }

 private:
  /// One segment of one view, and the tensor that shows it.
  struct BoundPart {
    at::Tensor tensor;
    const plan::LocatedView* view = nullptr;
    const plan::Segment* segment = nullptr;
  };
  at::Tensor nothing_;                                      ///< empty tensor at `place`
  std::vector<std::vector<std::vector<BoundPart>>> parts_;  ///< by op, operand, segment
  std::vector<std::vector<BoundPart*>> of_tile_;            ///< by tile: its parts in all operands
};

}  // namespace armillary::runtime
