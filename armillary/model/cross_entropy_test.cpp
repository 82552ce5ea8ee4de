// cross_entropy_test.cpp: cross entropy in chunks against PyTorch's, in loss and gradient, with
// ignored tokens, no tokens, and the memory of one chunk only.
#include "armillary/model/cross_entropy.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "armillary/core/error.h"
#include "armillary/model/testing/counting_allocator.h"

namespace armillary::model {
namespace {

struct LossInputs {
  at::Tensor x_NE, weight_VE, labels_N;

  LossInputs(std::int64_t tokens, std::int64_t dim, std::int64_t vocabulary, at::ScalarType dtype) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    x_NE = at::randn({tokens, dim}, generator).to(dtype).requires_grad_(true);
    const at::ScalarType master = dtype == at::kDouble ? at::kDouble : at::kFloat;
    weight_VE = at::randn({vocabulary, dim}, generator).to(master).requires_grad_(true);
    labels_N = at::randint(vocabulary, {tokens}, generator, at::kLong);
    if (tokens > 3) labels_N[3].fill_(-100);
  }
};

struct LossResults {
  at::Tensor loss, dx_NE, dweight_VE;
};

LossResults results_of(LossInputs& in, const at::Tensor& loss) {
  (loss / 7).backward();
  LossResults results{loss.detach(), in.x_NE.grad().clone(), in.weight_VE.grad().clone()};
  in.x_NE.mutable_grad().reset();
  in.weight_VE.mutable_grad().reset();
  return results;
}

LossResults plain(LossInputs& in) {
  at::Tensor logits_NV = at::linear(in.x_NE, in.weight_VE.to(in.x_NE.scalar_type()));
  if (in.x_NE.scalar_type() == at::kBFloat16) logits_NV = logits_NV.to(at::kFloat);
  return results_of(in,
                    at::cross_entropy_loss(logits_NV, in.labels_N, {}, at::Reduction::None, -100)
                        .sum(at::kDouble));
}

double largest_error(const at::Tensor& result, const at::Tensor& required) {
  return ((result.to(at::kDouble) - required.to(at::kDouble)).abs().max() /
          required.to(at::kDouble).abs().max())
      .item<double>();
}

TEST(CrossEntropy, AnyChunkEqualsThePlainOne) {
  for (const auto& [dtype, bound] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5),
                                     std::pair(at::kBFloat16, 0.02)}) {
    LossInputs in(53, 24, 301, dtype);
    const LossResults required = plain(in);
    for (const std::int64_t chunk : {1, 7, 52, 53, 1000}) {
      for (const bool native : {false, true}) {
        const LossResults results =
            results_of(in, cross_entropy(in.x_NE, in.weight_VE, in.labels_N,
                                         {.chunk_tokens = chunk, .native_bf16 = native}));
        EXPECT_LE(largest_error(results.loss, required.loss), bound) << dtype << " chunk " << chunk;
        EXPECT_LE(largest_error(results.dx_NE, required.dx_NE), bound)
            << dtype << " chunk " << chunk;
        EXPECT_LE(largest_error(results.dweight_VE, required.dweight_VE), bound)
            << dtype << " chunk " << chunk;
      }
    }
  }
}

// Each of the others is below half an ulp of the first, all together are a thousandth.
TEST(CrossEntropy, ManyUnlikelyWordsAreCounted) {
  constexpr std::int64_t kWords = 49152;
  const at::Tensor x_NE = at::ones({3, 1});
  const at::Tensor weight_VE = at::full({kWords, 1}, -17.75);
  weight_VE[0].zero_();
  const at::Tensor labels_N = at::zeros({3}, at::kLong);
  const double required = 3 * std::log1p((kWords - 1) * std::exp(-17.75));
  ASSERT_GT(required, 2e-3);
  EXPECT_NEAR(cross_entropy(x_NE, weight_VE, labels_N, {}).item<double>(), required, 2e-6);
}

TEST(CrossEntropy, IgnoredTokensAndNoTokensCountNothing) {
  LossInputs in(5, 8, 11, at::kFloat);
  in.labels_N.fill_(-100);
  const LossResults ignored =
      results_of(in, cross_entropy(in.x_NE, in.weight_VE, in.labels_N, {.chunk_tokens = 2}));
  EXPECT_EQ(ignored.loss.item<double>(), 0);
  EXPECT_EQ(ignored.dx_NE.abs().max().item<double>(), 0);
  EXPECT_EQ(ignored.dweight_VE.abs().max().item<double>(), 0);
  LossInputs none(0, 8, 11, at::kFloat);
  const LossResults empty =
      results_of(none, cross_entropy(none.x_NE, none.weight_VE, none.labels_N, {}));
  EXPECT_EQ(empty.loss.item<double>(), 0);
  EXPECT_EQ(empty.dweight_VE.abs().max().item<double>(), 0);
}

/// Logits of all tokens, in any copy, would be most of the memory here.
TEST(CrossEntropy, LogitsOfAllTokensAreNeverThere) {
  constexpr std::int64_t kTokens = 4096;
  constexpr std::int64_t kVocabulary = 5000;
  constexpr std::int64_t kAllLogits = 4 * kTokens * kVocabulary;
  LossInputs in(kTokens, 16, kVocabulary, at::kFloat);
  CountingAllocator& memory = CountingAllocator::instance();
  const auto peak_of = [&](std::int64_t chunk) {
    return memory.peak_bytes([&] {
      results_of(in, cross_entropy(in.x_NE, in.weight_VE, in.labels_N, {.chunk_tokens = chunk}));
    });
  };
  const std::int64_t whole = memory.peak_bytes([&] { plain(in); });
  const std::int64_t chunked = peak_of(128);
  fmt::print("4096 tokens, vocabulary 5000: {:.1f} MiB at once, {:.1f} MiB in chunks of 128\n",
             static_cast<double>(whole) / (1 << 20), static_cast<double>(chunked) / (1 << 20));
  EXPECT_GT(whole, kAllLogits);
  EXPECT_LT(chunked, kAllLogits / 8);
  EXPECT_LT(peak_of(4096), 2 * kAllLogits) << "one chunk: its logits in one copy";
}

TEST(CrossEntropy, ChunksBelowOneAreRefused) {
  LossInputs in(2, 4, 3, at::kFloat);
  EXPECT_THAT([&] { cross_entropy(in.x_NE, in.weight_VE, in.labels_N, {.chunk_tokens = 0}); },
              testing::ThrowsMessage<InvalidArgument>(
                  "cross_entropy: chunks of 0 tokens; at least 1 is required"));
}

}  // namespace
}  // namespace armillary::model
