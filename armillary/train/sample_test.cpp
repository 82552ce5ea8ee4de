// sample_test.cpp: a picture is the same on every mesh, with guidance by a batch, by passes and by
// ranks, alone and beside others; guidance is the formula; twins exchange their predictions and no
// more; what cannot be sampled is refused.
#include "armillary/train/sample.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "armillary/comm/label.h"
#include "armillary/comm/local.h"
#include "armillary/comm/watched_communicator.h"
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

/// The same with guidance in this way.
SampleOptions few_pictures_by(GuidanceBy way) {
  SampleOptions options = few_pictures();
  options.guidance_by = way;
  return options;
}

/// One rank's pictures of a DiT that changes its input.
at::Tensor sampled_by(comm::Communicator& comm, const Recipe& recipe,
                      const SampleOptions& options) {
  model::DitOptions dit = model::dit_options(recipe.model);
  if (recipe.training.dtype == "float64") dit.layers.dtype(at::kDouble);
  model::WokenDit model(dit);
  return sample(comm::Mesh(comm, mesh_of(recipe.parallelism)), model, recipe, options);
}

/// The same on the ranks of a mesh, equal on all of them.
at::Tensor sampled_on(const Recipe& recipe, const SampleOptions& options) {
  at::Tensor result;
  comm::run_ranks(mesh_of(recipe.parallelism).ranks(), [&](comm::Communicator& comm) {
    const at::Tensor mine = sampled_by(comm, recipe, options);
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
  const std::vector<MeshDegrees> halves{{.copies = 2},
                                        {.shards = 2, .cp = 3},
                                        {.copies = 2, .shards = 2, .zero = 3},
                                        {.shards = 2, .cp = 2, .zero = 3, .tp = 2}};
  Recipe ddpm = in_fp64(small_dit_recipe());
  ddpm.model.objective = "ddpm";
  const auto expect_same = [&](const Recipe& recipe, double bound) {
    SampleOptions options = few_pictures();
    const at::Tensor one = sampled_on(recipe, options);
    ASSERT_EQ(one.sizes(), (std::vector<std::int64_t>{5, 6, 10, 2}));
    for (const GuidanceBy way : {GuidanceBy::Batch, GuidanceBy::Passes, GuidanceBy::Ranks}) {
      options.guidance_by = way;
      for (const MeshDegrees& degrees : way == GuidanceBy::Ranks ? halves : meshes) {
        EXPECT_LT(farthest(sampled_on(on(recipe, degrees), options), one), bound)
            << recipe.model.objective << " by " << to_string(way) << ", " << to_string(degrees);
      }
    }
  };
  expect_same(small_dit_recipe(), 1e-5);
  expect_same(in_fp64(small_dit_recipe()), 1e-12);
  expect_same(ddpm, 1e-10);
}

TEST(Sample, WithTextAPictureIsTheSameOnEveryMeshToo) {
  for (const Recipe& sizes :
       {small_text_dit_recipe(), small_cross_dit_recipe(), small_cross_dit_recipe("zero")}) {
    SCOPED_TRACE(sizes.model.words + " " + sizes.model.modulation);
    const Recipe recipe = in_fp64(sizes);
    SampleOptions options = few_pictures();
    options.words = {1, 6, 0, 3, 3};
    const at::Tensor one = sampled_on(recipe, options);
    SampleOptions other = options;
    other.words[1] = 2;
    EXPECT_GT(farthest(sampled_on(recipe, other), one), 1e-4);
    const MeshDegrees degrees{.shards = 2, .cp = 3, .tp = 2};
    for (const GuidanceBy way : {GuidanceBy::Passes, GuidanceBy::Ranks}) {
      options.guidance_by = way;
      EXPECT_LT(farthest(sampled_on(on(recipe, degrees), options), one), 1e-12) << to_string(way);
    }
  }
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

// With guidance 0 the prediction for none alone counts: twins that took each other's would differ.
TEST(Sample, HalvesOfTheRanksGiveThePicturesOfTwoPasses) {
  const Recipe recipe = in_fp64(small_dit_recipe());
  for (const double guidance : {0.0, 4.0}) {
    SampleOptions passes = few_pictures_by(GuidanceBy::Passes);
    SampleOptions ranks = few_pictures_by(GuidanceBy::Ranks);
    passes.guidance = ranks.guidance = guidance;
    EXPECT_LT(farthest(sampled_on(on(recipe, {.shards = 2, .cp = 2}), ranks),
                       sampled_on(on(recipe, {.cp = 2}), passes)),
              1e-12)
        << guidance;
  }
}

// 5 pictures on the two ranks of a half are 2 passes of 2; their 30 patches of 8 values lie on 2
// ranks along cp.
TEST(Sample, TwinsExchangeOnePredictionOfARanksPatchesAStep) {
  const Recipe recipe = on(small_dit_recipe(), {.shards = 4, .cp = 2});
  const SampleOptions options = few_pictures_by(GuidanceBy::Ranks);
  constexpr int kPatchValuesOfRank = 30 / 2 * 8;
  const comm::Label call =
      comm::label_of(fmt::format("all_gather of {} fp32", 2 * kPatchValuesOfRank));
  comm::run_ranks(8, [&](comm::Communicator& inner) {
    std::vector<std::int64_t> sent_bytes;
    std::vector<std::int64_t> received_bytes;
    comm::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
      if (message.label == nullptr || *message.label != call) return;
      ASSERT_EQ(message.parts.size(), 1U);
      const comm::Strided& part = message.parts[0];
      (message.direction == comm::Direction::Send ? sent_bytes : received_bytes)
          .push_back(part.rows * part.row_bytes);
    });
    sampled_by(comm, recipe, options);
    const std::vector<std::int64_t> expected(static_cast<std::size_t>(2 * options.steps),
                                             kPatchValuesOfRank * 4);
    EXPECT_EQ(sent_bytes, expected) << "rank " << comm.rank();
    EXPECT_EQ(received_bytes, expected) << "rank " << comm.rank();
  });
}

/// A DiT whose second prediction fails, on some ranks.
class FailingDit : public model::WokenDit {
 public:
  FailingDit(const model::DitOptions& options, bool fails) : WokenDit(options), fails_(fails) {}
  at::Tensor run(int unit, const model::Weights& weights, const at::Tensor& x,
                 const model::ModelInputs& inputs) override {
    if (fails_ && unit == 0 && ++predictions_ == 2) throw std::runtime_error("half is out");
    return WokenDit::run(unit, weights, x, inputs);
  }

 private:
  bool fails_;
  int predictions_ = 0;
};

// The ranks of either half wait for those of the other one in each step.
TEST(Sample, AHalfThatFailsEndsTheOther) {
  const Recipe recipe = on(small_dit_recipe(), {.shards = 2, .cp = 2});
  for (const int failing : {0, 3}) {
    std::atomic<int> told = 0;
    const auto body = [&](comm::Communicator& comm) {
      FailingDit model(model::dit_options(recipe.model), comm.rank() == failing);
      try {
        sample(comm::Mesh(comm, mesh_of(recipe.parallelism)), model, recipe,
               few_pictures_by(GuidanceBy::Ranks));
      } catch (const CommError& error) {
        if (std::string(error.what()).find("half is out") != std::string::npos) ++told;
        throw;
      }
    };
    EXPECT_THAT([&] { comm::run_ranks(4, body); },
                ThrowsMessage<std::runtime_error>(HasSubstr("half is out")));
    EXPECT_EQ(told, 3) << failing;
  }
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
  for (const double guidance : {std::nan(""), -HUGE_VAL}) {
    options = few_pictures();
    options.guidance = guidance;
    refused(small_dit_recipe(), options,
            fmt::format("sample: --guidance {}; a finite number is required", guidance));
  }
  const Recipe three = on(small_dit_recipe(), {.shards = 3});
  refused(three, few_pictures_by(GuidanceBy::Ranks),
          "sample: --guidance-by ranks with 3 ranks along dp; an even number is required, half of "
          "them for each prediction; nearest: parallelism.data_parallel_shard_degree = 4");
  refused(on(small_dit_recipe(), {.cp = 2}), few_pictures_by(GuidanceBy::Ranks),
          "with 1 rank along dp; an even number is required, half of them for each prediction; "
          "nearest: parallelism.data_parallel_shard_degree = 2");
  for (const GuidanceBy way : {GuidanceBy::Passes, GuidanceBy::Ranks}) {
    options = few_pictures_by(way);
    options.guidance = 1;
    refused(on(small_dit_recipe(), {.shards = 2}), options,
            "with --guidance 1, which has one prediction alone; another --guidance is required; "
            "nearest: --guidance-by batch");
  }
  Recipe causal = small_dit_recipe();
  causal.parallelism.mask = "causal";
  refused(causal, few_pictures(), "recipe: parallelism.mask causal with model.name dit");
}

}  // namespace
}  // namespace armillary::train
