// merge_test.cpp: merges of partial results against fp64: rows that saw no key, infinities, every
// dtype of parts, sinks, and views of slots whose other bytes must stay.
#include "armillary/kernel/merge.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "armillary/core/testing/expect_error.h"
#include "armillary/kernel/testing/dealt_attention.h"
#include "armillary/kernel/testing/naive_attention.h"

namespace armillary::kernel {
namespace {

// A merge makes a few rounding errors of 2^-53 in numbers of size 1 to 10.
constexpr double kRounding = 1e-13;

Partial copy(const Partial& x) {
  return {x.out_BLHE.clone(), x.lse_BLH.clone()};
}

Partial merged(const Partial& a, const Partial& b) {
  Partial acc = copy(a);
  merge(acc, b);
  return acc;
}

Partial nothing_seen(at::IntArrayRef out_shape, at::ScalarType dtype) {
  Partial partial{at::full(out_shape, kInf, dtype),
                  at::full(out_shape.slice(0, out_shape.size() - 1), kInf, dtype)};
  clear(partial);
  return partial;
}

/// Some rows saw keys and some did not; log-sum-exps are near each other or far apart.
Partial random_partial(at::IntArrayRef out_shape) {
  at::manual_seed(*rc::gen::inRange<std::uint64_t>(0, 1u << 30));
  const double spread = *rc::gen::element(0.0, 1.0, 30.0, 2000.0);
  Partial partial{at::randn(out_shape, at::kDouble),
                  at::randn(out_shape.slice(0, out_shape.size() - 1), at::kDouble) * spread};
  const at::Tensor empty = at::rand_like(partial.lse_BLH) < 0.3;
  partial.out_BLHE.masked_fill_(empty.unsqueeze(-1), 0);
  partial.lse_BLH.masked_fill_(empty, -kInf);
  return partial;
}

std::vector<std::int64_t> random_shape() {
  return {*rc::gen::inRange(0, 3), *rc::gen::inRange(0, 6), *rc::gen::inRange(0, 4),
          *rc::gen::inRange(1, 5)};
}

void expect_same(const Partial& a, const Partial& b, double tolerance) {
  RC_ASSERT(at::allclose(a.out_BLHE, b.out_BLHE, tolerance, tolerance));
  RC_ASSERT(at::allclose(a.lse_BLH, b.lse_BLH, tolerance, tolerance));
}

// Rule 1.
RC_GTEST_PROP(Merge, OrderMattersUpToRoundingOnly, ()) {
  const auto shape = random_shape();
  const Partial a = random_partial(shape);
  const Partial b = random_partial(shape);
  const Partial c = random_partial(shape);
  expect_same(merged(a, b), merged(b, a), kRounding);
  expect_same(merged(merged(a, b), c), merged(a, merged(b, c)), kRounding);
}

// Rule 2.
RC_GTEST_PROP(Merge, SideThatSawNoKeyChangesNothing, ()) {
  const auto shape = random_shape();
  const Partial a = random_partial(shape);
  const Partial nothing = nothing_seen(shape, at::kDouble);
  for (const Partial& both : {merged(a, nothing), merged(nothing, a)}) {
    RC_ASSERT(at::equal(both.out_BLHE, a.out_BLHE));
    RC_ASSERT(at::equal(both.lse_BLH, a.lse_BLH));
  }
}

// Rule 3.
TEST(Merge, TwoSidesThatSawNoKey) {
  const Partial nothing = nothing_seen({2, 3, 1, 4}, at::kFloat);
  const Partial both = merged(nothing, nothing);
  EXPECT_TRUE(at::equal(both.out_BLHE, at::zeros({2, 3, 1, 4}))) << both.out_BLHE;
  EXPECT_TRUE(at::equal(both.lse_BLH, at::full({2, 3, 1}, -kInf))) << both.lse_BLH;
}

// Rule 4.
TEST(Merge, NanAndInfinityStayInTheirRow) {
  const Partial a{at::ones({1, 4, 1, 2}), at::zeros({1, 4, 1})};
  Partial b{at::full({1, 4, 1, 2}, 3.0), at::zeros({1, 4, 1})};
  b.out_BLHE[0][1].fill_(std::numeric_limits<double>::quiet_NaN());
  b.lse_BLH[0][2].fill_(std::numeric_limits<double>::quiet_NaN());
  b.out_BLHE[0][3].fill_(kInf);
  const Partial both = merged(a, b);
  EXPECT_TRUE(at::equal(both.out_BLHE[0][0], at::full({1, 2}, 2.0))) << both.out_BLHE;
  EXPECT_TRUE(both.out_BLHE[0][1].isnan().all().item<bool>()) << both.out_BLHE;
  EXPECT_TRUE(both.out_BLHE[0][2].isnan().all().item<bool>()) << both.out_BLHE;
  EXPECT_TRUE(at::equal(both.out_BLHE[0][3], at::full({1, 2}, kInf))) << both.out_BLHE;
  EXPECT_TRUE(both.lse_BLH[0][2].isnan().item<bool>()) << both.lse_BLH;
}

RC_GTEST_PROP(Merge, IsSoftmaxOverBothSetsOfKeys, ()) {
  at::manual_seed(*rc::gen::inRange<std::uint64_t>(0, 1u << 30));
  const std::int64_t keys_a = *rc::gen::inRange(1, 9);
  const std::int64_t keys_b = *rc::gen::inRange(1, 9);
  const at::Tensor scores = 5 * at::randn({2, 3, 2, keys_a + keys_b}, at::kDouble);
  const at::Tensor values = at::randn({keys_a + keys_b, 4}, at::kDouble);
  const auto over = [&](std::int64_t begin, std::int64_t end) {
    const at::Tensor part = scores.slice(-1, begin, end);
    return Partial{part.softmax(-1).matmul(values.slice(0, begin, end)), part.logsumexp(-1)};
  };
  expect_same(merged(over(0, keys_a), over(keys_a, keys_a + keys_b)), over(0, keys_a + keys_b),
              kRounding);
}

// fp32 rows take the row op of the CPU kernel. Cases: many rows, rows that do not fill a vector,
// and sides that saw no key.
TEST(Merge, Fp32RowsEqualFp64) {
  for (const std::int64_t width : {1, 5, 64, 131}) {
    at::manual_seed(static_cast<std::uint64_t>(width));
    const auto random = [&](std::int64_t first_empty) {
      Partial partial{at::randn({2, 700, 3, width}), at::randn({2, 700, 3}) * 20};
      partial.lse_BLH.slice(1, first_empty, first_empty + 20).fill_(-kInf);
      partial.out_BLHE.slice(1, first_empty, first_empty + 20).zero_();
      return partial;
    };
    const Partial other = random(60);
    Partial acc = random(50);  // rows 60 to 69 are empty on both sides
    Partial exact{acc.out_BLHE.to(at::kDouble), acc.lse_BLH.to(at::kDouble)};
    merge(exact, {other.out_BLHE.to(at::kDouble), other.lse_BLH.to(at::kDouble)});
    merge(acc, other);
    EXPECT_LE(relative_error(acc.out_BLHE, exact.out_BLHE), 5e-7) << width;
    EXPECT_TRUE(at::equal(acc.lse_BLH == -kInf, exact.lse_BLH == -kInf)) << width;
    const auto visible = [](const at::Tensor& lse) { return lse.masked_fill(lse == -kInf, 0); };
    EXPECT_LE(relative_error(visible(acc.lse_BLH), visible(exact.lse_BLH)), 5e-7) << width;
  }
}

// Parts in the input dtype, views with gaps, and rows that do not fill a vector.
TEST(Merge, PartsOfTheInputDtypeAreWidenedExactly) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const std::int64_t width : {1, 5, 64, 131}) {
      at::manual_seed(static_cast<std::uint64_t>(width));
      const at::Tensor part = at::randn({2, 70, 5, width}).to(dtype).narrow(2, 1, 3);
      const Partial acc{at::randn({2, 70, 3, width}), at::randn({2, 70, 3})};
      const at::Tensor lse = at::randn({2, 70, 3});
      const Partial narrow = merged(acc, {part, lse});
      const Partial wide = merged(acc, {part.to(at::kFloat), lse});
      EXPECT_TRUE(at::equal(narrow.out_BLHE, wide.out_BLHE)) << dtype << " " << width;
      const at::Tensor sum = acc.out_BLHE.clone();
      kernel::add(sum, part);
      EXPECT_TRUE(at::equal(sum, acc.out_BLHE + part.to(at::kFloat))) << dtype << " " << width;
    }
  }
}

