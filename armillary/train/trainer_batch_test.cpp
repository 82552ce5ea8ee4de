// trainer_batch_test.cpp: a global batch trains the same in passes of any number of sequences, on
// any mesh and at any stage of ZeRO.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/sequences.h"
#include "armillary/train/testing/small_training.h"
#include "tests/seed.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kUnevenSeq = 13;  // uneven over 2 and 3 ranks

/// Sequences of documents of other lengths each. Some have few targets, and every third has none.
class UnevenSequences : public Data {
 public:
  std::int64_t vocab_size() const override { return 11; }
  Sequence at(std::int64_t index) const override {
    Numbers tokens;
    Numbers labels;
    for (std::int64_t s = 0; s < kUnevenSeq; ++s) {
      tokens.push_back((s * s + 3 * index + 1) % 11);
      const bool is_target = index % 3 != 1 && s % (1 + index % 4) == 0;
      labels.push_back(is_target ? (s * s + 3 * index + 2) % 11 : model::kIgnoredLabel);
    }
    const std::int64_t first = 1 + index * 5 % (kUnevenSeq - 1);
    return sequence_of(tokens, labels, {first, kUnevenSeq - first});
  }
};

struct PassDivision {
  std::int64_t local = 1;
  int dp = 1;
  int cp = 1;
  int zero = 0;
  int tp = 1;
};

std::string to_string(const PassDivision& division) {
  return fmt::format("{} in a pass, dp {}, cp {}, tp {}, ZeRO-{}", division.local, division.dp,
                     division.cp, division.tp, division.zero);
}

Recipe batch_recipe(const std::string& model) {
  Recipe recipe = small_recipe();
  recipe.model.name = model;
  recipe.model.vocab_size = 11;
  recipe.model.max_seq_len = kUnevenSeq;  // learned positions begin again in each sequence
  recipe.training.seq_len = kUnevenSeq;
  recipe.training.global_batch_size = 8;
  recipe.training.steps = 3;
  recipe.lr_scheduler.warmup_steps = 1;
  return recipe;
}

std::vector<StepMetrics> run_as(Recipe recipe, const PassDivision& division) {
  recipe.training.local_batch_size = division.local;
  recipe.parallelism.data_parallel_shard_degree = division.dp;
  recipe.parallelism.context_parallel_degree = division.cp;
  recipe.parallelism.tensor_parallel_degree = division.tp;
  recipe.parallelism.zero = division.zero;
  std::vector<StepMetrics> steps;
  train(recipe, UnevenSequences(),
        {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); }});
  return steps;
}

void expect_equal_results(const std::vector<StepMetrics>& result,
                          const std::vector<StepMetrics>& expected, double relative,
                          const std::string& what) {
  ASSERT_EQ(result.size(), expected.size()) << what;
  for (std::size_t i = 0; i < result.size(); ++i) {
    EXPECT_NEAR(result[i].loss, expected[i].loss, relative * expected[i].loss)
        << what << ", step " << i + 1;
    EXPECT_NEAR(result[i].grad_norm, expected[i].grad_norm, relative * expected[i].grad_norm)
        << what << ", step " << i + 1;
  }
}

// Divisions in turn over the models.
TEST(TrainBatch, AnyNumberOfSequencesInAPassGivesTheSame) {
  int turn = 0;
  int model_number = -1;
  for (const std::string model : {"gpt", "gpt2", "llama"}) {
    ++model_number;
    const Recipe recipe = batch_recipe(model);
    const std::vector<StepMetrics> one = run_as(recipe, {});
    for (const std::int64_t local : {1, 2, 4}) {
      for (const int dp : {1, 2}) {
        for (const int cp : {1, 2, 3}) {
          const PassDivision division{local, dp, cp, turn++ % 4};
          if (turn % 3 != model_number) continue;
          expect_equal_results(run_as(recipe, division), one, model == "gpt2" ? 5e-5 : 1e-5,
                               model + ", " + to_string(division));
        }
      }
    }
    const PassDivision tensor{.local = 2, .dp = 2, .cp = 2, .zero = 3, .tp = 2};
    expect_equal_results(run_as(recipe, tensor), one, model == "gpt2" ? 5e-5 : 1e-5,
                         model + ", " + to_string(tensor));
  }
}

// Half of the layouts for each mask, in turn, or all of them with ARMILLARY_TEST_ALL.
TEST(TrainBatch, EveryMaskAndLayoutCanBeJoined) {
  int mask_number = 0;
  for (const char* mask : {"causal", "full", "window:left=3,right=0", "prefix:4",
                           "documents:within=full", "block_causal:4"}) {
    Recipe recipe = batch_recipe("gpt");
    recipe.training.steps = 2;
    recipe.parallelism.mask = mask;
    const std::vector<StepMetrics> one = run_as(recipe, {});
    int turn = mask_number++;
    for (const auto& [layout, strategy] :
         {std::pair("contiguous", "ring"), std::pair("striped:2", "ulysses"),
          std::pair("balanced", "usp:u=2"), std::pair("zigzag", "ring")}) {
      if (!test_all() && turn++ % 2 == 0) continue;
      recipe.parallelism.layout = layout;
      recipe.parallelism.strategy = strategy;
      expect_equal_results(run_as(recipe, {.local = 4, .cp = 2}), one, 1e-5,
                           fmt::format("{}, {}, {}", mask, layout, strategy));
    }
  }
}

TEST(TrainBatch, RecomputationSeesTheWholePass) {
  for (const char* mode : {"full", "attention_output"}) {
    Recipe recipe = batch_recipe("llama");
    const std::vector<StepMetrics> one = run_as(recipe, {});
    recipe.activation_checkpoint.mode = mode;
    expect_equal_results(run_as(recipe, {.local = 4, .dp = 2, .cp = 2, .zero = 2}), one, 1e-5,
                         mode);
  }
}

TEST(TrainBatch, AResumedRunMayTakeOtherPasses) {
  const ScratchFolder folder;
  Recipe recipe = batch_recipe("gpt");
  recipe.training.steps = 4;
  recipe.lr_scheduler.decay_ratio = 0;  // so that rates do not depend on the number of steps
  const std::vector<StepMetrics> whole = run_as(recipe, {});
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  Recipe half = recipe;
  half.training.steps = 2;
  std::vector<StepMetrics> steps = run_as(half, {.local = 2, .dp = 2, .cp = 2});
  recipe.training.local_batch_size = 8;
  train(recipe, UnevenSequences(),
        {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); }, .resume = true});
  expect_equal_results(steps, whole, 1e-5, "2, then 8 in a pass");
}

TEST(TrainBatch, PassesThatDoNotDivideTheBatchAreRefused) {
  EXPECT_THAT([] { run_as(batch_recipe("gpt"), {.local = 3, .dp = 2}); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("a multiple of 6 is required; nearest: training.global_batch_size = 6 "
                            "or 12, or training.local_batch_size = 2 or 4")));
}

}  // namespace
}  // namespace armillary::train
