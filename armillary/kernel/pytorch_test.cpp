// Every kernel, and naive_attention that other tests rely on, against PyTorch's own operators in
// fp64: scaled_dot_product_attention, softmax, logsumexp and their autograd. Masks are comparisons
// of positions and dropout uses ATen's generator, so that side has no code of this project. Then
// follow cases in closed form and by hand.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "armillary/kernel/testing/dealt_attention.h"
#include "armillary/kernel/testing/dropout_by_aten.h"

namespace armillary::kernel {
namespace {

using plan::Mask;

using PyTorch = KernelTest;

INSTANTIATE_TEST_SUITE_P(Kernels, PyTorch, testing::ValuesIn(kernel_names()),
                         [](const auto& test) { return test.param; });

/// A mask as text, and as a comparison of query positions [Q, 1] and key positions [K].
struct MaskCase {
  std::string text;
  plan::Lengths lengths;
  std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k)> visible;
};

const std::vector<MaskCase>& mask_cases() {
  using T = const at::Tensor&;
  static const std::vector<MaskCase> cases = {
      {"full", {.q = 33, .kv = 45}, [](T q, T k) { return q + k >= 0; }},
      {"causal", {.q = 45, .kv = 45}, [](T q, T k) { return k <= q; }},
      {"causal:align=end", {.q = 20, .kv = 50}, [](T q, T k) { return k <= q + 30; }},
      {"window:left=5,right=2",
       {.q = 45, .kv = 45},
       [](T q, T k) { return (k >= q - 5).logical_and(k <= q + 2); }},
      {"prefix:9", {.q = 45, .kv = 45}, [](T q, T k) { return (k <= q).logical_or(k < 9); }},
      {"block_causal:8",
       {.q = 45, .kv = 45},
       [](T q, T k) { return k.floor_divide(8) <= q.floor_divide(8); }},
      {"documents:20,25,within=full", {.q = 45, .kv = 45}, [](T q, T k) {
         return (q < 20) == (k < 20);
       }}};
  return cases;
}

at::Tensor visible_pairs(const MaskCase& mask) {
  return mask.visible(at::arange(mask.lengths.q).unsqueeze(1), at::arange(mask.lengths.kv));
}

/// Heads, dims and features of a case.
struct HeadShape {
  std::string name;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t value_dim = 8;
  std::vector<double> softcap = {};
  bool slopes = false;
  bool sinks = false;
  double dropout = 0;

  Score score() const {
    Score score{.scale = 0.4};
    if (!softcap.empty()) score.softcap = softcap[0];
    if (slopes) score.alibi_slopes_H = at::linspace(0.05, 0.6, heads, at::kFloat);
    score.dropout = {.p = dropout, .seed = 0x123456789abcdef0, .step = 0xfedcba9876543210};
    return score;
  }
  at::Tensor sink_logits() const {
    return sinks ? at::linspace(-1.5, 2, heads, at::kFloat) : at::Tensor();
  }
  Sequences sequences(const Mask& mask, at::ScalarType dtype) const {
    return random_sequences(
        {.batch = 2, .heads = heads, .kv_heads = kv_heads, .head_dim = 12, .value_dim = value_dim},
        mask, dtype, 77);
  }
};

const std::vector<HeadShape>& models() {
  static const std::vector<HeadShape> all = {
      {.name = "multi-head", .kv_heads = 4},
      {.name = "grouped"},
      {.name = "multi-query, values of 31", .heads = 3, .kv_heads = 1, .value_dim = 31},
      {.name = "softcap", .softcap = {1.5}},
      {.name = "ALiBi", .slopes = true},
      {.name = "sinks, values of 131", .value_dim = 131, .sinks = true},
      {.name = "dropout", .dropout = 0.3},
      {.name = "all features", .softcap = {2}, .slopes = true, .sinks = true, .dropout = 0.2}};
  return all;
}

at::Tensor kept_by_aten(const Dropout& dropout, at::IntArrayRef sizes_BHQK) {
  at::Tensor kept_BHQK = at::empty(sizes_BHQK, at::kBool);
  bool* entry = kept_BHQK.data_ptr<bool>();
  for (std::int64_t i = 0; i < kept_BHQK.numel(); ++i) {
    const std::int64_t row = i / sizes_BHQK[3];
    const std::int64_t head = row / sizes_BHQK[2];
    entry[i] = !dropped_by_aten(dropout, head / sizes_BHQK[1], head % sizes_BHQK[1],
                                row % sizes_BHQK[2], i % sizes_BHQK[3]);
  }
  return kept_BHQK;
}

/// Results of a case by PyTorch in fp64.
class TorchAttention {
 public:
  TorchAttention(const Sequences& x, const at::Tensor& visible_QK, const HeadShape& model)
      : x_(x), hidden_QK_(visible_QK.logical_not()), model_(model), score_(model.score()) {
    const at::Tensor sinks_H = model.sink_logits();
    if (sinks_H.defined()) sinks_H_ = leaf(sinks_H);
  }