TEST(Merge, TakesViewsOfSlotsAndLeavesTheRestAlone) {
  const at::Tensor slot = at::full({1, 4, 3, 2}, 7.0);
  const at::Tensor lse = at::full({1, 4, 3}, 7.0);
  Partial acc{slot.narrow(1, 1, 2).narrow(2, 1, 1), lse.narrow(1, 1, 2).narrow(2, 1, 1)};
  merge(acc, {at::ones({1, 2, 1, 2}), at::full({1, 2, 1}, 7.0)});
  EXPECT_TRUE(at::equal(acc.out_BLHE, at::full({1, 2, 1, 2}, 4.0))) << acc.out_BLHE;
  EXPECT_EQ((slot == 7).sum().item<std::int64_t>(), 4 * 3 * 2 - 4) << slot;
  EXPECT_EQ((lse == 7).sum().item<std::int64_t>(), 4 * 3 - 2) << lse;
}

TEST(Merge, FinishRoundsOnceToTheInputDtype) {
  const Partial partial{at::full({1, 1, 1, 2}, 1.00390625), at::full({1, 1, 1}, 0.1)};
  at::Tensor out = at::empty({1, 1, 1, 2}, at::kBFloat16);
  at::Tensor lse = at::empty({1, 1, 1}, at::kFloat);
  finish(partial, out, lse);
  EXPECT_TRUE(at::equal(out, partial.out_BLHE.to(at::kBFloat16))) << out;
  EXPECT_TRUE(at::equal(lse, partial.lse_BLH)) << lse;
}

