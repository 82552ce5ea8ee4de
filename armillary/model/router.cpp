// router.cpp: scores and weights by ATen and its autograd; the balance by an autograd function that
// passes its first argument on.
#include "armillary/model/router.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>

#include "armillary/model/narrow_parameters.h"

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

class WithGradient : public torch::autograd::Function<WithGradient> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& carrier, const at::Tensor&,
                            const at::Tensor& gradient) {
    ctx->save_for_backward({gradient});
    return carrier.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0], ctx->get_saved_variables()[0], Variable()};
  }
};

/// Pairs of (token, expert) by sequence and expert, fp64.
at::Tensor counts_of(const at::Tensor& experts_TK, std::int64_t experts,
                     const SequencesOfPass& sequences, std::int64_t groups) {
  at::Tensor key_TK = experts_TK;
  if (groups > 1) key_TK = key_TK + sequences.number_L.unsqueeze(1) * experts;
  return at::bincount(key_TK.flatten(), {}, groups * experts)
      .view({groups, experts})
      .to(at::kDouble);
}

/// The gradient of the balance loss in the scores of all tokens: that of the mean score, with the
/// shares as numbers.
at::Tensor balance_gradient(const at::Tensor& experts_TK, const at::Tensor& scores_TX,
                            const MoeOptions& options, const RouterPlace& place) {
  const bool by_sequence = options.balance_over == BalanceGroup::Sequence;
  const SequencesOfPass& sequences = place.sequences;
  const std::int64_t groups = by_sequence ? sequences.count : 1;
  const at::Tensor counts_SX = counts_of(experts_TK, options.num_experts, sequences, groups);
  if (place.ranks) place.ranks->sum(counts_SX, options.balance_over);
  const at::Tensor pairs_SX = counts_SX.sum(1, /*keepdim=*/true).clamp_min(1);
  const double share = by_sequence ? sequences.sequence_share : sequences.pass_share;
  // f = counts / pairs; P has 1 / tokens of each score, and pairs are K a token.
  const double factor = options.router_aux_loss_coef * share *
                        static_cast<double>(options.num_experts * options.top_k);
  const at::Tensor pull_SX = (counts_SX / pairs_SX / pairs_SX * factor).to(scores_TX.scalar_type());
  return groups > 1 ? pull_SX.index_select(0, sequences.number_L) : pull_SX.expand_as(scores_TX);
}

}  // namespace

at::Tensor with_gradient(const at::Tensor& carrier, const at::Tensor& of,
                         const at::Tensor& gradient) {
  return WithGradient::apply(carrier, of, gradient);
}

Routes route(const at::Tensor& x_TE, const RouterWeights& weights, const MoeOptions& options,
             const RouterPlace& place) {
  // Scores, in fp32 whatever the dtype of x.
  const at::Tensor gate_XE = widened(weights.gate_XE);
  const at::Tensor logits_TX = at::linear(x_TE.to(gate_XE.scalar_type()), gate_XE);
  const bool is_softmax = options.score == RouterScore::Softmax;
  const at::Tensor scores_TX = is_softmax ? at::softmax(logits_TX, 1) : at::sigmoid(logits_TX);
  // The choice: a stable sort leaves equal scores in the order of the experts.
  at::Tensor experts_TK;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor biased_TX = weights.bias_X.defined()
                                     ? scores_TX + weights.bias_X.to(scores_TX.scalar_type())
                                     : scores_TX;
    experts_TK = std::get<1>(at::sort(biased_TX, /*stable=*/true, /*dim=*/1, /*descending=*/true))
                     .narrow(1, 0, options.top_k)
                     .contiguous();
  }
  // Scores of sigmoid may all be 0; a sum that is not stays the same.
  const auto shares = [](const at::Tensor& scores) {
    return scores / (scores.sum(1, /*keepdim=*/true) + 1e-20);
  };
  at::Tensor weights_TK = scores_TX.gather(1, experts_TK);
  if (options.route_norm) weights_TK = shares(weights_TK);
  if (options.route_scale != 1) weights_TK = weights_TK * options.route_scale;
  // The balance, which has gradients alone.
  if (!at::GradMode::is_enabled()) return {experts_TK, weights_TK};
  if (options.router_aux_loss_coef > 0) {
    const at::Tensor shares_TX = is_softmax ? scores_TX : shares(scores_TX);
    weights_TK = with_gradient(weights_TK, shares_TX,
                               balance_gradient(experts_TK, shares_TX, options, place));
  }
  if (weights.bias_X.defined()) {
    const at::Tensor counts_X =
        counts_of(experts_TK, options.num_experts, place.sequences, 1).flatten();
    const at::Tensor excess_X =
        counts_X * static_cast<double>(options.num_experts) - counts_X.sum();
    weights_TK =
        with_gradient(weights_TK, weights.bias_X, excess_X.to(gradient_dtype(weights.bias_X)));
  }
  return {experts_TK, weights_TK};
}

}  // namespace armillary::model
