// block_attention_test.cpp: the checks that all kernels share, with a kernel that only counts the
// calls that pass them, and the small functions beside: Delta of backward and the gradient of
// sinks.
#include "armillary/kernel/block_attention.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "armillary/core/testing/expect_error.h"
#include "armillary/kernel/testing/naive_attention.h"

namespace armillary::kernel {
namespace {

/// A kernel that counts the calls that pass the checks.
class Counter final : public Kernel {
 public:
  mutable int attends = 0;
  mutable int attend_grads = 0;

 private:
  void run_attend(const Pairs&, const Inputs&, Partial&) const override { ++attends; }
  void run_attend_grad(const Pairs&, const Inputs&, const OutputGrads&,
                       InputGrads&) const override {
    ++attend_grads;
  }
};

/// Arguments of a valid call: 2 batch entries, 3 queries, 5 keys, 4 query heads, 2 KV heads.
struct CallArguments {
  plan::Mask mask = plan::full_mask({.q = 10, .kv = 20});
  Pairs pairs{.q_runs = {{.begin = 7, .count = 3}},
              .k_runs = {{.begin = 0, .count = 2}, {.begin = 10, .count = 3, .step = 4}},
              .mask = &mask,
              .heads = {.first_q_head = 0, .first_kv_head = 0, .group_size = 2}};
  Inputs inputs{at::zeros({2, 3, 4, 8}), at::zeros({2, 5, 2, 8}), at::zeros({2, 5, 2, 6}), {}};
  Partial carry{at::zeros({2, 3, 4, 6}), at::zeros({2, 3, 4})};
  OutputGrads upstream{at::zeros({2, 3, 4, 6}), at::zeros({2, 3, 4}), at::zeros({2, 3, 4})};
  InputGrads grads{at::zeros({2, 3, 4, 8}), at::zeros({2, 5, 2, 8}), at::zeros({2, 5, 2, 6})};
};

std::string attend_error(const std::function<void(CallArguments&)>& spoil) {
  CallArguments call;
  spoil(call);
  const Counter kernel;
  std::string error = error_of([&] { kernel.attend(call.pairs, call.inputs, call.carry); });
  EXPECT_EQ(kernel.attends, error == "no error" ? 1 : 0);
  return error;
}

std::string attend_grad_error(const std::function<void(CallArguments&)>& spoil) {
  CallArguments call;
  spoil(call);
  const Counter kernel;
  std::string error =
      error_of([&] { kernel.attend_grad(call.pairs, call.inputs, call.upstream, call.grads); });
  EXPECT_EQ(kernel.attend_grads, error == "no error" ? 1 : 0);
  return error;
}

TEST(Kernel, TakesWhatFits) {
  EXPECT_EQ(attend_error([](CallArguments&) {}), "no error");
  EXPECT_EQ(attend_grad_error([](CallArguments&) {}), "no error");
  // No query heads fit any KV heads.
  EXPECT_EQ(attend_error([](CallArguments& call) {
              call.inputs.q_BLHD = at::zeros({2, 3, 0, 8});
              call.carry = {at::zeros({2, 3, 0, 6}), at::zeros({2, 3, 0})};
              call.pairs.heads.first_q_head = 9;
            }),
            "no error");
}

TEST(Kernel, RefusesShapes) {
  EXPECT_EQ(attend_error([](CallArguments& call) {
              call.inputs.q_BLHD = at::zeros({3, 4, 8});
            }),
            "attend: q_BLHD has shape [3, 4, 8]; 4 dims are required");
  EXPECT_EQ(attend_error([](CallArguments& call) { call.pairs.q_runs[0].count = 2; }),
            "attend: q_BLHD is Float [2, 3, 4, 8]; Float [2, 2, 4, 8] is required");
  EXPECT_EQ(attend_error([](CallArguments& call) {
              call.inputs.k_BLGD = at::zeros({2, 5, 2, 9});
            }),
            "attend: k_BLGD is Float [2, 5, 2, 9]; Float [2, 5, 2, 8] is required");
  EXPECT_EQ(attend_error([](CallArguments& call) {
              call.inputs.v_BLGE = at::zeros({2, 5, 1, 6});
            }),
            "attend: v_BLGE is Float [2, 5, 1, 6]; Float [2, 5, 2, 6] is required");
  EXPECT_EQ(attend_error([](CallArguments& call) {
              call.carry.lse_BLH = at::zeros({2, 4, 3});
            }),
            "attend: carry.lse_BLH is Float [2, 4, 3]; Float [2, 3, 4] is required");
  EXPECT_EQ(attend_grad_error([](CallArguments& call) {
              call.grads.dv_BLGE = at::zeros({2, 5, 2, 8});
            }),
            "attend_grad: dv_BLGE is Float [2, 5, 2, 8]; Float [2, 5, 2, 6] is required");
}

TEST(Kernel, RefusesDtypes) {
  EXPECT_EQ(attend_error(
                [](CallArguments& call) { call.inputs.v_BLGE = call.inputs.v_BLGE.to(at::kHalf); }),
            "attend: v_BLGE is Half [2, 5, 2, 6]; Float [2, 5, 2, 6] is required");
  const auto to = [](at::ScalarType dtype) {
    return [dtype](CallArguments& call) {
      auto& [q, k, v, score] = call.inputs;
      for (at::Tensor* x : {&q, &k, &v, &call.carry.out_BLHE}) *x = x->to(dtype);
    };
  };
  EXPECT_EQ(attend_error(to(at::kBFloat16)),
            "attend: carry.out_BLHE is BFloat16 [2, 3, 4, 6]; Float [2, 3, 4, 6] is required");
  EXPECT_EQ(attend_error(to(at::kInt)),
            "attend: dtype Int; Double, Float, BFloat16 or Half is required");
  EXPECT_EQ(attend_error([](CallArguments& call) {
              call.carry.out_BLHE = at::zeros({2, 3, 4, 6}, at::device(at::kMeta));
            }),
            "attend: carry.out_BLHE is on meta; cpu like q_BLHD is required");
}

TEST(Kernel, RefusesPositionsOutsideTheMask) {
  EXPECT_EQ(attend_error([](CallArguments& call) { call.pairs.q_runs[0].begin = 8; }),
            "attend: q_runs hold positions 8 to 10; the mask has positions 0 to 9");
  EXPECT_EQ(attend_error([](CallArguments& call) { call.pairs.k_runs[1].step = 5; }),
            "attend: k_runs hold positions 10 to 20; the mask has positions 0 to 19");
  EXPECT_EQ(attend_error([](CallArguments& call) { call.pairs.mask = nullptr; }),
            "attend: no mask; one over all positions is required");
}

TEST(Kernel, RefusesHeadsWithoutTheirKvHead) {
  EXPECT_EQ(attend_error([](CallArguments& call) { call.pairs.heads.first_q_head = 1; }),
            "attend: the view has 2 KV heads from 0; its query heads read 0 to 2");
  EXPECT_EQ(attend_error([](CallArguments& call) { call.pairs.heads.first_kv_head = 1; }),
            "attend: the view has 2 KV heads from 1; its query heads read 0 to 1");
  EXPECT_EQ(
      attend_error([](CallArguments& call) { call.pairs.heads.group_size = 0; }),
      "attend: group_size 0, first_q_head 0, first_kv_head 0; at least 1, 0 and 0 are required");
}

TEST(HeadMap, GroupsMayBeCut) {
  // 6 query heads, 3 KV heads, 2 ranks; rank 1 views query heads 3-5 and KV heads 1-2.
  const HeadMap map{.first_q_head = 3, .first_kv_head = 1, .group_size = 2};
  EXPECT_EQ(map.q_heads_of(0, 3), (plan::Interval{0, 1}));
  EXPECT_EQ(map.q_heads_of(1, 3), (plan::Interval{1, 3}));
  EXPECT_TRUE(map.q_heads_of(2, 3).empty());
}

TEST(Delta, IsTheRowSumInAccumulators) {
  const at::Tensor dout = at::full({1, 2, 1, 3}, 0.1, at::kBFloat16);
  const at::Tensor out = at::full({1, 2, 1, 3}, 0.3, at::kBFloat16);
  at::Tensor sum = at::zeros({1, 2, 1});
  delta(dout, out, sum);
  const at::Tensor required = (dout.to(at::kDouble) * out.to(at::kDouble)).sum(-1);
  EXPECT_TRUE(at::allclose(sum.to(at::kDouble), required, 1e-6)) << sum << required;
  EXPECT_EQ(error_of([&] { delta(dout, out.select(3, 0), sum); }),
            "delta: dout [1, 2, 1, 3], out [1, 2, 1], delta [1, 2, 1]; one shape and dtype, delta "
            "without its "
            "last dim, is required");
}

TEST(Delta, RowsOfAnyDtypeAndStrideEqualFp64) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t width : {1, 5, 64, 131}) {
      at::manual_seed(static_cast<std::uint64_t>(width));
      const at::Tensor dout = at::randn({2, 70, 5, width}).to(dtype).narrow(2, 1, 3);
      const at::Tensor out = at::randn({2, 70, 3, width}).to(dtype);
      at::Tensor got = at::empty({2, 70, 3});
      at::Tensor exact = at::empty({2, 70, 3}, at::kDouble);
      delta(dout, out, got);
      delta(dout.to(at::kDouble), out.to(at::kDouble), exact);
      EXPECT_LE(relative_error(got, exact), 1e-6) << dtype << " " << width;
    }
  }
}