Partial finished(const Partial& partial, const at::Tensor& sinks_H) {
  Partial result = copy(partial);
  finish(partial, result.out_BLHE, result.lse_BLH, sinks_H);
  return result;
}

// A key of score ln 1 with value 8, and a sink of ln 3: the key weighs 1/4.
TEST(Finish, ASinkByHand) {
  const Partial key{at::full({1, 1, 1, 1}, 8.0, at::kDouble), at::zeros({1, 1, 1}, at::kDouble)};
  const Partial result = finished(key, at::full({1}, std::log(3.0), at::kDouble));
  EXPECT_NEAR(result.out_BLHE.item<double>(), 2, 1e-14);
  EXPECT_NEAR(result.lse_BLH.item<double>(), std::log(4.0), 1e-14);
}

// finish() with sinks equals a merge with a partial that saw one key per head, of that score and
// value 0.
RC_GTEST_PROP(Finish, ASinkIsAKeyWithoutAValue, ()) {
  const std::vector<std::int64_t> shape = random_shape();
  const Partial partial = random_partial(shape);
  const at::Tensor sinks_H = at::randn({shape[2]}, at::kDouble) * 3;
  const Partial sink{at::zeros(shape, at::kDouble),
                     sinks_H.expand(at::IntArrayRef(shape).slice(0, 3)).contiguous()};
  expect_same(finished(partial, sinks_H), merged(partial, sink), kRounding);
}

