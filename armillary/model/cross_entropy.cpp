// cross_entropy.cpp: loss and gradients in one pass over chunks of tokens. Each chunk's logits
// become log-probabilities, then in the same memory the gradient of the logits, from which the
// gradients of x and of the weight are added up. Backward only scales them.
#include "armillary/model/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/model/linear.h"

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Loss and gradients, summed chunk by chunk.
/// C: tokens of the chunk; O: one column.
class ChunkedLoss {
 public:
  ChunkedLoss(const at::Tensor& x_NE, const at::Tensor& weight_VE,
              const CrossEntropyOptions& options, bool with_gradients)
      : options_(options),
        rounded_VE_(weight_VE.to(x_NE.scalar_type())),
        with_gradients_(with_gradients) {
    if (!with_gradients) return;
    dx_NE = at::empty_like(x_NE);
    dweight_VE = at::zeros_like(weight_VE);
  }

  /// Adds the chunk whose first token is token `begin` of all.
  void add(std::int64_t begin, const at::Tensor& x_CE, const at::Tensor& labels_C) {
    // Log-probabilities of all labels.
    const at::ScalarType dtype = x_CE.scalar_type();
    at::Tensor log_p_CV = multiply(x_CE, rounded_VE_.t(), options_.native_bf16).to(dtype);
    if (dtype == at::kBFloat16) log_p_CV = log_p_CV.to(at::kFloat);
    log_p_CV = at::log_softmax(log_p_CV, 1);

    // The loss: those of the given labels. An ignored label is replaced by 0, and its term by 0.
    const at::Tensor counts_CO = labels_C.ne(options_.ignored_label).unsqueeze(1);
    const at::Tensor column_CO = labels_C.unsqueeze(1).masked_fill(counts_CO.logical_not(), 0);
    const at::Tensor label_log_p_CO = log_p_CV.gather(1, column_CO);
    loss -= label_log_p_CO.masked_fill(counts_CO.logical_not(), 0).sum(at::kDouble);
    if (!with_gradients_) return;

    // Gradient of the logits: softmax - onehot, in place, and 0 for ignored tokens.
    at::Tensor dlogits_CV = log_p_CV.exp_();
    dlogits_CV.scatter_add_(1, column_CO, at::full_like(column_CO, -1, dlogits_CV.options()));
    dlogits_CV.mul_(counts_CO);
    dlogits_CV = dlogits_CV.to(dtype);

    dx_NE.narrow(0, begin, x_CE.size(0))
        .copy_(multiply(dlogits_CV, rounded_VE_, options_.native_bf16));
    add_product(dweight_VE, dlogits_CV.t(), x_CE, options_.native_bf16);
  }

  at::Tensor loss = at::zeros({}, at::kDouble);
  at::Tensor dx_NE;
  at::Tensor dweight_VE;

 private:
  CrossEntropyOptions options_;
  at::Tensor rounded_VE_;
  bool with_gradients_;
};

/// Arguments of one call that are no tensors.
struct CrossEntropyCall {
  CrossEntropyOptions options;
  bool with_gradients;  ///< x or the weight requires a gradient.
};

class CrossEntropyFunction : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_NE,
                            const at::Tensor& weight_VE, const at::Tensor& labels_N,
                            const CrossEntropyCall& call) {
    ChunkedLoss sums(x_NE, weight_VE, call.options, call.with_gradients);
    const std::int64_t chunk_tokens = call.options.chunk_tokens;
    for (std::int64_t begin = 0; begin < x_NE.size(0); begin += chunk_tokens) {
      const std::int64_t count = std::min(chunk_tokens, x_NE.size(0) - begin);
      sums.add(begin, x_NE.narrow(0, begin, count), labels_N.narrow(0, begin, count));
    }
    if (call.with_gradients) ctx->save_for_backward({sums.dx_NE, sums.dweight_VE});
    return sums.loss;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list gradients = ctx->get_saved_variables();
    return {gradients[0] * grads[0], gradients[1] * grads[0], Variable(), Variable()};
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& x_NE, const at::Tensor& weight_VE,
                         const at::Tensor& labels_N, const CrossEntropyOptions& options) {
  if (options.chunk_tokens < 1) {
    fail<InvalidArgument>("cross_entropy: chunks of {} tokens; at least 1 is required",
                          options.chunk_tokens);
  }
  const bool with_gradients =
      at::GradMode::is_enabled() && (x_NE.requires_grad() || weight_VE.requires_grad());
  return CrossEntropyFunction::apply(x_NE, weight_VE, labels_N,
                                     CrossEntropyCall{options, with_gradients});
}

}  // namespace armillary::model
