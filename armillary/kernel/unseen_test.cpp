// Whole row blocks of queries and keys without a visible pair, and KV heads that no query head
// reads. A call that initialises its results must write these parts too.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "armillary/kernel/testing/dealt_attention.h"

namespace armillary::kernel {
namespace {

using plan::Mask;

using Unseen = KernelTest;

INSTANTIATE_TEST_SUITE_P(Kernels, Unseen, testing::ValuesIn(kernel_names()),
                         [](const auto& test) { return test.param; });

/// One call over all queries and keys of a mask, which initialises results whose memory is full of
/// NaN.
class InitCall {
 public:
  InitCall(const Kernel& kernel, const Sequences& x, const Mask& mask, const HeadMap& heads,
           double scale = 0.3)
      : kernel_(kernel),
        x_(x),
        inputs_{x.q_BSHD, x.k_BSGD, x.v_BSGE, {.scale = scale}},
        pairs_{.q_runs = run(0, mask.q_len()),
               .k_runs = run(0, mask.kv_len()),
               .mask = &mask,
               .heads = heads} {}

  AttentionOutput attend() const {
    Partial carry{nan_like(x_.dout_BSHE, accumulator_), nan_like(x_.dout_BSHE, accumulator_, 3)};
    carry.init = true;
    kernel_.attend(pairs_, inputs_, carry);
    return {carry.out_BLHE, carry.lse_BLH};
  }

  AttentionOutput attend_all(const at::Tensor& sinks_H = {}) const {
    AttentionOutput result{nan_like(x_.dout_BSHE, dtype_), nan_like(x_.dout_BSHE, accumulator_, 3)};
    kernel_.attend_all(pairs_, inputs_, sinks_H, result);
    return result;
  }

  /// Gradients by attend_grad_all if `all`, else by attend_grad.
  InputGrads grads(const Results& forward, bool all) const {
    const at::ScalarType dtype = all ? dtype_ : accumulator_;
    InputGrads grads{nan_like(x_.q_BSHD, dtype), nan_like(x_.k_BSGD, dtype),
                     nan_like(x_.v_BSGE, dtype), true, true};
    const at::Tensor delta_BLH = (x_.dout_BSHE.to(at::kDouble) * forward.out_BSHE).sum(-1);
    const OutputGrads upstream{x_.dout_BSHE, forward.lse_BSH.to(accumulator_).contiguous(),
                               delta_BLH.to(accumulator_)};
    if (all) {
      kernel_.attend_grad_all(pairs_, inputs_, upstream, grads);
    } else {
      kernel_.attend_grad(pairs_, inputs_, upstream, grads);
    }
    return grads;
  }

 private:
  static at::Tensor nan_like(const at::Tensor& x, at::ScalarType dtype, std::size_t dims = 4) {
    return in_slot(at::full(x.sizes().slice(0, dims), kNan, dtype));
  }

