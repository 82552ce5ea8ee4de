// cross_attention_test.cpp: attention over words against that of PyTorch, row by row: outputs and
// gradients, rows without tokens, and no rows.
#include "armillary/model/cross_attention.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace armillary::model {
namespace {

constexpr std::int64_t kHeadsOfWords = 3;
constexpr std::int64_t kWidthOfWords = 8;
constexpr std::int64_t kWordsOfRow = 4;

at::Tensor drawn_heads(std::int64_t tokens, at::ScalarType dtype, at::Generator generator) {
  return at::empty({1, tokens, kHeadsOfWords, kWidthOfWords}, at::kDouble)
      .normal_(0, 1, generator)
      .to(dtype)
      .requires_grad_(true);
}

/// The same by PyTorch in fp64.
at::Tensor plain_attention_over_words(const std::vector<at::Tensor>& qkv,
                                      const TokensOfRow& tokens_of_row) {
  std::vector<at::Tensor> rows;
  std::int64_t first = 0;
  for (std::size_t row = 0; row < tokens_of_row.size(); ++row) {
    const auto words = [&](const at::Tensor& x_BNHD) {
      return x_BNHD.narrow(1, static_cast<std::int64_t>(row) * kWordsOfRow, kWordsOfRow)
          .transpose(1, 2);
    };
    const at::Tensor q_BHLD = qkv[0].narrow(1, first, tokens_of_row[row]).transpose(1, 2);
    if (tokens_of_row[row] > 0) {
      rows.push_back(
          at::scaled_dot_product_attention(q_BHLD, words(qkv[1]), words(qkv[2])).transpose(1, 2));
    }
    first += tokens_of_row[row];
  }
  return at::cat(rows, 1);
}

TEST(CrossAttention, IsThatOfEachRowOverItsWords) {
  const TokensOfRow tokens_of_row{5, 0, 2};
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const double bound = dtype == at::kDouble ? 1e-12 : 1e-5;
    at::Generator generator = at::detail::createCPUGenerator(4);
    std::vector<at::Tensor> ours;
    std::vector<at::Tensor> plain;
    for (const std::int64_t tokens : {std::int64_t{7}, 3 * kWordsOfRow, 3 * kWordsOfRow}) {
      ours.push_back(drawn_heads(tokens, dtype, generator));
      plain.push_back(ours.back().detach().to(at::kDouble, false, true).requires_grad_(true));
    }
    const at::Tensor out_BLHD = attention_over_words(ours[0], ours[1], ours[2], tokens_of_row);
    const at::Tensor expected_BLHD = plain_attention_over_words(plain, tokens_of_row);
    EXPECT_EQ(out_BLHD.scalar_type(), dtype);
    EXPECT_LT((out_BLHD - expected_BLHD).abs().max().item<double>(), bound);
    const at::Tensor dout_BLHD = drawn_heads(7, at::kDouble, generator).detach();
    out_BLHD.backward(dout_BLHD.to(dtype));
    expected_BLHD.backward(dout_BLHD);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_GT(plain[i].grad().abs().max().item<double>(), 0) << i;
      EXPECT_LT((ours[i].grad() - plain[i].grad()).abs().max().item<double>(), bound) << i;
    }
    EXPECT_EQ(ours[1].grad().narrow(1, kWordsOfRow, kWordsOfRow).abs().max().item<double>(), 0);
  }
}

TEST(CrossAttention, NoRowsAreLegal) {
  at::Generator generator = at::detail::createCPUGenerator(4);
  const at::Tensor none = drawn_heads(0, at::kFloat, generator);
  const at::Tensor out_BLHD = attention_over_words(none, none, none, {});
  EXPECT_EQ(out_BLHD.sizes(), none.sizes());
  out_BLHD.sum().backward();
  EXPECT_EQ(none.grad().numel(), 0);
}

}  // namespace
}  // namespace armillary::model
