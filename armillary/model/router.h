// router.h: the choice of experts for each token, and what keeps it balanced.
//
//   x_TE --gate, fp32--> scores_TX --+ bias--> top k: experts_TK --> scores of these: weights_TK
//                             '-- counts of all ranks --> gradients of scores and of the bias
//
// Ties go to the expert of the lowest number, so any two runs choose the same. The balance adds
// gradients alone: neither the choice nor the loss that is returned changes by it, and a pass
// without backward, or one that is computed again, leaves nothing behind.
//
//   T tokens of this rank, E dim, X experts, K experts of a token
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "armillary/model/expert_parallel.h"
#include "armillary/model/moe_options.h"

namespace armillary::model {

/// Experts of each token, best first, and their weights: fp32, of fp64 in fp64, with a graph.
struct Routes {
  at::Tensor experts_TK;  ///< int64.
  at::Tensor weights_TK;
};

struct RouterWeights {
  at::Tensor gate_XE;
  /// Undefined without load_balance_coeff. Its gradient is X times the tokens of an expert less the
  /// tokens of all: above 0 for one that has more than the mean.
  at::Tensor bias_X = {};
};

/// The ranks and sequences that a balance is about.
struct RouterPlace {
  std::shared_ptr<ExpertParallel> ranks = {};  ///< Null: this rank alone.
  SequencesOfPass sequences = {};              ///< Those of the T tokens.
};

/// With router_aux_loss_coef, and where gradients are recorded, collective over the ranks that
/// share a sequence, or over all.
Routes route(const at::Tensor& x_TE, const RouterWeights& weights, const MoeOptions& options,
             const RouterPlace& place);

/// `carrier` itself; its backward also gives `gradient` to `of`. Differentiable in both.
at::Tensor with_gradient(const at::Tensor& carrier, const at::Tensor& of,
                         const at::Tensor& gradient);

}  // namespace armillary::model
