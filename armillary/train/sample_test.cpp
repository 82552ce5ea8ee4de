// sample_test.cpp: a picture is the same on every mesh, in one pass and in two, alone and beside
// others; guidance is the formula; what cannot be sampled is refused.
#include "armillary/train/sample.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/model/testing/woken_dit.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/mesh_grid.h"
#include "armillary/train/testing/picture_file.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

SampleOptions few_pictures() {
  return {.classes = {0, 1, 2, 3, 1}, .steps = 4, .guidance = 2.5, .seed = 9, .pictures_a_pass = 2};
}

/// Pictures of a DiT that changes its input, on a mesh.
at::Tensor sampled_on(const Recipe& recipe, const SampleOptions& options) {
  at::Tensor result;
  comm::run_ranks(mesh_of(recipe.parallelism).ranks(), [&](comm::Communicator& comm) {
    model::DitOptions dit = model::dit_options(recipe.model);
    if (recipe.training.dtype == "float64") dit.layers.dtype(at::kDouble);
    model::WokenDit model(dit);
    const at::Tensor mine =
        sample(comm::Mesh(comm, mesh_of(recipe.parallelism)), model, recipe, options);
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (result.defined()) {
      EXPECT_TRUE(at::equal(result, mine)) << "rank " << comm.rank();
    }
    result = mine;
  });
  return result;
}

double farthest(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

// In fp32 by rectified flow; the first step of ddpm divides by 0.006, and rounding with it.
TEST(Sample, APictureIsTheSameOnEveryMesh) {
  const std::vector<MeshDegrees> meshes{
      {}, {.cp = 3}, {.tp = 4}, {.shards = 2}, {.shards = 2, .cp = 2, .zero = 3, .tp = 2}};
  Recipe ddpm = in_fp64(small_dit_recipe());
  ddpm.model.objective = "ddpm";
  const auto expect_same = [&](const Recipe& recipe, double bound) {
    SampleOptions options = few_pictures();
    const at::Tensor one = sampled_on(recipe, options);
    ASSERT_EQ(one.sizes(), (std::vector<std::int64_t>{5, 6, 10, 2}));
    for (const bool two_passes : {false, true}) {
      options.two_passes = two_passes;
      for (const MeshDegrees& degrees : meshes) {
        EXPECT_LT(farthest(sampled_on(on(recipe, degrees), options), one), bound)
            << recipe.model.objective << ", " << to_string(degrees);
      }
    }
  };
  expect_same(small_dit_recipe(), 1e-5);
  expect_same(in_fp64(small_dit_recipe()), 1e-12);
  expect_same(ddpm, 1e-10);
}

TEST(Sample, WithTextAPictureIsTheSameOnEveryMeshToo) {
  const Recipe recipe = in_fp64(small_text_dit_recipe());
  SampleOptions options = few_pictures();
  options.words = {1, 6, 0, 3, 3};
  const at::Tensor one = sampled_on(recipe, options);
  SampleOptions other = options;
  other.words[1] = 2;
  EXPECT_GT(farthest(sampled_on(recipe, other), one), 1e-4);
  options.two_passes = true;
  const MeshDegrees degrees{.shards = 2, .cp = 3, .tp = 2};
  EXPECT_LT(farthest(sampled_on(on(recipe, degrees), options), one), 1e-12);
}

TEST(Sample, APictureDependsOnItsNumberAndClassAlone) {
  const Recipe recipe = in_fp64(small_dit_recipe());
  const at::Tensor all = sampled_on(recipe, few_pictures());
  SampleOptions first = few_pictures();
  first.classes.resize(2);
  EXPECT_LT(farthest(sampled_on(recipe, first), all.narrow(0, 0, 2)), 1e-12);
  first.seed = 10;
  EXPECT_GT(farthest(sampled_on(recipe, first), all.narrow(0, 0, 2)), 0.1);
}

TEST(Sample, GuidanceLeadsFromNoneToTheClass) {
  const Recipe recipe = in_fp64(small_dit_recipe());
  SampleOptions options = few_pictures();
  options.steps = 1;  // one step is linear in the prediction
  const auto with = [&](double guidance, const std::vector<std::int64_t>& classes) {
    SampleOptions other = options;
    other.guidance = guidance;
    other.classes = classes;
    return sampled_on(recipe, other);
  };
  const at::Tensor none = with(1, {3, 3});
  const at::Tensor told = with(1, {0, 2});
  EXPECT_GT(farthest(told, none), 1e-3);
  EXPECT_LT(farthest(with(2.5, {0, 2}), none + (told - none) * 2.5), 1e-12);
}

TEST(Sample, ANewModelGivesItsNoise) {
  Recipe recipe = in_fp64(small_dit_recipe());
  SampleOptions options = few_pictures();
  const at::Tensor pictures = sample(recipe, options);  // its output is 0
  options.steps = 1;
  EXPECT_LT(farthest(sample(recipe, options), pictures), 1e-12);
  EXPECT_NEAR(pictures.square().mean().item<double>(), 1, 0.3);
}

TEST(Sample, WhatCannotBeSampledIsRefused) {
  const auto refused = [](const Recipe& recipe, const SampleOptions& options,
                          const std::string& text) {
    EXPECT_THAT(([&] { sample(recipe, options); }),
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  SampleOptions options = few_pictures();
  refused(Recipe(), options, "sample: model.name gpt; dit, which makes pictures, is required");
  options.classes = {4};
  refused(small_dit_recipe(), options,
          "sample: class 4; one below 3, model.n_classes, or 3 for none, is required; nearest: 3");
  options.classes = {};
  refused(small_dit_recipe(), options, "sample: 0 pictures");
  options = few_pictures();
  options.words = {1};
  refused(small_dit_recipe(), options, "sample: 1 words; 0, model.text_tokens, are required");
  options.words = {1, 2, 3, 4, 8};
  refused(small_text_dit_recipe(), options, "sample: word 8; one below 7, model.vocab_size");
  options = few_pictures();
  options.checkpoint = options.init_from = "a";
  refused(small_dit_recipe(), options, "one is required");
  Recipe causal = small_dit_recipe();
  causal.parallelism.mask = "causal";
  refused(causal, few_pictures(), "recipe: parallelism.mask causal with model.name dit");
}

}  // namespace
}  // namespace armillary::train
