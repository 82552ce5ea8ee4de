// cross_attention.cpp: one call of the kernel for each row of words, on views of the tensors of all
// rows.
#include "armillary/model/cross_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/kernel/block_attention.h"
#include "armillary/kernel/cpu_kernel.h"

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Tokens and words of one row.
struct RowOfWords {
  std::int64_t first_token;
  std::int64_t tokens;
  std::int64_t first_word;
  std::int64_t words;

  at::Tensor of_tokens(const at::Tensor& x_BLHD) const {
    return x_BLHD.narrow(1, first_token, tokens);
  }
  at::Tensor of_words(const at::Tensor& x_BNHD) const {
    return x_BNHD.narrow(1, first_word, words);
  }
};

/// Calls `see` for each row that has tokens, with the pairs of its call.
template <class See>
void for_each_row_of_words(const TokensOfRow& tokens_of_row, std::int64_t all_words,
                           const See& see) {
  if (tokens_of_row.empty()) return;
  const std::int64_t words = all_words / static_cast<std::int64_t>(tokens_of_row.size());
  RowOfWords row{.first_token = 0, .tokens = 0, .first_word = 0, .words = words};
  for (const std::int64_t tokens : tokens_of_row) {
    row.tokens = tokens;
    if (tokens > 0) {
      const plan::Mask mask = plan::full_mask({.q = tokens, .kv = words});
      see(row, kernel::Pairs{.q_runs = {plan::run_of({0, tokens})},
                             .k_runs = {plan::run_of({0, words})},
                             .mask = &mask});
    }
    row.first_token += tokens;
    row.first_word += words;
  }
}

/// Inputs of the call of a row.
kernel::Inputs inputs_of_row(const RowOfWords& row, const at::Tensor& q_BLHD,
                             const at::Tensor& k_BNHD, const at::Tensor& v_BNHD) {
  return {.q_BLHD = row.of_tokens(q_BLHD),
          .k_BLGD = row.of_words(k_BNHD),
          .v_BLGE = row.of_words(v_BNHD),
          .score = {.scale = 1 / std::sqrt(static_cast<double>(q_BLHD.size(3)))}};
}

/// Rows as autograd keeps them until backward.
struct SavedWordRows : torch::CustomClassHolder {
  explicit SavedWordRows(const TokensOfRow& of) : tokens_of_row(of) {}
  TokensOfRow tokens_of_row;
};

