// problem_test.cpp: the rules of a problem, each with the exact text of its refusal, and the small
// functions of heads, sizes and names.
#include "armillary/plan/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

using testing::ThrowsMessage;

Problem legal_problem() {
  return {.world = 4,
          .heads = 6,
          .kv_heads = 3,
          .mask = full_mask({16, 16}),
          .layout = {.kind = LayoutKind::Zigzag}};
}

void expect_change_refused(const std::function<void(Problem&)>& change, const std::string& error) {
  Problem problem = legal_problem();
  change(problem);
  EXPECT_THAT([&] { validate(problem); }, ThrowsMessage<InvalidArgument>(error));
}

TEST(Problem, SizesAreAtLeastOne) {
  EXPECT_NO_THROW(validate(legal_problem()));
  const std::string required = " given; at least 1 is required";
  expect_change_refused([](Problem& p) { p.batch = 0; }, "problem: batch 0" + required);
  expect_change_refused([](Problem& p) { p.heads = 0; }, "problem: heads 0" + required);
  expect_change_refused([](Problem& p) { p.kv_heads = -3; }, "problem: kv_heads -3" + required);
  expect_change_refused([](Problem& p) { p.head_dim = 0; }, "problem: head_dim 0" + required);
  expect_change_refused([](Problem& p) { p.value_dim = -1; }, "problem: value_dim -1" + required);
  expect_change_refused([](Problem& p) { p.layout.stripe = 0; }, "problem: stripe 0" + required);
  expect_change_refused([](Problem& p) { p.world = 0; },
                        "problem: world 0 given; 1 to 16384 is required");
  expect_change_refused([](Problem& p) { p.world = 2'000'000'000; },
                        "problem: world 2000000000 given; 1 to 16384 is required");
}

TEST(Problem, LengthsMayBeZeroAndShorterThanTheWorld) {
  Problem problem = legal_problem();
  for (const Lengths lengths : {Lengths{0, 0}, Lengths{0, 5}, Lengths{5, 0}, Lengths{1, 2}}) {
    problem.mask = full_mask(lengths);
    EXPECT_NO_THROW(validate(problem)) << lengths.q << " queries, " << lengths.kv << " keys";
  }
}

TEST(Problem, HeadsAreAMultipleOfKvHeads) {
  const auto refused = [](int heads, int kv_heads, const std::string& nearest) {
    expect_change_refused(
        [&](Problem& p) {
          p.heads = heads;
          p.kv_heads = kv_heads;
        },
        "problem: " + std::to_string(heads) + " heads and " + std::to_string(kv_heads) +
            " kv_heads given; heads that are a multiple of kv_heads are required; nearest "
            "kv_heads: " +
            nearest);
  };
  refused(6, 4, "3 or 6");
  refused(32, 5, "4 or 8");
  refused(7, 2, "1 or 7");
  refused(4, 8, "4");
  refused(2147483647, 1073741824, "1 or 2147483647");
  Problem problem = legal_problem();
  for (const int kv_heads : {1, 2, 3, 6}) {
    problem.kv_heads = kv_heads;
    EXPECT_NO_THROW(validate(problem)) << kv_heads << " kv_heads";
  }
}

TEST(Problem, BytesAndPairsFitIn62Bits) {
  expect_change_refused(
      [](Problem& p) { p.batch = std::numeric_limits<std::int64_t>::max(); },
      "problem: world x batch x heads x dim x tokens x bytes = 4 x 9223372036854775807 x 6 "
      "x 64 x 16 x 8; a product below 2^62 is required");
  expect_change_refused(
      [](Problem& p) {
        p.mask = causal_mask({std::int64_t{1} << 31, std::int64_t{1} << 31}, Align::Start);
      },
      "problem: batch x heads x visible pairs = 1 x 6 x 2305843010287435776; a product below 2^62 "
      "is "
      "required");
  Problem most = legal_problem();
  most.mask = full_mask({std::int64_t{1} << 31, std::int64_t{1} << 30});
  most.heads = most.kv_heads = 1;
  EXPECT_NO_THROW(validate(most)) << "2^61 pairs";
  most.heads = most.kv_heads = 2;
  EXPECT_THROW(validate(most), InvalidArgument) << "2^62 pairs";
  // A trillion tokens are legal, if not all see all.
  Problem problem = legal_problem();
  problem.mask =
      window_mask({std::int64_t{1} << 40, std::int64_t{1} << 40}, {4096, 0}, Align::Start);
  EXPECT_NO_THROW(validate(problem));
}

TEST(Problem, KvHeadsOfQueryHeads) {
  const Problem problem = {.heads = 12, .kv_heads = 4};
  EXPECT_EQ(kv_heads_of(problem, {0, 12}), (Heads{0, 4}));
  EXPECT_EQ(kv_heads_of(problem, {0, 1}), (Heads{0, 1}));
  EXPECT_EQ(kv_heads_of(problem, {2, 4}), (Heads{0, 2}));
  EXPECT_EQ(kv_heads_of(problem, {3, 6}), (Heads{1, 2}));
  EXPECT_EQ(kv_heads_of(problem, {5, 10}), (Heads{1, 4}));
  for (int head = 0; head <= 12; ++head) {
    EXPECT_EQ(kv_heads_of(problem, {head, head}).count(), 0) << "no heads at " << head;
  }
}

TEST(Dtype, NamesSizesAndAccumulators) {
  struct DtypeCase {
    Dtype dtype;
    std::string name;
    std::int64_t bytes;
    Dtype accumulator;
  };
  for (const DtypeCase& row :
       {DtypeCase{Dtype::F64, "fp64", 8, Dtype::F64}, DtypeCase{Dtype::F32, "fp32", 4, Dtype::F32},
        DtypeCase{Dtype::Bf16, "bf16", 2, Dtype::F32},
        DtypeCase{Dtype::F16, "fp16", 2, Dtype::F32}}) {
    EXPECT_EQ(to_string(row.dtype), row.name);
    EXPECT_EQ(parse_dtype(row.name), row.dtype) << row.name;
    EXPECT_EQ(bytes_of(row.dtype), row.bytes) << row.name;
    EXPECT_EQ(accumulator(row.dtype), row.accumulator) << row.name;
  }
  EXPECT_THAT(
      [] { parse_dtype("bfloat"); },
      ThrowsMessage<InvalidArgument>(
          "dtype: 'bfloat' is not known; fp64, fp32, bf16 or fp16 is required; nearest is 'bf16'"));
}

}  // namespace
}  // namespace armillary::plan