  Results results() const {
    const at::Tensor logits_BHQK = logits();
    const at::Tensor out_BSHE = (score_.softcap ? by_softmax(logits_BHQK) : by_sdpa());
    out_BSHE.backward(x_.dout_BSHE.to(at::kDouble));
    return {out_BSHE.detach(),
            logits_BHQK.logsumexp(-1).transpose(1, 2).detach(),
            q_.grad(),
            k_.grad(),
            v_.grad(),
            sinks_H_.defined() ? sinks_H_.grad() : at::zeros({model_.heads}, at::kDouble),
            logits_BHQK.narrow(-1, 0, keys()).amax({0, 2, 3}).detach()};
  }

 private:
  static at::Tensor leaf(const at::Tensor& x) {
    return x.detach().to(at::kDouble).clone().requires_grad_();
  }
  std::int64_t queries() const { return hidden_QK_.size(0); }
  std::int64_t keys() const { return hidden_QK_.size(1); }

  /// Bias [H, Q, K] of the scores: slopes, and -inf for hidden pairs.
  at::Tensor bias() const {
    at::Tensor bias_HQK = at::zeros({model_.heads, queries(), keys()}, at::kDouble);
    if (model_.slopes) {
      // Counted from the end: the last query has the position of the last key.
      const at::Tensor q = at::arange(queries(), at::kDouble) - (queries() - 1);
      const at::Tensor k = at::arange(keys(), at::kDouble) - (keys() - 1);
      const at::Tensor slopes = score_.alibi_slopes_H.to(at::kDouble).view({-1, 1, 1});
      bias_HQK = bias_HQK - slopes * (q.unsqueeze(1) - k).abs();
    }
    return bias_HQK.masked_fill(hidden_QK_, -kInf);
  }
  at::Tensor with_sinks(const at::Tensor& x_HQK) const {
    if (!sinks_H_.defined()) return x_HQK;
    std::vector<std::int64_t> shape = x_HQK.sizes().vec();
    shape.back() = 1;
    return at::cat({x_HQK, sinks_H_.view({-1, 1, 1}).expand(shape)}, -1);
  }

  /// Scores of all pairs, and of the sink as one more key.
  at::Tensor logits() const {
    const at::Tensor k = k_.repeat_interleave(model_.heads / model_.kv_heads, 2);
    at::Tensor logits_BHQK = at::einsum("bqhd,bkhd->bhqk", {q_, k}) * score_.scale;
    if (score_.softcap) logits_BHQK = (logits_BHQK / *score_.softcap).tanh() * *score_.softcap;
    return with_sinks(logits_BHQK + bias());
  }

  at::Tensor by_softmax(const at::Tensor& logits_BHQK) const {
    at::Tensor weights_BHQK = logits_BHQK.softmax(-1).narrow(-1, 0, keys());
    if (score_.dropout.on()) {
      weights_BHQK =
          weights_BHQK * kept_by_aten(score_.dropout, weights_BHQK.sizes()) / (1 - model_.dropout);
    }
    const at::Tensor v = v_.repeat_interleave(model_.heads / model_.kv_heads, 2);
    return at::einsum("bhqk,bkhe->bqhe", {weights_BHQK, v});
  }