// In a plan `finish` only reads the partial, so other ops may read it afterwards. A result in the
// memory of the partial has the same bits.
TEST(Finish, LeavesThePartialAloneUnlessItIsTheResult) {
  const at::Tensor sinks_H = at::tensor({0.5f, 2.0f});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Partial partial{at::randn({1, 3, 2, 8}), at::randn({1, 3, 2})};
    const Partial before = copy(partial);
    at::Tensor out = at::empty({1, 3, 2, 8}, dtype);
    at::Tensor lse = at::empty({1, 3, 2});
    finish(partial, out, lse, sinks_H);
    EXPECT_TRUE(at::equal(partial.out_BLHE, before.out_BLHE)) << dtype;
    EXPECT_TRUE(at::equal(partial.lse_BLH, before.lse_BLH)) << dtype;
    Partial in_place = copy(partial);
    at::Tensor out_too = dtype == at::kFloat ? in_place.out_BLHE : at::empty_like(out);
    finish(in_place, out_too, in_place.lse_BLH, sinks_H);
    EXPECT_TRUE(at::equal(out_too, out)) << dtype;
    EXPECT_TRUE(at::equal(in_place.lse_BLH, lse)) << dtype;
  }
}

TEST(Finish, ARowThatSawNoKeyHasTheSinkAsItsLse) {
  const Partial empty = nothing_seen({1, 2, 3, 2}, at::kFloat);
  const at::Tensor sinks_H = at::tensor({-1.0f, 0.0f, 90.0f});
  const Partial result = finished(empty, sinks_H);
  EXPECT_TRUE(at::equal(result.out_BLHE, at::zeros({1, 2, 3, 2}))) << result.out_BLHE;
  EXPECT_TRUE(at::equal(result.lse_BLH, sinks_H.expand({1, 2, 3}))) << result.lse_BLH;
}

TEST(Finish, ASinkOfMinusInfinityIsNone) {
  Partial partial = nothing_seen({1, 2, 1, 2}, at::kFloat);
  partial.out_BLHE.select(1, 0).fill_(0.7);
  partial.lse_BLH.select(1, 0).fill_(-3.1);
  const Partial result = finished(partial, at::full({1}, -kInf));
  EXPECT_TRUE(at::equal(result.out_BLHE, partial.out_BLHE)) << result.out_BLHE;
  EXPECT_TRUE(at::equal(result.lse_BLH, partial.lse_BLH)) << result.lse_BLH;
}

TEST(Merge, RefusesWhatDoesNotFit) {
  Partial acc = nothing_seen({1, 2, 1, 4}, at::kFloat);
  EXPECT_EQ(error_of([&] {
              merge(acc, nothing_seen({1, 3, 1, 4}, at::kFloat));
            }),
            "merge: other.out has shape [1, 3, 1, 4]; [1, 2, 1, 4] is required");
  EXPECT_EQ(error_of([&] {
              merge(acc, {acc.out_BLHE, at::zeros({1, 2})});
            }),
            "merge: other.lse has shape [1, 2]; [1, 2, 1] is required");
  EXPECT_EQ(error_of([&] {
              merge(acc, nothing_seen({1, 2, 1, 4}, at::kDouble));
            }),
            "merge: Double into Float; one dtype, or bf16 or fp16 into Float, is required");
  const at::Tensor sum = at::zeros({1, 2, 1, 4}, at::kDouble);
  EXPECT_EQ(error_of([&] { kernel::add(sum, sum.to(at::kHalf)); }),
            "add: Half into Double; one dtype, or bf16 or fp16 into Float, is required");
  EXPECT_EQ(error_of([&] { kernel::add(sum, sum.slice(1, 1)); }),
            "add: part has shape [1, 1, 1, 4]; [1, 2, 1, 4] is required");
  at::Tensor out = at::empty({1, 2, 1, 5});
  at::Tensor lse = at::empty({1, 2, 1});
  EXPECT_EQ(error_of([&] { finish(acc, out, lse); }),
            "finish: out has shape [1, 2, 1, 5]; [1, 2, 1, 4] is required");
  const auto sinks_error = [&](const at::Tensor& sinks_H) {
    return error_of([&] { finished(acc, sinks_H); });
  };
  EXPECT_EQ(sinks_error(at::zeros({2})),
            "finish: sinks are Float [2]; Float, one per head of lse [1, 2, 1], is required");
  EXPECT_EQ(sinks_error(at::zeros({1}, at::kDouble)),
            "finish: sinks are Double [1]; Float, one per head of lse [1, 2, 1], is required");
}

}  // namespace
}  // namespace armillary::kernel
