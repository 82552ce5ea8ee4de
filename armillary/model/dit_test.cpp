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
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "armillary/model/testing/plain_dit.h"
#include "armillary/model/testing/woken_dit.h"

namespace armillary::model {
namespace {

DitOptions small_dit() {
  DitOptions options;
  options.layers = DecoderOptions()
                       .dim(24)
                       .n_layers(2)
                       .n_heads(3)
                       .n_kv_heads(3)
                       .hidden_dim(40)
                       .norm_eps(1e-6)
                       .bias(true)
                       .dtype(at::kDouble);
  options.picture = {.height = 6, .width = 4, .channels = 2, .patch = 2};
  options.n_classes = 3;
  return options;
}

std::vector<PlainPicture> drawn_pictures(const PictureShape& shape) {
  at::Generator generator = at::detail::createCPUGenerator(9);
  const auto drawn = [&] {
    return at::empty({shape.tokens(), shape.patch_values()}, at::kDouble).normal_(0, 1, generator);
  };
  std::vector<PlainPicture> pictures;
  for (const auto& [time, label] : {std::pair(0.25, 2), std::pair(0.8, 0), std::pair(0.8, 3)}) {
    const at::Tensor patches_LC = drawn();
    pictures.push_back({patches_LC, drawn(), time, label});
  }
  return pictures;
}

/// Pictures as one sequence; attention within each.
ModelInputs joined_pictures(const std::vector<PlainPicture>& pictures, bool with_noise = true) {
  std::vector<at::Tensor> patches, noise, times, classes, positions, owners;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const std::int64_t tokens = pictures[i].patches_LC.size(0);
    patches.push_back(pictures[i].patches_LC);
    noise.push_back(pictures[i].noise_LC);
    times.push_back(at::full({tokens}, pictures[i].time, at::kDouble));
    classes.push_back(at::full({tokens}, pictures[i].label, at::kLong));
    positions.push_back(at::arange(tokens, at::kLong));
    owners.push_back(at::full({tokens}, static_cast<std::int64_t>(i), at::kLong));
  }
  const at::Tensor owner_L = at::cat(owners);
  const auto attend = [visible_LL = owner_L.unsqueeze(1).eq(owner_L.unsqueeze(0))](
                          const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                          const at::Tensor& v_BLGD) {
    return at::scaled_dot_product_attention(q_BLHD.transpose(1, 2), k_BLGD.transpose(1, 2),
                                            v_BLGD.transpose(1, 2), visible_LL)
        .transpose(1, 2);
  };
  Fields batch{{kPatches, at::cat(patches).unsqueeze(0)},
               {kTimes, at::cat(times).unsqueeze(0)},
               {kClasses, at::cat(classes).unsqueeze(0)}};
  if (with_noise) batch.set(kNoise, at::cat(noise).unsqueeze(0));
  return {.batch = batch, .positions_L = at::cat(positions), .attends = {attend}};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
}

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

TEST(Dit, LossAndEveryGradientAreThoseOfAPlainComposition) {
  for (const bool fused : {true, false}) {
    DitOptions options = small_dit();
    options.layers.fused(fused);
    const ModelReplica model(std::make_shared<WokenDit>(options), 3, at::kDouble);
    PlainDit plain(options, model);
    const auto pictures = drawn_pictures(options.picture);
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
  const auto run = [](at::ScalarType dtype, bool native) {
    DitOptions options = small_dit();
    options.layers.dtype(dtype).native_bf16(native);
    const ModelReplica model(std::make_shared<WokenDit>(options), 3);
    const at::Tensor loss = model.run(joined_pictures(drawn_pictures(options.picture)));
    loss.backward();
    for (const at::Tensor& parameter : model.parameters()) {
      EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
    }
    return std::pair(loss.item<double>(), model.parameter("time_embedding.w2.weight").grad());
  };
  const auto [loss, gradient] = run(at::kFloat, false);
  for (const bool native : {false, true}) {
    const auto [other, narrow] = run(at::kBFloat16, native);
    EXPECT_NEAR(other, loss, 0.05 * loss) << native;
    EXPECT_LT((narrow - gradient).norm().item<double>(), 0.2 * gradient.norm().item<double>())
        << native;
  }
}

TEST(Dit, RecomputationChangesNoBit) {
  std::vector<at::Tensor> gradients[2];
  for (const auto policy : {cost::Recompute::None, cost::Recompute::Full}) {
    DitOptions options = small_dit();
    options.layers.recompute(policy);
    const ModelReplica model(std::make_shared<WokenDit>(options), 3, at::kDouble);
    model.run(joined_pictures(drawn_pictures(options.picture))).backward();
    for (const at::Tensor& parameter : model.parameters()) {
      gradients[policy == cost::Recompute::Full].push_back(parameter.grad());
    }
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i) {
    EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
  }
}

TEST(Dit, NoTokensAreLegal) {
  const DitOptions options = small_dit();
  const ModelReplica model(std::make_shared<WokenDit>(options), 3, at::kDouble);
  PlainPicture none = drawn_pictures(options.picture).front();
  none.patches_LC = none.patches_LC.narrow(0, 0, 0);
  none.noise_LC = none.noise_LC.narrow(0, 0, 0);
  const at::Tensor loss = model.run(joined_pictures({none}));
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  for (const at::Tensor& parameter : model.parameters()) {
    EXPECT_EQ(parameter.grad().abs().sum().item<double>(), 0);
  }
}

TEST(Dit, CostCountsTheParameters) {
  for (const std::int64_t layers : {1, 3}) {
    DitOptions options = small_dit();
    options.layers.n_layers(layers);
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
    EXPECT_EQ(cost.with_layers(5).parameters, Dit([&] {
                                                DitOptions five = options;
                                                five.layers.n_layers(5);
                                                return five;
                                              }())
                                                  .cost()
                                                  .parameters);
  }
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