class WordsFunction : public torch::autograd::Function<WordsFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_BLHD,
                            const at::Tensor& k_BNHD, const at::Tensor& v_BNHD,
                            const c10::intrusive_ptr<SavedWordRows>& saved) {
    at::Tensor out_BLHD = at::empty(q_BLHD.sizes(), q_BLHD.options());
    const at::Tensor lse_BLH =
        at::empty(q_BLHD.sizes().slice(0, 3),
                  q_BLHD.options().dtype(kernel::accumulator(q_BLHD.scalar_type())));
    for_each_row_of_words(saved->tokens_of_row, k_BNHD.size(1),
                          [&](const RowOfWords& row, const kernel::Pairs& pairs) {
                            kernel::AttentionOutput result{.out_BLHE = row.of_tokens(out_BLHD),
                                                           .lse_BLH = row.of_tokens(lse_BLH)};
                            kernel::cpu_kernel().attend_all(
                                pairs, inputs_of_row(row, q_BLHD, k_BNHD, v_BNHD), {}, result);
                          });
    ctx->save_for_backward({q_BLHD, k_BNHD, v_BNHD, out_BLHD, lse_BLH});
    ctx->saved_data["rows"] = c10::IValue::make_capsule(saved);
    return out_BLHD;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list tensors = ctx->get_saved_variables();
    const at::Tensor& q_BLHD = tensors[0];
    const at::Tensor& k_BNHD = tensors[1];
    const at::Tensor& v_BNHD = tensors[2];
    const auto saved =
        c10::static_intrusive_pointer_cast<SavedWordRows>(ctx->saved_data["rows"].toCapsule());
    const at::Tensor dout_BLHD = grads[0].contiguous();
    const at::Tensor& lse_BLH = tensors[4];
    at::Tensor delta_BLH = at::empty(lse_BLH.sizes(), lse_BLH.options());
    kernel::delta(dout_BLHD, tensors[3], delta_BLH);
    const at::Tensor dq_BLHD = at::empty(q_BLHD.sizes(), q_BLHD.options());
    // No call writes words of a row without tokens.
    const at::Tensor dk_BNHD = at::zeros(k_BNHD.sizes(), k_BNHD.options());
    const at::Tensor dv_BNHD = at::zeros(v_BNHD.sizes(), v_BNHD.options());
    for_each_row_of_words(
        saved->tokens_of_row, k_BNHD.size(1),
        [&](const RowOfWords& row, const kernel::Pairs& pairs) {
          const kernel::OutputGrads upstream{.dout_BLHE = row.of_tokens(dout_BLHD),
                                             .lse_BLH = row.of_tokens(lse_BLH),
                                             .delta_BLH = row.of_tokens(delta_BLH)};
          kernel::InputGrads result{.dq_BLHD = row.of_tokens(dq_BLHD),
                                    .dk_BLGD = row.of_words(dk_BNHD),
                                    .dv_BLGE = row.of_words(dv_BNHD)};
          kernel::cpu_kernel().attend_grad_all(pairs, inputs_of_row(row, q_BLHD, k_BNHD, v_BNHD),
                                               upstream, result);
        });
    return {dq_BLHD, dk_BNHD, dv_BNHD, Variable()};
  }
};

/// A product with its heads apart.
at::Tensor heads_of_product(const at::Tensor& product_BLF, std::int64_t head_dim) {
  return product_BLF.view(
      {product_BLF.size(0), product_BLF.size(1), product_BLF.size(2) / head_dim, head_dim});
}

}  // namespace

at::Tensor attention_over_words(const at::Tensor& q_BLHD, const at::Tensor& k_BNHD,
                                const at::Tensor& v_BNHD, const TokensOfRow& tokens_of_row) {
  const auto rows = static_cast<std::int64_t>(tokens_of_row.size());
  const std::int64_t tokens =
      std::accumulate(tokens_of_row.begin(), tokens_of_row.end(), std::int64_t{0});
  ARMILLARY_CHECK(tokens == q_BLHD.size(1));
  ARMILLARY_CHECK(rows == 0 ? k_BNHD.size(1) == 0 : k_BNHD.size(1) % rows == 0);
  return WordsFunction::apply(q_BLHD, k_BNHD, v_BNHD,
                              c10::make_intrusive<SavedWordRows>(tokens_of_row));
}

at::Tensor CrossAttention::run(const at::Tensor& x_BKE, const at::Tensor& words_BNE) const {
  const auto weight = [&](const char* of) { return weights.at(name + "." + of + ".weight"); };
  const auto bias = [&](const char* of) { return weights.at(name + "." + of + ".bias"); };
  const std::int64_t head_dim = head_dim_of(options);
  EachProduct each;
  each.order = {0, 1};
  each.biases = {bias("wk"), bias("wv")};
  const auto kv = words_ops->linear(words_BNE, {weight("wk"), weight("wv")}, each);
  const at::Tensor q_BLF = ops->linear_of_norm(x_BKE, Norm{}, {weight("wq")}, {bias("wq")})[0];
  const at::Tensor out_BLHD =
      attention_over_words(heads_of_product(q_BLF, head_dim), heads_of_product(kv[0], head_dim),
                           heads_of_product(kv[1], head_dim), tokens_of_row);
  const at::Tensor product_BKE = ops->linear(out_BLHD.flatten(2), weight("wo"));
  return product_BKE + bias("wo").to(product_BKE.scalar_type());
}

}  // namespace armillary::model
