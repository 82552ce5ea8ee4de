// operands.h: the operands of all ops of a program as tensors, made once and pointed at memory for
// each run: a run makes no tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "armillary/runtime/compiled_program.h"

namespace armillary::runtime {

/// Holds tensors without memory until `point` gives it. One thread.
class Operands {
 public:
  /// `compiled` must stay where it is. All memory that is pointed at lies at `place`.
  Operands(const CompiledProgram& compiled, at::Device place);

  /// Lets every operand that shows some of `tile` show it in `memory`: [B, L, heads, dim] or
  /// [B, L, heads] by any strides.
  void point(int tile, const at::Tensor& memory);

  /// The same places, in other memory.
  void move(int tile, const c10::Storage& memory);

  /// Lets go of the memory of `tile`.
  void drop(int tile);

  /// [B, tokens of the segment, heads of the view, dim]
  const at::Tensor& at(int op, std::size_t operand, std::size_t segment) const {
    return parts_[static_cast<std::size_t>(op)][operand][segment].tensor;
  }

 private:
  struct Part {
    at::Tensor tensor;
    const plan::LocatedView* view = nullptr;
    const plan::Segment* segment = nullptr;
  };
  at::Tensor nothing_;                                 ///< No memory, at the place.
  std::vector<std::vector<std::vector<Part>>> parts_;  ///< By op, operand, segment.
  std::vector<std::vector<Part*>> of_tile_;
};

}  // namespace armillary::runtime
