// The operators are those that at::scaled_dot_product_attention calls on a CPU, without autograd.
#include "armillary/lab/bench/sdpa.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <optional>
#include <tuple>

namespace armillary::bench {
namespace {

/// [B, L, H, X] to [B, H, L, X], in memory too.
at::Tensor by_heads(const at::Tensor& x_BLHX) {
  return x_BLHX.transpose(1, 2).contiguous();
}

}  // namespace

Sdpa::Sdpa(const kernel::Inputs& inputs, const at::Tensor& dout_BLHE, bool causal)
    : causal_(causal), scale_(inputs.score.scale), dout_(by_heads(dout_BLHE)) {
  const std::int64_t group = inputs.q_BLHD.size(2) / inputs.k_BLGD.size(2);
  q_ = by_heads(inputs.q_BLHD);
  k_ = by_heads(inputs.k_BLGD.repeat_interleave(group, 2));
  v_ = by_heads(inputs.v_BLGE.repeat_interleave(group, 2));
}

void Sdpa::forward() {
  std::tie(out_, lse_) = at::_scaled_dot_product_flash_attention_for_cpu(q_, k_, v_, 0.0, causal_,
                                                                         std::nullopt, scale_);
}

void Sdpa::backward() {
  std::tie(dq_, dk_, dv_) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      dout_, q_, k_, v_, out_, lse_, 0.0, causal_, std::nullopt, scale_);
}

std::vector<at::Tensor> Sdpa::results(bool backward, std::int64_t kv_heads) const {
  if (!backward) return {out_.transpose(1, 2)};
  // Copies of one KV head are neighbours: [B, G x copies, L, D] to [B, L, G, D].
  const auto summed = [&](const at::Tensor& x_BHLD) {
    return x_BHLD.to(at::kDouble).unflatten(1, {kv_heads, -1}).sum(2).transpose(1, 2);
  };
  return {out_.transpose(1, 2), dq_.transpose(1, 2), summed(dk_), summed(dv_)};
}

}  // namespace armillary::bench
