// cross_entropy.cpp: loss and gradients in one pass over chunks of tokens. Each chunk's logits
// become probabilities, then in the same memory the gradient of the logits, from which the
// gradients of x and of the weight are added up. Backward only scales them. Over ranks, each has
// the logits of its words, and sums go over all.
#include "armillary/model/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/model/global_range.h"
#include "armillary/model/linear.h"
#include "armillary/model/narrow_parameters.h"

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
        with_gradients_(with_gradients),
        mine_{0, x_NE.size(0)} {
    if (options.ranks)
      mine_ = even_part(x_NE.size(0), options.ranks->index(), options.ranks->ranks());
    if (!with_gradients) return;
    dx_NE = at::empty_like(x_NE);
    dweight_VE = at::zeros(weight_VE.sizes(), gradient_dtype(weight_VE));
  }

  /// Adds the chunk whose first token is token `begin` of all.
  void add(std::int64_t begin, const at::Tensor& x_CE, const at::Tensor& labels_C) {
    at::Tensor dlogits_CV = add_loss(begin, logits_of(x_CE), labels_C);
    if (!with_gradients_) return;

    // The gradient of the logits is 0 for ignored tokens.
    dlogits_CV.mul_(labels_C.ne(options_.ignored_label).unsqueeze(1));
    dlogits_CV = dlogits_CV.to(x_CE.scalar_type());
    dx_NE.narrow(0, begin, x_CE.size(0))
        .copy_(multiply(dlogits_CV, rounded_VE_, options_.native_bf16));
    add_product(dweight_VE, dlogits_CV.t(), x_CE, options_.native_bf16);
  }

  at::Tensor loss = at::zeros({}, at::kDouble);
  at::Tensor dx_NE;
  at::Tensor dweight_VE;

 private:
  /// Rounded to the dtype of x, in the dtype of the softmax.
  at::Tensor logits_of(const at::Tensor& x_CE) const {
    const at::ScalarType dtype = x_CE.scalar_type();
    const at::Tensor logits_CV = multiply(x_CE, rounded_VE_.t(), options_.native_bf16).to(dtype);
    return dtype == at::kBFloat16 ? logits_CV.to(at::kFloat) : logits_CV;
  }

  /// Adds the loss of a chunk. Gives the gradient of its logits, softmax - onehot, in their memory.
  /// Over ranks, a label that is not among the words of this one has column 0, and 0 as its term in
  /// the sums and in the gradient; so has an ignored one.
  at::Tensor add_loss(std::int64_t begin, const at::Tensor& logits_CV, const at::Tensor& labels_C) {
    const at::Tensor ignored_CO = labels_C.eq(options_.ignored_label).unsqueeze(1);
    const at::Tensor word_CO = labels_C.unsqueeze(1) - options_.first_word;
    at::Tensor elsewhere_CO = ignored_CO;
    if (options_.ranks) {
      elsewhere_CO = word_CO.lt(0).logical_or(word_CO.ge(logits_CV.size(1))).logical_or(ignored_CO);
    }
    const at::Tensor column_CO = word_CO.masked_fill(elsewhere_CO, 0);

    // Probabilities: exp of the distance to the largest logit, over the sum of all. Not softmax of
    // ATen: it adds the exps of many words one by one, which loses those that are small.
    const at::Tensor largest_CO = logits_CV.amax({1}, /*keepdim=*/true);
    if (options_.ranks) options_.ranks->all_reduce_max(largest_CO);
    logits_CV.sub_(largest_CO);
    const at::Tensor label_CO = logits_CV.gather(1, column_CO).masked_fill(elsewhere_CO, 0);
    logits_CV.exp_();
    const at::Tensor sums = at::cat({logits_CV.sum(1, /*keepdim=*/true), label_CO}, 1);
    if (options_.ranks) options_.ranks->all_reduce_sum(sums);
    const at::Tensor sum_CO = sums.narrow(1, 0, 1);

    // The loss of the tokens that this rank counts.
    const at::Tensor losses_CO = (sum_CO.log() - sums.narrow(1, 1, 1)).masked_fill(ignored_CO, 0);
    const std::int64_t first = std::max(begin, mine_.begin);
    const std::int64_t end = std::min(begin + labels_C.size(0), mine_.begin + mine_.size);
    if (first < end) loss += losses_CO.narrow(0, first - begin, end - first).sum(at::kDouble);
    if (!with_gradients_) return {};

    return logits_CV.div_(sum_CO).scatter_add_(
        1, column_CO, elsewhere_CO.logical_not().to(logits_CV.scalar_type()).neg());
  }

  CrossEntropyOptions options_;
  at::Tensor rounded_VE_;
  bool with_gradients_;
  EvenPart mine_;  ///< Tokens whose loss this rank returns.
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