// Two rows with delta 2 and -8, in which the sink weighs 1/2 and 1/4: the gradient is -(1 - 2).
TEST(SinksGrad, ByHand) {
  const at::Tensor sinks_H = at::zeros({1}, at::kDouble);
  const at::Tensor lse = at::tensor({std::log(2.0), std::log(4.0)}, at::kDouble).view({1, 2, 1});
  const at::Tensor delta_BLH = at::tensor({2.0, -8.0}, at::kDouble).view({1, 2, 1});
  at::Tensor dsinks_H = at::full({1}, 100, at::kDouble);
  sinks_grad(sinks_H, lse, delta_BLH, dsinks_H);
  EXPECT_NEAR(dsinks_H.item<double>(), 101, 1e-13);
}

TEST(SinksGrad, ARowThatSawNoKeyAddsNothing) {
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor sinks_H = at::tensor({1.5f, static_cast<float>(-inf)});
  const at::Tensor lse = sinks_H.view({1, 1, 2});
  at::Tensor dsinks_H = at::zeros({2}, at::kDouble);
  sinks_grad(sinks_H, lse, at::zeros({1, 1, 2}), dsinks_H);
  EXPECT_TRUE(at::equal(dsinks_H, at::zeros({2}, at::kDouble))) << dsinks_H;
  // A sink of -inf beside keys adds nothing either.
  sinks_grad(sinks_H, at::ones({1, 1, 2}), at::tensor({0.0f, 1.0f}).view({1, 1, 2}), dsinks_H);
  EXPECT_TRUE(at::equal(dsinks_H, at::zeros({2}, at::kDouble))) << dsinks_H;
}