  /// The sink is one more key with key and value 0, whose score is its bias.
  at::Tensor by_sdpa() const {
    const auto by_head = [&](const at::Tensor& x_BSGX) {
      if (!sinks_H_.defined()) return x_BSGX.transpose(1, 2);
      return at::cat({x_BSGX, at::zeros_like(x_BSGX.narrow(1, 0, 1))}, 1).transpose(1, 2);
    };
    std::optional<at::Tensor> keep_mask;
    if (score_.dropout.on()) {
      keep_mask =
          kept_by_aten(score_.dropout, {x_.q_BSHD.size(0), model_.heads, queries(), keys()});
    }
    const auto [out_BHSE, weights] = at::_scaled_dot_product_attention_math(
        q_.transpose(1, 2), by_head(k_), by_head(v_), with_sinks(bias()).unsqueeze(0),
        model_.dropout, false, keep_mask, score_.scale, /*enable_gqa=*/true);
    return out_BHSE.transpose(1, 2);
  }

  const Sequences& x_;
  at::Tensor hidden_QK_;
  const HeadShape& model_;
  Score score_;
  at::Tensor q_ = leaf(x_.q_BSHD);
  at::Tensor k_ = leaf(x_.k_BSGD);
  at::Tensor v_ = leaf(x_.v_BSGE);
  at::Tensor sinks_H_;
};

Results torch_attention(const Sequences& x, const MaskCase& mask, const HeadShape& model) {
  return TorchAttention(x, visible_pairs(mask), model).results();
}

/// Calls visit(mask, model): every mask with plain attention, every model with two masks.
template <class Visit>
void for_each_case(Visit visit) {
  for (const MaskCase& mask : mask_cases()) {
    for (const HeadShape& model : models()) {
      const bool both = mask.text == "causal:align=end" || mask.text == "window:left=5,right=2";
      if (both || model.name == "grouped") visit(mask, model);
    }
  }
}

TEST_P(PyTorch, SaysTheSameOfMasksHeadsAndFeatures) {
  for_each_case([&](const MaskCase& shape, const HeadShape& model) {
    const Mask mask = plan::parse_mask(shape.text, shape.lengths);
    const auto [q_len, kv_len] = shape.lengths;
    const plan::Interval heads{0, model.heads};
    const std::vector<Deal> ways = {{.q_blocks = {run(0, q_len)},
                                     .k_blocks = {run(0, kv_len)},
                                     .q_heads = {heads},
                                     .all = true},
                                    {.q_blocks = {run(0, q_len / 3), run(q_len / 3, q_len)},
                                     .k_blocks = {run(kv_len / 2, kv_len), run(0, kv_len / 2)},
                                     .q_heads = {{0, 1}, {1, model.heads}}}};
    for (const at::ScalarType dtype : dtypes()) {
      const Sequences x = model.sequences(mask, dtype);
      const Results required = torch_attention(x, shape, model);
      for (const Deal& deal : ways) {
        expect_near(
            dealt_attention(kernel(), x, mask, deal, Features{model.score(), model.sink_logits()}),
            required, tolerance(dtype),
            fmt::format("{}, {}, {}, {}", shape.text, model.name, c10::toString(dtype),
                        deal.all ? "at once" : "in parts"));
      }
    }
  });
}

TEST(NaiveAttention, EqualsPyTorch) {
  for_each_case([](const MaskCase& shape, const HeadShape& model) {
    const Mask mask = plan::parse_mask(shape.text, shape.lengths);
    const Sequences x = model.sequences(mask, at::kDouble);
    expect_near(naive_attention(x, mask, model.score(), model.sink_logits()),
                torch_attention(x, shape, model), 1e-12, shape.text + ", " + model.name);
  });
}

// Equal keys have equal weights. So a causal row is the mean of the values up to it, its
// log-sum-exp is the score plus the log of their number, and the gradients of the scores cancel: dq
// is 0.
TEST_P(PyTorch, EqualKeysGiveTheMeanOfValues) {
  constexpr std::int64_t kLength = 150;
  const Mask mask = plan::causal_mask({.q = kLength, .kv = kLength}, plan::Align::Start);
  for (const at::ScalarType dtype : dtypes()) {
    Sequences x = random_sequences({.heads = 2, .kv_heads = 1, .value_dim = 5}, mask, dtype, 3);
    x.k_BSGD.copy_(x.k_BSGD.narrow(1, 0, 1).clone().expand_as(x.k_BSGD));
    const Deal deal{
        .q_blocks = {run(0, kLength)}, .k_blocks = {run(0, kLength)}, .q_heads = {{0, 2}}};
    const Results results = dealt_attention(kernel(), x, mask, deal, 0.5);
    const at::Tensor counts_S = at::arange(1, kLength + 1, at::kDouble);
    const at::Tensor counts = counts_S.view({1, -1, 1, 1});
    const at::Tensor mean = x.v_BSGE.to(at::kDouble).cumsum(1) / counts;
    const double bound = tolerance(dtype);
    EXPECT_LE(relative_error(results.out_BSHE, mean.expand_as(results.out_BSHE)), bound) << dtype;
    const at::Tensor score_BSH =
        0.5 * (x.q_BSHD.to(at::kDouble) * x.k_BSGD.to(at::kDouble)).sum(-1);
    EXPECT_LE(relative_error(results.lse_BSH, score_BSH + counts_S.log().unsqueeze(1)), 1e-5)
        << dtype;
    // dv of a key is the sum of dout / count over both heads and the queries from it on.
    const at::Tensor share = (x.dout_BSHE.to(at::kDouble) / counts).sum(2, true);
    EXPECT_LE(relative_error(results.dv_BSGE, share.flip(1).cumsum(1).flip(1)), bound) << dtype;
    EXPECT_LE(results.dq_BSHD.abs().max().item<double>(), 4 * bound) << dtype;
  }
}

// Queries 1 and 2, keys 0 and 2 ln 2, scale 1/2. Query 1 has scores 0 and ln 2 and weights 1/3 and
// 2/3; query 2 has scores 0 and ln 4 and weights 1/5 and 4/5. Values 3 and 6, dout 1.
TEST_P(PyTorch, TwoQueriesOverTwoKeysByHand) {
  const Mask mask = plan::full_mask({.q = 2, .kv = 2});
  const double ln2 = std::log(2.0);
  for (const at::ScalarType dtype : dtypes()) {
    const auto column = [&](double first, double second) {
      return at::tensor({first, second}, at::kDouble).to(dtype).view({1, 2, 1, 1});
    };
    const Sequences x{.q_BSHD = column(1, 2),
                      .k_BSGD = column(0, 2 * ln2),
                      .v_BSGE = column(3, 6),
                      .dout_BSHE = column(1, 1)};
    for (const bool all : {false, true}) {
      const Deal deal{
          .q_blocks = {run(0, 2)}, .k_blocks = {run(0, 2)}, .q_heads = {{0, 1}}, .all = all};
      const Results results = dealt_attention(kernel(), x, mask, deal, 0.5);
      const auto expect = [&](const char* name, const at::Tensor& y, double first, double second) {
        const at::Tensor required = at::tensor({first, second}, at::kDouble).view(y.sizes());
        EXPECT_LE(relative_error(y, required), tolerance(dtype))
            << name << ", " << dtype << ": " << y << " where it is " << required;
      };
      expect("out", results.out_BSHE, 5, 5.4);
      expect("lse", results.lse_BSH, std::log(3.0), std::log(5.0));
      // dS = P (v - out): -2/3 and 2/3, -0.48 and 0.48.
      expect("dq", results.dq_BSHD, 2 * ln2 / 3, 0.48 * ln2);
      expect("dk", results.dk_BSGD, -(2.0 / 3 + 0.96) / 2, (2.0 / 3 + 0.96) / 2);
      expect("dv", results.dv_BSGE, 8.0 / 15, 22.0 / 15);
    }
  }
}

}  // namespace
}  // namespace armillary::kernel
