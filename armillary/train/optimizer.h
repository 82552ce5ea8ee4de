// optimizer.h: AdamW on replicas that stay equal because their gradients are summed over the ranks.
//
//   zero_gradients -> backward (adds into `gradients`) -> sum over ranks -> clip -> step
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "armillary/train/recipe.h"

namespace armillary::train {

/// Owns the gradients of all parameters as one flat fp32 buffer: `.grad` of each parameter is a
/// view into it, so the sum over ranks is one collective and the norm is one pass. One per rank.
class Optimizer {
 public:
  /// `parameters`: fp32 leaves on the CPU. Memory: 4 bytes (gradient) + 8 bytes (AdamW) each.
  Optimizer(std::vector<at::Tensor> parameters, const Recipe::Optimizer& options);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void zero_gradients();

  /// All gradients, in the order of the parameters. Valid as long as the optimizer.
  std::span<float> gradients();

  /// Scales the gradients so that their norm is at most `max_norm` (as torch's clip_grad_norm_
  /// does). Returns the norm before, summed in fp64 in one fixed order: equal on ranks with equal
  /// gradients.
  double clip(double max_norm);

  /// One step of AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2) at this rate, in
  /// one pass over memory.
  void step(double lr);

 private:
  Recipe::Optimizer options_;
  std::vector<at::Tensor> parameters_;
  at::Tensor gradients_;
  // By parameter: views of one flat buffer each.
  std::vector<at::Tensor> parameter_gradients_;
  std::vector<at::Tensor> means_;
  std::vector<at::Tensor> squares_;
  std::int64_t steps_ = 0;
};

}  // namespace armillary::train
