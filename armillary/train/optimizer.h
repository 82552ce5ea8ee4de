// optimizer.h: AdamW on replicas that stay equal because their gradients are summed over the ranks.
//
//   store: zero_gradients -> backward (adds into them) -> sum over ranks;  optimizer: clip -> step
#pragma once

#include <cstdint>

#include "armillary/train/parameter_store.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// AdamW of all parameters of a store, which must outlive it. One per rank.
class Optimizer {
 public:
  Optimizer(ParameterStore& store, const Recipe::Optimizer& options);

  /// Scales the gradients so that their norm is at most `max_norm` (as torch's clip_grad_norm_
  /// does). Returns the norm before, summed in fp64 in one fixed order: equal on ranks with equal
  /// gradients.
  double clip(double max_norm);

  /// One step of AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2) at this rate, in
  /// one pass over memory.
  void step(double lr);

 private:
  ParameterStore& store_;
  Recipe::Optimizer options_;
  std::int64_t steps_ = 0;
};

}  // namespace armillary::train
