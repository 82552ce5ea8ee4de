// tiny_model.h: a Llama of random weights for tests, or one with experts, and its logits on one
// rank: whole sequences, by plain S x S attention, without cache, ranks or plans.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/model/initial_values.h"
#include "armillary/model/registry.h"
#include "armillary/serve/model_sessions.h"
#include "armillary/serve/model_weights.h"
#include "armillary/train/one_device.h"

namespace armillary::serve {

using Tokens = std::vector<std::int64_t>;

class TinyModel {
 public:
  static constexpr std::int64_t kWords = 61;
  static constexpr std::int64_t kLayers = 2;
  static constexpr std::int64_t kHeads = 4;
  static constexpr std::int64_t kKvHeads = 2;
  static constexpr std::int64_t kHeadDim = 8;

  /// `name`: llama or moe.
  explicit TinyModel(const std::string& name = "llama") : options_(options(name)) {
    weights_ = std::make_unique<ModelWeights>(part(0, 1));
  }

  /// The weights of a rank along tp.
  ModelWeights part(int tp_index, int tp_ranks) const {
    const auto read = [](const std::string& name, const model::GlobalRange& range,
                         std::span<float> values) {
      const model::Parameter spec{.name = name,
                                  .shape = range.whole,
                                  .init = range.whole.size() == 1
                                              ? model::Init{.mean = 1, .deviation = 0.2}
                                              : model::Init{.deviation = 0.25}};
      model::draw_initial_values(spec, range, 5, values);
    };
    return {*make(), read, {.tp_index = tp_index, .tp_ranks = tp_ranks}};
  }

  /// With its weights for each rank along tp, for sessions that open a model.
  ModelParts open(int tp_ranks = 1) const {
    ModelParts parts;
    for (int index = 0; index < tp_ranks; ++index) {
      parts.push_back(std::make_shared<const OpenModel>(
          OpenModel{options_, part(index, tp_ranks), {.tp_index = index, .tp_ranks = tp_ranks}}));
    }
    return parts;
  }
  /// A model for one rank.
  std::unique_ptr<model::Model> make(at::ScalarType dtype = at::kFloat) const {
    return model::make_model(options_, {.dtype = dtype});
  }
  std::function<model::Weights(int unit)> use() const {
    return [this](int unit) { return weights_->of_unit(unit); };
  }

  /// The logits [S, V] behind each token of a sequence. Layers have these windows in turn; 0: none.
  at::Tensor logits(const Tokens& tokens, const std::vector<std::int64_t>& windows = {0}) const {
    const at::NoGradGuard no_grad;
    const auto length = static_cast<std::int64_t>(tokens.size());
    std::vector<model::Attend> in_turn;
    for (const std::int64_t window : windows) {
      const std::int64_t left = window > 0 ? window - 1 : length;
      const plan::Mask mask =
          plan::window_mask({length, length}, {.left = left}, plan::Align::Start);
      in_turn.push_back(train::attend_on_one_device(train::visible_pairs(mask)));
    }
    std::size_t calls = 0;
    const model::Attend attend = [&](const model::QkvShape& shape) {
      return in_turn[calls++ % in_turn.size()].begin(shape);
    };
    const model::ModelInputs inputs{
        .batch = {{model::kTokens, at::tensor(tokens, at::kLong).unsqueeze(0)}},
        .positions_L = at::arange(length, at::kLong),
        .attends = attend};
    return model::run_units(*make(), use(), inputs).squeeze(0);
  }
  /// Those behind the last token.
  at::Tensor last_logits(const Tokens& tokens,
                         const std::vector<std::int64_t>& windows = {0}) const {
    return logits(tokens, windows).select(0, static_cast<std::int64_t>(tokens.size()) - 1);
  }

  /// A text of so many tokens, another for each seed.
  static Tokens text(std::int64_t length, std::int64_t seed = 0) {
    Tokens tokens;
    for (std::int64_t i = 0; i < length; ++i) {
      tokens.push_back((i * i * 7 + i * 13 + seed * 29 + i / 5) % kWords);
    }
    return tokens;
  }

 private:
  static model::ModelOptions options(const std::string& name) {
    model::ModelOptions options;
    options.name = name;
    options.dim = kHeads * kHeadDim;
    options.n_layers = kLayers;
    options.n_heads = kHeads;
    options.n_kv_heads = kKvHeads;
    options.hidden_dim = 48;
    options.vocab_size = kWords;
    return options;
  }

  model::ModelOptions options_;
  std::unique_ptr<ModelWeights> weights_;
};

/// Expects logits that differ by rounding alone.
inline void expect_close(const at::Tensor& logits, const at::Tensor& expected,
                         const std::string& where) {
  ASSERT_EQ(logits.sizes(), expected.sizes()) << where;
  const double most = expected.abs().max().item().toDouble();
  const double error =
      (logits.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item().toDouble();
  EXPECT_LE(error, 2e-5 * most) << where;
}

/// Two texts, one after the other.
inline Tokens joined(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

}  // namespace armillary::serve
