#include "armillary/kernel/naive_attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

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

Results naive_attention(const Sequences& sequences, const plan::Mask& mask, double scale) {
  const auto leaf = [](const at::Tensor& x) {
    return x.detach().to(at::kDouble).clone().requires_grad_();
  };
  const at::Tensor q = leaf(sequences.q_BSHD);
  const at::Tensor k = leaf(sequences.k_BSGD);
  const at::Tensor v = leaf(sequences.v_BSGE);
  const std::int64_t group = k.size(2) == 0 ? 1 : q.size(2) / k.size(2);
  const auto by_head = [](const at::Tensor& x_BSHX) { return x_BSHX.transpose(1, 2); };

  const at::Tensor hidden_QK = hidden_matrix(mask);
  const at::Tensor empty_QI = hidden_QK.all(1, /*keepdim=*/true);
  const at::Tensor logits_BHQK =
      scale * by_head(q).matmul(by_head(k.repeat_interleave(group, 2)).transpose(-2, -1));
  // Rows without keys get any finite logits for the softmax, so that its gradient is not NaN.
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor weights_BHQK =
      logits_BHQK.masked_fill(hidden_QK & ~empty_QI, -inf).softmax(-1).masked_fill(hidden_QK, 0);
  const at::Tensor out_BSHE = by_head(weights_BHQK.matmul(by_head(v.repeat_interleave(group, 2))));
  const at::Tensor lse_BSH =
      by_head(logits_BHQK.detach().masked_fill(hidden_QK, -inf).logsumexp(-1));
  out_BSHE.backward(sequences.dout_BSHE.to(at::kDouble));
  return {out_BSHE.detach(), lse_BSH, q.grad(), k.grad(), v.grad()};
}

double relative_error(const at::Tensor& given, const at::Tensor& required) {
  if (given.sizes() != required.sizes()) return std::numeric_limits<double>::quiet_NaN();
  if (required.numel() == 0) return 0;
  const at::Tensor a = given.to(at::kDouble);
  const at::Tensor b = required.to(at::kDouble);
  const double error = (a - b).masked_fill(a == b, 0).abs().max().item<double>();
  const double norm = b.masked_fill(b.isinf(), 0).abs().max().item<double>();
  return norm == 0 ? error : error / norm;
}

}  // namespace armillary::kernel
