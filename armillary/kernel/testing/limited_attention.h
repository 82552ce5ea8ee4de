// limited_attention.h: a NativeAttention for tests with given abilities. A call that asks for more
// fails the test.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "armillary/kernel/native_attention.h"
#include "armillary/kernel/vector_math.h"

namespace armillary::kernel {

/// Computes one softmax over an explicit matrix of scores, in the accumulator dtype.
class LimitedAttention : public NativeAttention {
 public:
  explicit LimitedAttention(const Abilities& can) : can_(can) { choose_vector_math(); }
  Abilities abilities() const override { return can_; }

  void forward(const std::vector<Part>& parts, double scale,
               std::vector<Partial>& partials) const override {
    check(parts);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor scores_BHLN = scores_of(parts[i], scale);
      const at::Tensor lse_BHL = scores_BHLN.logsumexp(-1);
      const at::Tensor weights = (scores_BHLN - lse_BHL.unsqueeze(-1)).exp().nan_to_num(0.0);
      const Partial own{weights.matmul(wide(parts[i].v_BLGE, scores_BHLN)).transpose(1, 2),
                        lse_BHL.transpose(1, 2)};
      if (can_.carries) {
        merge(partials[i], {own.out_BLHE.contiguous(), own.lse_BLH.contiguous()});
      } else {
        partials[i].out_BLHE.copy_(own.out_BLHE);
        partials[i].lse_BLH.copy_(own.lse_BLH);
      }
    }
  }

  void backward(const std::vector<Part>& parts, double scale, const std::vector<Upstream>& upstream,
                std::vector<InputGrads>& grads) const override {
    check(parts);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      const Upstream& above = upstream[i];
      EXPECT_EQ(above.delta_BLH.defined(), can_.takes_delta);
      EXPECT_NE(above.out_BLHE.defined(), can_.takes_delta);
      const at::Tensor scores = scores_of(part, scale);
      const at::Tensor weights =
          (scores - above.lse_BLH.transpose(1, 2).unsqueeze(-1)).exp().nan_to_num(0.0);
      const at::Tensor dout = above.dout_BLHE.transpose(1, 2).to(scores.scalar_type());
      const at::Tensor delta =
          can_.takes_delta
              ? above.delta_BLH.transpose(1, 2)
              : (dout * above.out_BLHE.transpose(1, 2).to(scores.scalar_type())).sum(-1);
      const at::Tensor dscores =
          weights *
          (dout.matmul(wide(part.v_BLGE, scores).transpose(-1, -2)) - delta.unsqueeze(-1));
      const at::Tensor q = part.q_BLHD.transpose(1, 2).to(scores.scalar_type());
      put(grads[i].dq_BLHD, dscores.matmul(wide(part.k_BLGD, scores)) * scale);
      put(grads[i].dk_BLGD, narrow(dscores.transpose(-1, -2).matmul(q) * scale, part));
      put(grads[i].dv_BLGE, narrow(weights.transpose(-1, -2).matmul(dout), part));
    }
  }

 private:
  void check(const std::vector<Part>& parts) const {
    EXPECT_TRUE(parts.size() == 1 || can_.varlen);
    for (const Part& part : parts) {
      EXPECT_TRUE(part.mask != NativeMask::Causal || can_.causal);
      EXPECT_TRUE(part.mask != NativeMask::Window || can_.window);
      EXPECT_EQ(part.q_BLHD.size(2) % part.k_BLGD.size(2), 0);
    }
  }
  /// [B, H, N, X], with the KV head of each query head.
  static at::Tensor wide(const at::Tensor& x_BNGX, const at::Tensor& scores_BHLN) {
    const std::int64_t group = scores_BHLN.size(1) / x_BNGX.size(2);
    return x_BNGX.transpose(1, 2).to(scores_BHLN.scalar_type()).repeat_interleave(group, 1);
  }
  /// The sum over the query heads of each KV head.
  static at::Tensor narrow(const at::Tensor& x_BHNX, const Part& part) {
    return x_BHNX.unflatten(1, {part.k_BLGD.size(2), -1}).sum(2);
  }
  static at::Tensor scores_of(const Part& part, double scale) {
    const at::Tensor q = part.q_BLHD.transpose(1, 2).to(accumulator(part.q_BLHD.scalar_type()));
    at::Tensor scores = q.matmul(wide(part.k_BLGD, q).transpose(-1, -2)) * scale;
    if (part.mask == NativeMask::Full) return scores;
    const std::int64_t m = part.q_BLHD.size(1);
    const std::int64_t n = part.k_BLGD.size(1);
    const at::Tensor distance = (at::arange(n) - n).unsqueeze(0) - (at::arange(m) - m).unsqueeze(1);
    at::Tensor hidden = distance > 0;
    if (part.mask == NativeMask::Window) hidden = hidden.logical_or(distance <= -part.window);
    return scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  void put(const at::Tensor& to_BLHX, const at::Tensor& x_BHLX) const {
    const at::Tensor x = x_BHLX.transpose(1, 2);
    can_.adds_gradients ? to_BLHX.add_(x) : to_BLHX.copy_(x);
  }

  Abilities can_;
};

}  // namespace armillary::kernel
