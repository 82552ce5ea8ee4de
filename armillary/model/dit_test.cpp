// dit_test.cpp: DiTs without ranks: the start, losses and every gradient against a plain
// composition, several pictures in one pass, recomputation, counts.
#include "armillary/model/dit.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "armillary/model/testing/small_dit.h"
#include "armillary/model/testing/woken_dit.h"

namespace armillary::model {
namespace {

TEST(Dit, BeginsWithAnOutputOfZeros) {
  const DitOptions options = small_dit();
  const ModelReplica model(std::make_shared<Dit>(options), 1, at::kDouble);
  const auto pictures = drawn_pictures(options.picture);
  EXPECT_EQ(model.run(joined_pictures(pictures, false)).abs().max().item<double>(), 0);
  double expected = 0;
  for (const PlainPicture& picture : pictures) {
    expected += (picture.noise_LC - picture.patches_LC).square().mean(1).sum().item<double>();
  }
  const at::Tensor loss = model.run(joined_pictures(pictures));
  EXPECT_NEAR(loss.item<double>(), expected, 1e-12 * expected);
  loss.backward();
  EXPECT_GT(model.parameter("output.weight").grad().abs().max().item<double>(), 0);
  EXPECT_EQ(model.parameter("layers.0.modulation.weight").grad().abs().max().item<double>(), 0);
}

/// A DiT that leaves the outputs of its units.
class WatchedDit : public Dit {
 public:
  using Dit::Dit;
  at::Tensor run(int unit, const Weights& weights, const at::Tensor& x,
                 const ModelInputs& inputs) override {
    outputs.push_back(Dit::run(unit, weights, x, inputs));
    return outputs.back();
  }
  std::vector<at::Tensor> outputs;
};

TEST(Dit, AllKindsBeginAsTheIdentity) {
  for (const DitOptions& options : small_dits()) {
    SCOPED_TRACE(kind_text(options));
    const auto dit = std::make_shared<WatchedDit>(options);
    const ModelReplica model(dit, 1, at::kDouble);
    EXPECT_EQ(model.run(joined_pictures(told_pictures(options), false)).abs().max().item<double>(),
              0);
    ASSERT_EQ(dit->outputs.size(), 4U);
    EXPECT_GT(dit->outputs[0].abs().max().item<double>(), 0);
    EXPECT_TRUE(at::equal(dit->outputs[1], dit->outputs[0]));
    EXPECT_TRUE(at::equal(dit->outputs[2], dit->outputs[0]));
  }
}

/// Loss and gradients of a model with pictures against the plain composition.
void expect_plain(const DitOptions& options) {
  const ModelReplica model(std::make_shared<WokenDit>(options), 3, at::kDouble);
  PlainDit plain(options, model);
  const auto pictures = told_pictures(options);
  at::Tensor expected = at::zeros({}, at::kDouble);
  for (const PlainPicture& picture : pictures) expected = expected + plain.loss(picture);
  expected.backward();
  const at::Tensor loss = model.run(joined_pictures(pictures));
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12 * expected.item<double>());
  for (const std::string& name : model.names()) {
    const at::Tensor& gradient = plain.parameters().at(name).grad();
    // A bias of keys has no effect: its gradient is rounding.
    if (!name.ends_with("wk.bias")) {
      EXPECT_GT(gradient.abs().max().item<double>(), 0) << name;
    }
    const double size = std::max(gradient.abs().max().item<double>(), 1e-3);
    EXPECT_LT(distance(model.parameter(name).grad(), gradient) / size, 1e-11) << name;
  }
}

TEST(Dit, LossAndEveryGradientAreThoseOfAPlainComposition) {
  for (const bool fused : {true, false}) {
    for (DitOptions options : small_dits()) {
      SCOPED_TRACE(kind_text(options));
      options.layers.fused(fused);
      expect_plain(options);
    }
  }
}

/// Words of one picture, then its patches, against the plain attention of both.
TEST(Dit, WordsAreReadAndNotLearned) {
  DitOptions options = small_dit();
  options.text_tokens = 2;
  options.vocab_size = 5;
  const ModelReplica model(std::make_shared<WokenDit>(options), 3, at::kDouble);
  const PlainPicture picture = drawn_pictures(options.picture).front();
  const auto with_words = [&](const std::vector<std::int64_t>& words, double of_words) {
    PlainPicture longer = picture;
    const at::Tensor zeros = at::full({2, options.picture.patch_values()}, of_words, at::kDouble);
    longer.patches_LC = at::cat({zeros, picture.patches_LC});
    longer.noise_LC = at::cat({zeros, picture.noise_LC});
    ModelInputs inputs = joined_pictures({longer});
    const at::Tensor patches = at::full({options.picture.tokens()}, kPatchOfPicture, at::kLong);
    inputs.batch.set(kText, at::cat({at::tensor(words, at::kLong), patches}).unsqueeze(0));
    return inputs;
  };
  const at::Tensor loss = model.run(with_words({3, 1}, 0));
  EXPECT_GT(std::abs(model.run(with_words({3, 4}, 0)).item<double>() - loss.item<double>()), 1e-6);
  // Whatever stands in the patches of words has no effect.
  EXPECT_EQ(model.run(with_words({3, 1}, 7)).item<double>(), loss.item<double>());
  loss.backward();
  const at::Tensor table = model.parameter("text_embeddings.weight").grad();
  for (std::int64_t word = 0; word < 6; ++word) {
    EXPECT_EQ(table[word].abs().max().item<double>() > 0, word == 3 || word == 1) << word;
  }
  EXPECT_EQ(Dit(options).targets({{kText, with_words({3, 1}, 0).batch.at(kText).squeeze(0)}}), 6);
}

// Each picture reads its own words, also beside one of the same time and class.
TEST(Dit, WordsOfCrossAttentionAreThoseOfThePicture) {
  const DitOptions options = small_dit(ModulationKind::Single, WordsKind::Cross);
  const ModelReplica model(std::make_shared<WokenDit>(options), 3, at::kDouble);
  std::vector<PlainPicture> pictures = told_pictures(options);
  const std::int64_t tokens = options.picture.tokens();
  const auto predicted = [&] {
    const at::NoGradGuard no_grad;
    return model.run(joined_pictures(pictures, false)).squeeze(0);
  };
  const at::Tensor before_LC = predicted();
  pictures[2].words[1] = 4;
  const at::Tensor after_LC = predicted();
  EXPECT_LT(distance(before_LC.narrow(0, 0, 2 * tokens), after_LC.narrow(0, 0, 2 * tokens)), 1e-12);
  EXPECT_GT(
      distance(before_LC.narrow(0, 2 * tokens, tokens), after_LC.narrow(0, 2 * tokens, tokens)),
      1e-6);
  EXPECT_EQ(Dit(options).targets({{kPatches, pictures[0].patches_LC}}), tokens);
}

TEST(Dit, PredictsWithoutNoiseWhatItLearnsWithIt) {
  const DitOptions options = small_dit();
  const ModelReplica model(std::make_shared<WokenDit>(options), 3, at::kDouble);
  const at::NoGradGuard no_grad;
  std::vector<PlainPicture> pictures = drawn_pictures(options.picture);
  const double loss = model.run(joined_pictures(pictures)).item<double>();
  std::vector<at::Tensor> targets;
  for (PlainPicture& picture : pictures) {
    targets.push_back(picture.noise_LC - picture.patches_LC);
    picture.patches_LC = picture.patches_LC * (1 - picture.time) + picture.noise_LC * picture.time;
  }
  const at::Tensor error = model.run(joined_pictures(pictures, false)) - at::cat(targets);
  EXPECT_NEAR(error.square().mean(2).sum().item<double>(), loss, 1e-12 * loss);
}

TEST(Dit, Bf16IsNearFp32) {
  for (const bool has_words : {false, true}) {
    const auto run = [&](at::ScalarType dtype, bool native) {
      DitOptions options =
          has_words ? small_dit(ModulationKind::Single, WordsKind::Cross) : small_dit();
      options.layers.dtype(dtype).native_bf16(native);
      const ModelReplica model(std::make_shared<WokenDit>(options), 3);
      const at::Tensor loss = model.run(joined_pictures(told_pictures(options)));
      loss.backward();
      for (const at::Tensor& parameter : model.parameters()) {
        EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
        EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
      }
      return std::pair(loss.item<double>(), model.parameter("time_embedding.w2.weight").grad());
    };
    const auto [loss, gradient] = run(at::kFloat, false);
    const double room = has_words ? 2 : 1;
    for (const bool native : {false, true}) {
      const auto [other, narrow] = run(at::kBFloat16, native);
      EXPECT_NEAR(other, loss, room * 0.05 * loss) << native;
      EXPECT_LT((narrow - gradient).norm().item<double>(),
                room * 0.2 * gradient.norm().item<double>())
          << native;
    }
  }
}

TEST(Dit, RecomputationChangesNoBit) {
  for (DitOptions options : small_dits()) {
    std::vector<at::Tensor> gradients[2];
    for (const auto policy : {cost::Recompute::None, cost::Recompute::Full}) {
      options.layers.recompute(policy);
      const ModelReplica model(std::make_shared<WokenDit>(options), 3, at::kDouble);
      model.run(joined_pictures(told_pictures(options))).backward();
      for (const at::Tensor& parameter : model.parameters()) {
        gradients[policy == cost::Recompute::Full].push_back(parameter.grad());
      }
    }
    for (std::size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << kind_text(options) << " " << i;
    }
  }
}

TEST(Dit, NoTokensAreLegal) {
  for (const DitOptions& options : small_dits()) {
    SCOPED_TRACE(kind_text(options));
    const ModelReplica model(std::make_shared<WokenDit>(options), 3, at::kDouble);
    PlainPicture none = told_pictures(options).front();
    none.patches_LC = none.patches_LC.narrow(0, 0, 0);
    none.noise_LC = none.noise_LC.narrow(0, 0, 0);
    const at::Tensor loss = model.run(joined_pictures({none}));
    EXPECT_EQ(loss.item<double>(), 0);
    loss.backward();
    for (const at::Tensor& parameter : model.parameters()) {
      EXPECT_EQ(parameter.grad().abs().sum().item<double>(), 0);
    }
  }
}

/// Counts of a model's parameters against those of its cost.
void expect_counted(const DitOptions& options) {
  std::int64_t all = 0;
  std::int64_t in_layers = 0;
  std::int64_t first = 0;
  std::int64_t of_ranks = 0;  // of 3 along tp together
  for (const Parameter& parameter : Dit(options).parameters()) {
    const std::int64_t count = count_of_values(parameter.shape);
    all += count;
    for (int rank = 0; rank < 3; ++rank) {
      of_ranks += count_of_values(range_of(parameter, rank, 3).size);
    }
    if (parameter.units.front().starts_with("layers.")) in_layers += count;
    if (parameter.units.front() == "embedding") first += count;
  }
  const cost::ModelCost cost = Dit(options).cost();
  EXPECT_EQ(cost.parameters, all);
  EXPECT_EQ(cost.layer_parameters, in_layers);
  EXPECT_EQ(cost.first_parameters, first);
  EXPECT_EQ(cost.along_tp(3).parameters, of_ranks);
  EXPECT_EQ(cost.along_tp(3).first_parameters, 3 * first);
  DitOptions five = options;
  five.layers.n_layers(5);
  EXPECT_EQ(cost.with_layers(5).parameters, Dit(five).cost().parameters);
}

TEST(Dit, CostCountsTheParameters) {
  for (const std::int64_t layers : {1, 3}) {
    for (DitOptions options : small_dits()) {
      SCOPED_TRACE(kind_text(options));
      options.layers.n_layers(layers);
      expect_counted(options);
    }
  }
}

// By hand for 2 layers of 24 with 2 words, and as published shapes are priced.
TEST(Dit, CostCountsTheFlopsOfWordsAndModulations) {
  const auto cost_of_kind = [](ModulationKind modulation, WordsKind words) {
    return Dit(small_dit(modulation, words)).cost();
  };
  const cost::ModelCost plain = cost_of_kind(ModulationKind::Zero, WordsKind::Joint);
  const cost::ModelCost cross = cost_of_kind(ModulationKind::Zero, WordsKind::Cross);
  const cost::ModelCost single = cost_of_kind(ModulationKind::Single, WordsKind::Joint);
  EXPECT_EQ(plain.sequence_flops, 2 * 2 * 6 * 24 * 24);
  EXPECT_EQ(single.sequence_flops, 0);
  EXPECT_EQ(cross.flops(10, 100) - plain.flops(10, 100),
            6 * (2 * 2 * 24 * 24) * 10 + 3 * (4 * 2 * 24 * 2 * 10 + 2 * 2 * 2 * 24 * 24 * 2));
  const cost::ModelCost shape = cost::dit_cost_of({.layers = 2,
                                                   .hidden = 24,
                                                   .heads = 3,
                                                   .kv_heads = 3,
                                                   .head_dim = 8,
                                                   .ffn = 40,
                                                   .vocab = 1,
                                                   .gated = false},
                                                  2);
  EXPECT_EQ(cross.sequence_flops, shape.sequence_flops);
  EXPECT_EQ(cross.token_flops, shape.token_flops);
  EXPECT_EQ(cross.layer_matmul_parameters, shape.layer_matmul_parameters);
  EXPECT_EQ(cross.tp_branches, shape.tp_branches);
}

TEST(Picture, PatchesAreRowByRowAndBack) {
  const PictureShape shape{.height = 4, .width = 6, .channels = 2, .patch = 2};
  const at::Tensor picture = at::arange(shape.values()).view({4, 6, 2});
  const at::Tensor patches = patches_of(picture, shape);
  ASSERT_EQ(patches.sizes(), (std::vector<std::int64_t>{6, 8}));
  // The patch at row 1, column 2: its last pixel is (3, 5).
  EXPECT_TRUE(at::equal(patches[5].narrow(0, 6, 2), picture[3][5]));
  EXPECT_TRUE(at::equal(picture_of(patches, shape), picture));
}

TEST(Objective, OneStepWithAnExactPredictionIsThePicture) {
  at::Generator generator = at::detail::createCPUGenerator(2);
  const at::Tensor picture = at::empty({1, 5, 3}, at::kDouble).normal_(0, 1, generator);
  const at::Tensor noise = at::empty({1, 5, 3}, at::kDouble).normal_(0, 1, generator);
  for (const std::string& name : objective_names()) {
    const Objective objective = parse_objective(name);
    for (const double from : {1.0, 0.35}) {
      const at::Tensor x =
          noisy_patches(objective, picture, noise, at::full({1, 5}, from, at::kDouble));
      const at::Tensor target = target_of(objective, picture, noise);
      EXPECT_LT(distance(denoised(objective, x, target, {from, 0}), picture), 1e-11) << name;
      // A shorter step is on the way.
      EXPECT_LT(
          distance(denoised(objective, x, target, {from, 0.2}),
                   noisy_patches(objective, picture, noise, at::full({1, 5}, 0.2, at::kDouble))),
          1e-11)
          << name;
    }
  }
}

TEST(Objective, NoiseGrowsWithTheTime) {
  for (const std::string& name : objective_names()) {
    const Objective objective = parse_objective(name);
    EXPECT_EQ(shares_at(objective, 0).picture, 1) << name;
    EXPECT_EQ(shares_at(objective, 0).noise, 0) << name;
    EXPECT_LT(shares_at(objective, 1).picture, 0.01) << name;
    for (int tenth = 0; tenth < 10; ++tenth) {
      EXPECT_LT(shares_at(objective, tenth / 10.0).noise,
                shares_at(objective, (tenth + 1) / 10.0).noise)
          << name;
    }
  }
  EXPECT_NEAR(std::pow(shares_at(Objective::Ddpm, 1).picture, 2), 4.0358e-5, 1e-9);
}

}  // namespace
}  // namespace armillary::model
