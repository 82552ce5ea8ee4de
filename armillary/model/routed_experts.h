// routed_experts.h: tokens at the experts that a router has chosen, over the ranks along ep.
//
//   rows of half A   dispatch |   experts   | combine             |
//   rows of half B   dispatch ......        |   experts   | combine
//                       beside               rows of B come, of A go back
//
// The tokens of a rank are cut into two halves where rows travel: those of one half are on their
// way while experts compute the other, in backward too. Autograd runs nodes that are ready from the
// last to the first, so backward is the mirror image without a word about it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "armillary/model/expert_parallel.h"
#include "armillary/model/experts.h"
#include "armillary/model/router.h"

namespace armillary::model {

struct RoutedExpertsOptions {
  std::int64_t num_experts = 0;
  std::shared_ptr<ExpertParallel> ranks = {};  ///< Null: this rank alone, which has all experts.
  bool native_bf16 = true;                     ///< See LinearOptions of linear.h.
  std::function<void()> beside = {};           ///< Work without rows, while the first ones travel.
};

/// The sum of each token's experts times their weights: [T, E]. Differentiable; collective over the
/// ranks, in backward too. Two runs have the same bits; one rank and several differ by rounding.
at::Tensor routed_experts(const at::Tensor& x_TE, const Routes& routes,
                          const ExpertWeights& weights, const RoutedExpertsOptions& options);

}  // namespace armillary::model