TEST(SinksGrad, RefusesShapes) {
  const at::Tensor rows = at::zeros({1, 3, 2});
  at::Tensor dsinks_H = at::zeros({2}, at::kDouble);
  EXPECT_EQ(error_of([&] { sinks_grad(at::zeros({3}), rows, rows, dsinks_H); }),
            "sinks_grad: sinks [3], lse [1, 3, 2], delta [1, 3, 2], dsinks [2]; [H], [B, L, H] "
            "twice and [H] are required");
}

// A feature that a kernel does not compute is refused, never left out silently.
TEST(Kernel, RefusesFeaturesThatItDoesNotCompute) {
  const std::string refusal =
      ": this kernel has no softcap, slopes, dropout or max_logit_H; one that has, such as "
      "reference(), is required";
  const std::function<void(CallArguments&)> features[] = {
      [](CallArguments& call) { call.inputs.score.softcap = 30; },
      [](CallArguments& call) { call.inputs.score.alibi_slopes_H = at::ones({4}); },
      [](CallArguments& call) { call.inputs.score.dropout.p = 0.1; }};
  for (const auto& feature : features) {
    EXPECT_EQ(attend_error(feature), "attend" + refusal);
    EXPECT_EQ(attend_grad_error(feature), "attend_grad" + refusal);
  }
  EXPECT_EQ(attend_error([](CallArguments& call) { call.carry.max_logit_H = at::zeros({4}); }),
            "attend" + refusal);
}

TEST(Kernel, RefusesScores) {
  EXPECT_EQ(attend_error([](CallArguments& call) { call.inputs.score.softcap = 0; }),
            "attend: softcap 0; a finite number above 0 is required, or none");
  EXPECT_EQ(attend_grad_error([](CallArguments& call) { call.inputs.score.dropout.p = 1; }),
            "attend_grad: dropout p 1; at least 0 and below 1 is required");
  // Slopes are by global head: this view has heads 4 to 7 of 8.
  EXPECT_EQ(attend_error([](CallArguments& call) {
              call.pairs.heads = {.first_q_head = 4, .first_kv_head = 2, .group_size = 2};
              call.inputs.score.alibi_slopes_H = at::ones({4});
            }),
            "attend: alibi_slopes_H is Float [4]; Float [8] is required, of all heads");
  EXPECT_EQ(attend_error([](CallArguments& call) { call.carry.max_logit_H = at::zeros({5}); }),
            "attend: carry.max_logit_H is Float [5]; Float [4] is required");
}

}  // namespace
}  // namespace armillary::kernel