  const Kernel& kernel_;
  const Sequences& x_;
  Inputs inputs_;
  Pairs pairs_;
  at::ScalarType dtype_ = x_.q_BSHD.scalar_type();
  at::ScalarType accumulator_ = accumulator(dtype_);
};

/// Only the ends of both sides are visible. Queries [50, q_len - 50) see no key and keys [50, 850)
/// are seen by no query: several whole row blocks in every instruction set.
Mask mask_with_a_gap(std::int64_t q_len) {
  return Mask(q_len, 900,
              {{.q = {0, 50}, .k = {0, 50}, .hi = 0}, {.q = {q_len - 50, q_len}, .k = {850, 900}}});
}

at::Tensor unseen_queries(const at::Tensor& x_BSHX) {
  return x_BSHX.slice(1, 50, x_BSHX.size(1) - 50);
}

void expect_all(const at::Tensor& result, double value, const std::string& where) {
  EXPECT_TRUE(at::equal(result, at::full_like(result, value)))
      << where << ": from " << result.min() << " to " << result.max() << ", not " << value;
}

void expect_gradients(const InputGrads& grads, const Results& required, at::ScalarType dtype,
                      const std::string& where) {
  EXPECT_LE(relative_error(grads.dq_BLHD, required.dq_BSHD), tolerance(dtype)) << where << ": dq";
  EXPECT_LE(relative_error(grads.dk_BLGD, required.dk_BSGD), tolerance(dtype)) << where << ": dk";
  EXPECT_LE(relative_error(grads.dv_BLGE, required.dv_BSGE), tolerance(dtype)) << where << ": dv";
}

TEST_P(Unseen, BlocksOfQueriesWithoutKeysAreZero) {
  const Mask mask = mask_with_a_gap(400);
  for (const at::ScalarType dtype : dtypes()) {
    const Sequences x = random_sequences({.batch = 2, .heads = 2, .kv_heads = 1}, mask, dtype, 7);
    const Results required = naive_attention(x, mask, 0.3);
    const InitCall call(kernel(), x, mask, {.group_size = 2});
    for (const bool all : {false, true}) {
      const std::string where = fmt::format("{}{}", c10::toString(dtype), all ? ", at once" : "");
      const AttentionOutput output = all ? call.attend_all() : call.attend();
      EXPECT_LE(relative_error(output.out_BLHE, required.out_BSHE), tolerance(dtype)) << where;
      EXPECT_LE(relative_error(output.lse_BLH, required.lse_BSH), 1e-5) << where;
      expect_all(unseen_queries(output.out_BLHE), 0, where + ": out");
      expect_all(unseen_queries(output.lse_BLH), -kInf, where + ": lse");
    }
  }
}

/// Sequences of one size and their results, computed once for all kernels: in fp64, that is most of
/// the time of these tests.
const std::pair<Sequences, Results>& gap_case(const Sizes& sizes, const Mask& mask,
                                              at::ScalarType dtype) {
  static std::map<std::tuple<std::int64_t, std::int64_t, at::ScalarType>,
                  std::pair<Sequences, Results>>
      cases;
  const auto [entry, is_new] = cases.try_emplace({mask.q_len(), sizes.head_dim, dtype});
  if (is_new) {
    const Sequences x = random_sequences(sizes, mask, dtype, 7);
    entry->second = {x, naive_attention(x, mask, 0.3)};
  }
  return entry->second;
}

// 4200 queries of dim 256 are packed in two stages.
TEST_P(Unseen, BlocksWithoutPairsHaveNoGradient) {
  struct Case {
    std::int64_t q_len, heads, head_dim;
  };
  for (const auto& [q_len, heads, head_dim] : std::vector<Case>{{400, 2, 16}, {4200, 1, 256}}) {
    const Mask mask = mask_with_a_gap(q_len);
    for (const at::ScalarType dtype : dtypes()) {
      if (head_dim == 256 && dtype != at::kBFloat16) continue;
      const Sizes sizes{.heads = heads, .kv_heads = 1, .head_dim = head_dim, .value_dim = head_dim};
      const auto& [x, required] = gap_case(sizes, mask, dtype);
      const InitCall call(kernel(), x, mask, {.group_size = heads});
      for (const bool all : {false, true}) {
        const std::string where =
            fmt::format("{} queries, {}{}", q_len, c10::toString(dtype), all ? ", at once" : "");
        const InputGrads grads = call.grads(required, all);
        expect_gradients(grads, required, dtype, where);
        expect_all(unseen_queries(grads.dq_BLHD), 0, where + ": dq");
        expect_all(grads.dk_BLGD.slice(1, 50, 850), 0, where + ": dk");
        expect_all(grads.dv_BLGE.slice(1, 50, 850), 0, where + ": dv");
      }
    }
  }
}

// A row without keys has only its sink, and a sink of -inf is none.
TEST_P(Unseen, ASinkOfMinusInfinityIsNoneInOneCall) {
  const Mask mask = mask_with_a_gap(130);  // row blocks in which some queries see keys
  const at::Tensor sinks_H = at::tensor({-kInf, 0.5}, at::kFloat);
  for (const at::ScalarType dtype : dtypes()) {
    const std::string where = c10::toString(dtype);
    const Sequences x = random_sequences({.heads = 2, .kv_heads = 1}, mask, dtype, 9);
    const InitCall call(kernel(), x, mask, {.group_size = 2});
    const AttentionOutput without = call.attend_all();
    const AttentionOutput output = call.attend_all(sinks_H.to(accumulator(dtype)));
    EXPECT_TRUE(at::equal(output.out_BLHE.select(2, 0), without.out_BLHE.select(2, 0))) << where;
    EXPECT_TRUE(at::equal(output.lse_BLH.select(2, 0), without.lse_BLH.select(2, 0))) << where;
    expect_all(unseen_queries(output.out_BLHE), 0, where + ": out");
    expect_all(unseen_queries(output.lse_BLH).select(2, 0), -kInf, where + ": lse of no sink");
    expect_all(unseen_queries(output.lse_BLH).select(2, 1), 0.5, where + ": lse of the sink");
    const Results required = naive_attention(x, mask, {.scale = 0.3}, sinks_H);
    EXPECT_LE(relative_error(output.out_BLHE, required.out_BSHE), tolerance(dtype)) << where;
    EXPECT_LE(relative_error(output.lse_BLH, required.lse_BSH), 1e-5) << where;
  }
}

/// Query heads 2 to 5 and KV heads 0 to 3. Only KV heads 1 and 2 are read; the others are NaN.
Sequences sequences_of_unread_heads(const Mask& mask, std::int64_t batch, std::int64_t dim,
                                    at::ScalarType dtype) {
  const Sequences x = random_sequences(
      {.batch = batch, .heads = 4, .kv_heads = 4, .head_dim = dim, .value_dim = dim}, mask, dtype,
      5);
  for (const at::Tensor& t : {x.k_BSGD, x.v_BSGE}) {
    for (const std::int64_t head : {0, 3}) t.select(2, head).fill_(kNan);
  }
  return x;
}

void expect_only_read_heads(const Kernel& kernel, const Sequences& x, const Mask& mask,
                            const std::string& what) {
  const at::ScalarType dtype = x.q_BSHD.scalar_type();
  const double scale = 1 / std::sqrt(x.q_BSHD.size(3));
  Sequences read = x;
  for (at::Tensor* t : {&read.k_BSGD, &read.v_BSGE}) *t = t->narrow(2, 1, 2);
  const Results required = naive_attention(read, mask, scale);
  const InitCall call(kernel, x, mask, {.first_q_head = 2, .group_size = 2}, scale);
  for (const bool all : {false, true}) {
    const std::string where =
        fmt::format("{}, {}{}", what, c10::toString(dtype), all ? ", at once" : "");
    const AttentionOutput out = all ? call.attend_all() : call.attend();
    EXPECT_LE(relative_error(out.out_BLHE, required.out_BSHE), tolerance(dtype)) << where;
    InputGrads grads = call.grads(required, all);
    for (const std::int64_t head : {0, 3}) {
      expect_all(grads.dk_BLGD.select(2, head), 0, where + ": dk");
      expect_all(grads.dv_BLGE.select(2, head), 0, where + ": dv");
    }
    grads.dk_BLGD = grads.dk_BLGD.narrow(2, 1, 2);
    grads.dv_BLGE = grads.dv_BLGE.narrow(2, 1, 2);
    expect_gradients(grads, required, dtype, where);
  }
}

TEST_P(Unseen, KvHeadsThatNoQueryHeadReads) {
  const Mask mask = plan::full_mask({.q = 70, .kv = 90});
  for (const at::ScalarType dtype : dtypes()) {
    expect_only_read_heads(kernel(), sequences_of_unread_heads(mask, 2, 24, dtype), mask, "short");
  }
}

// Queries (backward) or keys (forward) that are packed in two stages.
TEST_P(Unseen, KvHeadsThatNoQueryHeadReadsInSeveralRounds) {
  for (const plan::Lengths lengths : {plan::Lengths{.q = 2300, .kv = 20}, {.q = 20, .kv = 4500}}) {
    const Mask mask = plan::full_mask(lengths);
    expect_only_read_heads(kernel(), sequences_of_unread_heads(mask, 1, 256, dtypes().back()), mask,
                           fmt::format("{} queries, {} keys", lengths.q, lengths.kv));
  }
}

}  // namespace
}  // namespace armillary::kernel
