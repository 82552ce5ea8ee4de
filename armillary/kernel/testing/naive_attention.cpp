// Scores, softmax and the sum of values are ATen ops over whole matrices of S x S, which autograd
// differentiates; mask and dropout are asked entry by entry. Rows without a key get finite scores
// for the softmax and then weights of 0.
#include "armillary/kernel/testing/naive_attention.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>

#include <cmath>
#include <limits>

#include "armillary/kernel/vector_math.h"

namespace armillary::kernel {

Sequences random_sequences(const Sizes& sizes, const plan::Mask& mask, at::ScalarType dtype,
                           std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  const auto normal = [&](std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
    return at::randn({sizes.batch, tokens, heads, dim}, generator, at::kDouble).to(dtype);
  };
  return {.q_BSHD = normal(mask.q_len(), sizes.heads, sizes.head_dim),
          .k_BSGD = normal(mask.kv_len(), sizes.kv_heads, sizes.head_dim),
          .v_BSGE = normal(mask.kv_len(), sizes.kv_heads, sizes.value_dim),
          .dout_BSHE = normal(mask.q_len(), sizes.heads, sizes.value_dim)};
}

at::Tensor hidden_matrix(const plan::Mask& mask) {
  at::Tensor hidden_QK = at::empty({mask.q_len(), mask.kv_len()}, at::kBool);
  bool* entry = hidden_QK.data_ptr<bool>();
  for (std::int64_t q = 0; q < mask.q_len(); ++q) {
    for (std::int64_t k = 0; k < mask.kv_len(); ++k) *entry++ = !mask.visible(q, k);
  }
  return hidden_QK;
}

namespace {

/// |k - q| of every pair, counted from the last query and the last key.
at::Tensor distances(const plan::Mask& mask) {
  const at::Tensor from_end_Q = at::arange(mask.q_len() - 1, -1, -1, at::kDouble);
  const at::Tensor from_end_K = at::arange(mask.kv_len() - 1, -1, -1, at::kDouble);
  return (from_end_Q.unsqueeze(1) - from_end_K).abs();
}

at::Tensor kept_matrix(const Dropout& dropout, at::IntArrayRef sizes_BHQK) {
  at::Tensor kept_BHQK = at::empty(sizes_BHQK, at::kDouble);
  double* entry = kept_BHQK.data_ptr<double>();
  for (std::int64_t b = 0; b < sizes_BHQK[0]; ++b) {
    for (std::int64_t h = 0; h < sizes_BHQK[1]; ++h) {
      const DropoutStream stream(dropout, b, h);
      for (std::int64_t q = 0; q < sizes_BHQK[2]; ++q) {
        for (std::int64_t k = 0; k < sizes_BHQK[3]; ++k) *entry++ = stream.drops(q, k) ? 0 : 1;
      }
    }
  }
  return kept_BHQK / (1 - dropout.p);
}

/// Scores of all pairs, hidden ones included. tanh is written as a sigmoid, unlike in the kernels.
at::Tensor logits_of(const at::Tensor& q_BHQD, const at::Tensor& k_BHKD, const plan::Mask& mask,
                     const Score& score) {
  at::Tensor logits_BHQK = score.scale * q_BHQD.matmul(k_BHKD.transpose(-2, -1));
  if (score.softcap) {
    const double cap = *score.softcap;
    logits_BHQK = cap * (2 * (2 / cap * logits_BHQK).sigmoid() - 1);
  }
  if (score.alibi_slopes_H.defined()) {
    const at::Tensor slopes = score.alibi_slopes_H.to(at::kDouble).view({-1, 1, 1});
    logits_BHQK = logits_BHQK - slopes * distances(mask);
  }
  return logits_BHQK;
}

at::Tensor max_of(const at::Tensor& shown_BHQK) {
  const at::Tensor by_head = shown_BHQK.transpose(0, 1).flatten(1);
  const double none = -std::numeric_limits<double>::infinity();
  if (by_head.size(1) == 0) return at::full({by_head.size(0)}, none, at::kDouble);
  return by_head.amax(1);
}

}  // namespace

Results naive_attention(const Sequences& sequences, const plan::Mask& mask, const Score& score,
                        const at::Tensor& sinks_H) {
  const auto leaf = [](const at::Tensor& x) {
    return x.detach().to(at::kDouble).clone().requires_grad_();
  };
  choose_vector_math();
  const at::Tensor q = leaf(sequences.q_BSHD);
  const at::Tensor k = leaf(sequences.k_BSGD);
  const at::Tensor v = leaf(sequences.v_BSGE);
  // Without sinks the column of sinks is -inf, which changes nothing.
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor sinks =
      leaf(sinks_H.defined() ? sinks_H : at::full({q.size(2)}, -inf, at::kDouble));
  const std::int64_t group = k.size(2) == 0 ? 1 : q.size(2) / k.size(2);
  const auto by_head = [](const at::Tensor& x_BSHX) { return x_BSHX.transpose(1, 2); };

  const at::Tensor hidden_QK = hidden_matrix(mask);
  const at::Tensor logits_BHQK =
      logits_of(by_head(q), by_head(k.repeat_interleave(group, 2)), mask, score);
  const at::Tensor sink_BHQI =
      sinks.view({1, -1, 1, 1})
          .expand({logits_BHQK.size(0), logits_BHQK.size(1), logits_BHQK.size(2), 1});
  const at::Tensor shown_BHQK = logits_BHQK.detach().masked_fill(hidden_QK, -inf);
  const at::Tensor lse_BHQ = at::cat({shown_BHQK, sink_BHQI.detach()}, -1).logsumexp(-1);

  // Rows in which every logit is -inf get finite logits for the softmax: otherwise its gradient
  // would be NaN.
  const at::Tensor empty_BHQI = (lse_BHQ == -inf).unsqueeze(-1);
  const at::Tensor columns =
      at::cat({logits_BHQK.masked_fill(hidden_QK & ~empty_BHQI, -inf), sink_BHQI}, -1);
  at::Tensor weights_BHQK = columns.masked_fill(empty_BHQI, 0)
                                .softmax(-1)
                                .narrow(-1, 0, mask.kv_len())
                                .masked_fill(hidden_QK, 0);
  if (score.dropout.on()) {
    weights_BHQK = weights_BHQK * kept_matrix(score.dropout, weights_BHQK.sizes());
  }
  const at::Tensor out_BSHE = by_head(weights_BHQK.matmul(by_head(v.repeat_interleave(group, 2))));
  out_BSHE.backward(sequences.dout_BSHE.to(at::kDouble));
  return {out_BSHE.detach(), by_head(lse_BHQ), q.grad(),          k.grad(),
          v.grad(),          sinks.grad(),     max_of(shown_BHQK)};
}

Results naive_attention(const Sequences& sequences, const plan::Mask& mask, double scale) {
  return naive_attention(sequences, mask, Score{.scale = scale});
}

double relative_error(const at::Tensor& result, const at::Tensor& required) {
  if (result.sizes() != required.sizes()) return std::numeric_limits<double>::quiet_NaN();
  if (required.numel() == 0) return 0;
  const at::Tensor a = result.to(at::kDouble);
  const at::Tensor b = required.to(at::kDouble);
  const double error = (a - b).masked_fill(a == b, 0).abs().max().item<double>();
  const double norm = b.masked_fill(b.isinf(), 0).abs().max().item<double>();
  return norm == 0 ? error : error / norm;
}

}  // namespace armillary::kernel
