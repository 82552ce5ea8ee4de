// trainer_test.cpp: training on thread ranks: every world and strategy against one rank, runs
// repeated bit for bit, and what ends a run on all ranks.
#include "armillary/train/trainer.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/train/estimate.h"
#include "armillary/train/testing/sequences.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Only the order of sums may differ between worlds; 1e-5 is the project's bound for fp32.
constexpr double kFp32Relative = 1e-5;

struct TrainSpread {
  std::int64_t world;
  std::string strategy;
  std::string layout;
};

/// Expects the steps of every spread to equal those on one rank.
void expect_equal_to_one_rank(const Recipe& recipe, const std::vector<TrainSpread>& spreads,
                              double relative = kFp32Relative) {
  Recipe alone = recipe;
  alone.parallelism.context_parallel_degree = 1;
  const auto want = run(alone);
  ASSERT_EQ(want.size(), static_cast<std::size_t>(recipe.training.steps));
  EXPECT_LT(want.back().loss, want.front().loss);
  for (const auto& [world, strategy, layout] : spreads) {
    Recipe spread = recipe;
    spread.parallelism.context_parallel_degree = world;
    spread.parallelism.strategy = strategy;
    spread.parallelism.layout = layout;
    const auto got = run(spread);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i].loss, want[i].loss, relative * want[i].loss)
          << world << " ranks, " << strategy << ", " << layout << ", step " << i + 1;
      EXPECT_NEAR(got[i].grad_norm, want[i].grad_norm, relative * want[i].grad_norm)
          << world << " ranks, " << strategy << ", " << layout << ", step " << i + 1;
    }
  }
}

TEST(Train, AnyWorldEqualsOneRank) {
  expect_equal_to_one_rank(small_recipe(), {{2, "ring", "contiguous"},
                                            {3, "ring", "zigzag"},
                                            {4, "ring", "zigzag"},
                                            {2, "ulysses", "striped:4"},
                                            {4, "usp:u=2", "balanced"},
                                            {3, "allgather", "striped"}});
}

/// Every grid of 4 ranks and every value of a key that makes a difference, with layouts in turn.
TEST(Train, EveryStrategyOfTheRegistryEqualsOneRank) {
  Recipe recipe = small_recipe();
  recipe.training.steps = 5;
  recipe.training.global_batch_size = 1;
  recipe.parallelism.context_parallel_degree = 4;
  const plan::Problem problem = attention_problem(recipe, plan::full_mask({50, 50}));
  const char* const layouts[] = {"zigzag", "contiguous", "balanced", "striped:3"};
  std::vector<TrainSpread> spreads;
  std::set<std::string> names;
  for (const plan::Strategy& strategy : plan::legal_strategies(problem)) {
    if (strategy.name.starts_with("without_"))
      continue;  // a wrong strategy that another test registers
    spreads.push_back({4, to_string(strategy), layouts[spreads.size() % 4]});
    names.insert(strategy.name);
  }
  for (const plan::StrategyInfo& info : plan::strategies()) {
    EXPECT_TRUE(names.contains(info.name) || info.name.starts_with("without_")) << info.name;
  }
  expect_equal_to_one_rank(recipe, spreads);
}

TEST(Train, TiedWeightsAndAWindowEqualOneRank) {
  Recipe recipe = small_recipe();
  recipe.model.enable_weight_tying = true;
  recipe.model.n_kv_heads = 1;
  recipe.parallelism.mask = "window:left=20,right=0";
  expect_equal_to_one_rank(recipe, {{3, "ring", "balanced"}});
}

/// The model of GPT-2, which has learned positions, with and without an output matrix of its own.
TEST(Train, Gpt2EqualsOneRank) {
  constexpr double kGpt2 = 5e-5;  // LayerNorm: differences from a mean, which cancel more
  Recipe recipe = small_recipe();
  recipe.model.name = "gpt2";
  recipe.model.max_seq_len = 50;
  recipe.training.steps = 10;
  for (const bool tied : {true, false}) {
    recipe.model.enable_weight_tying = tied;
    expect_equal_to_one_rank(recipe, {{2, "ring", "contiguous"}, {3, "allgather", "striped"}},
                             kGpt2);
  }
  // Ranks without tokens.
  recipe.training.steps = 20;
  recipe.training.seq_len = 3;
  expect_equal_to_one_rank(recipe, {{5, "ring", "zigzag"}}, kGpt2);
}

/// Words that the data do not have are never labels, and their number need not divide by anything.
TEST(Train, AVocabularyOfAnySizeEqualsOneRank) {
  Recipe recipe = small_recipe();
  recipe.training.steps = 5;
  for (const bool tied : {false, true}) {
    recipe.model.enable_weight_tying = tied;
    recipe.model.vocab_size = 311;
    expect_equal_to_one_rank(recipe, {{2, "ring", "zigzag"}, {3, "ring", "zigzag"}});
  }
}

// The recipe is written for 4 ranks, for which the tuner would choose what 5 ranks cannot run.
TEST(Train, AnAutomaticStrategyIsChosenForTheRanksOfTheMesh) {
  Recipe recipe = small_recipe();
  recipe.model.n_kv_heads = 4;
  recipe.training.steps = 2;
  recipe.training.mixed_precision_param = "bfloat16";
  recipe.parallelism.context_parallel_degree = 4;
  recipe.parallelism.strategy = "auto:cluster=c1";
  std::vector<double> losses;
  comm::run_ranks(5, [&](comm::Communicator& comm) {
    const auto model = make_model(recipe);
    train(comm::Mesh(comm, {.cp = 5}), *model, words(recipe.training.seq_len), recipe,
          {.on_step = [&](const StepMetrics& step) { losses.push_back(step.loss); }});
  });
  recipe.parallelism.strategy = "ring";
  EXPECT_NEAR(losses.at(1), run(recipe)[1].loss, 0.01 * losses[1]);
}

TEST(Train, MoreRanksThanTokensEqualOneRank) {
  Recipe recipe = small_recipe();
  recipe.training.seq_len = 3;
  expect_equal_to_one_rank(recipe, {{5, "ring", "zigzag"}});
}

/// Narrow messages change the result, by no more than rounding.
TEST(Train, ANarrowTransferDtypeIsTakenAndCostsARounding) {
  Recipe recipe = small_recipe();
  recipe.parallelism.context_parallel_degree = 4;
  recipe.training.mixed_precision_param = "bfloat16";
  const auto wide = run(recipe);
  recipe.parallelism.transfer_dtype = "input";
  const auto narrow = run(recipe);
  EXPECT_NE(narrow.back().loss, wide.back().loss);
  EXPECT_NEAR(narrow.back().loss, wide.back().loss, 0.01 * wide.back().loss);
}

TEST(Train, SeveralThreadsOfARankTrainTheSame) {
  Recipe recipe = small_recipe();
  recipe.parallelism.context_parallel_degree = 2;
  const auto one = run(recipe);
  recipe.parallelism.threads_per_rank = 2;
  const auto two = run(recipe);
  EXPECT_NEAR(two.back().loss, one.back().loss, 1e-5 * one.back().loss);
  EXPECT_NEAR(two.back().grad_norm, one.back().grad_norm, 1e-4 * one.back().grad_norm);
}

TEST(Train, TheSameRunTwiceIsBitwiseEqual) {
  Recipe recipe = small_recipe();
  recipe.parallelism.context_parallel_degree = 3;
  for (const char* dtype : {"float32", "bfloat16"}) {
    recipe.training.mixed_precision_param = dtype;
    const auto first = run(recipe);
    const auto second = run(recipe);
    ASSERT_EQ(first.size(), second.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(first[i].loss, second[i].loss) << dtype << " step " << i + 1;
      EXPECT_EQ(first[i].grad_norm, second[i].grad_norm) << dtype << " step " << i + 1;
    }
  }
}

/// Recomputation changes no bit, in every strategy.
TEST(Train, RecomputationChangesNoBit) {
  struct Case {
    std::int64_t world;
    const char* strategy;
    const char* dtype;
  };
  for (const auto& [world, strategy, dtype] :
       {Case{1, "ring", "float32"}, Case{2, "ring", "float32"}, Case{4, "usp:u=2", "float32"},
        Case{4, "startrail:c=2", "float32"}, Case{2, "ulysses", "float32"},
        Case{4, "ulysses", "float32"}, Case{2, "usp:u=2", "bfloat16"}}) {
    Recipe recipe = small_recipe();
    recipe.training.steps = 2;
    recipe.model.n_kv_heads = 4;
    recipe.training.mixed_precision_param = dtype;
    recipe.parallelism.context_parallel_degree = world;
    recipe.parallelism.strategy = strategy;
    const auto want = run(recipe);
    for (const char* mode : {"full", "attention_output"}) {
      recipe.activation_checkpoint.mode = mode;
      const auto got = run(recipe);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].loss, want[i].loss)
            << mode << ' ' << strategy << " on " << world << ' ' << dtype << " step " << i + 1;
        EXPECT_EQ(got[i].grad_norm, want[i].grad_norm)
            << mode << ' ' << strategy << " on " << world << ' ' << dtype << " step " << i + 1;
      }
    }
  }
}

TEST(Train, ChunksOfTheLossChangeItsRoundingOnly) {
  Recipe recipe = small_recipe();
  recipe.training.steps = 5;
  const auto want = run(recipe);
  recipe.training.loss_chunk_tokens = 7;
  const auto got = run(recipe);
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i].loss, want[i].loss, kFp32Relative * want[i].loss) << "step " << i + 1;
    EXPECT_NEAR(got[i].grad_norm, want[i].grad_norm, kFp32Relative * want[i].grad_norm);
  }
}

TEST(Train, Bf16LearnsLikeFp32) {
  Recipe recipe = small_recipe();
  recipe.training.steps = 10;
  const auto want = run(recipe);
  recipe.training.mixed_precision_param = "bfloat16";
  recipe.parallelism.context_parallel_degree = 2;
  const auto got = run(recipe);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i].loss, want[i].loss, 0.01 * want[i].loss) << "step " << i + 1;
  }
}

TEST(Train, MetricsAreThere) {
  Recipe recipe = small_recipe();
  recipe.training.steps = 2;
  const auto steps = run(recipe);
  EXPECT_EQ(steps[1].step, 2);
  EXPECT_GT(steps[1].memory_bytes, std::int64_t{1} << 20);
  EXPECT_GT(steps[1].tps, 0);
  EXPECT_GT(steps[1].tflops, 0);
  ASSERT_TRUE(steps[1].mfu.has_value());
  EXPECT_GT(*steps[1].mfu, 0);
}

TEST(Train, ALossThatIsNotFiniteEndsTheRun) {
  Recipe recipe = small_recipe();
  recipe.optimizer.lr = 1e30;
  recipe.lr_scheduler.warmup_steps = 0;
  recipe.parallelism.context_parallel_degree = 2;
  EXPECT_THAT([&] { run(recipe); },
              ThrowsMessage<Error>(AllOf(HasSubstr("in step"), HasSubstr("lower optimizer.lr"))));
}

TEST(Train, AnExceptionOfTheObserverEndsAllRanks) {
  Recipe recipe = small_recipe();
  recipe.parallelism.context_parallel_degree = 3;
  const auto on_step = [](const StepMetrics&) { throw std::runtime_error("disk full"); };
  EXPECT_THAT([&] { train(recipe, words(recipe.training.seq_len), {.on_step = on_step}); },
              ThrowsMessage<std::runtime_error>("disk full"));
}

/// With weights of 3e8 the squares of a row overflow: norm(x) is 0, and so are all logits.
TEST(Train, AGradientNormThatIsNotFiniteEndsTheRun) {
  Recipe recipe = small_recipe();
  recipe.optimizer.lr = 3e8;
  recipe.lr_scheduler.warmup_steps = 0;
  EXPECT_THAT([&] { run(recipe); }, ThrowsMessage<Error>(testing::ContainsRegex(
                                        "loss [0-9.e+]+ and grad_norm (inf|nan) in step")));
}

/// A sequence of separators only has no target, which is no error.
TEST(Train, AStepWithoutTargetsHasNoLoss) {
  Recipe recipe = small_recipe();
  recipe.training.seq_len = 1;
  recipe.training.global_batch_size = 1;
  recipe.training.steps = 6;
  const PackedText text({"a", "b", "c"}, {.seq_len = 1, .seed = 0});
  std::vector<StepMetrics> steps;
  train(recipe, text, {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); }});
  int without = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool separator = tokens_of(text.at(static_cast<std::int64_t>(i)))[0] == kSeparator;
    without += separator ? 1 : 0;
    EXPECT_EQ(steps[i].loss == 0, separator) << "step " << i + 1;
    EXPECT_EQ(steps[i].grad_norm == 0, separator) << "step " << i + 1;
  }
  EXPECT_GT(without, 0);
}

TEST(Train, TheTimeoutIsTheRecipes) {
  Recipe recipe = small_recipe();
  recipe.parallelism.context_parallel_degree = 2;
  recipe.training.steps = 2;
  recipe.comm.train_timeout_seconds = 0.5;
  const auto slow = [](const StepMetrics&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  };
  EXPECT_THROW(train(recipe, words(recipe.training.seq_len), {.on_step = slow}), CommError);
}

TEST(Train, RanksHaveAsManyThreadsAsTheRecipeSays) {
  Recipe recipe = small_recipe();
  recipe.training.steps = 1;
  for (const int threads : {1, 3}) {
    recipe.parallelism.threads_per_rank = threads;
    train(recipe, words(recipe.training.seq_len),
          {.on_step = [&](const StepMetrics&) { EXPECT_EQ(at::get_num_threads(), threads); }});
  }
}

/// Data with a vocabulary of its own; its third sequence is `broken`.
class OwnData : public Data {
 public:
  OwnData(std::int64_t vocab_size, Sequence broken, std::int64_t which = 2)
      : vocab_size_(vocab_size), broken_(std::move(broken)), which_(which) {}
  std::int64_t vocab_size() const override { return vocab_size_; }
  Sequence at(std::int64_t index) const override {
    if (index == which_) return broken_;
    return sequence_of({1, 2, 3}, {2, 3, model::kIgnoredLabel}, {3});
  }

 private:
  std::int64_t vocab_size_;
  Sequence broken_;
  std::int64_t which_;
};

TEST(Train, DataThatDoNotFitAreRefusedBeforeTheirStep) {
  Recipe recipe = small_recipe();
  recipe.training.seq_len = 3;
  recipe.training.global_batch_size = 1;
  recipe.parallelism.context_parallel_degree = 2;
  int steps = 0;
  const auto on_step = [&](const StepMetrics&) { ++steps; };
  const auto train_on = [&](std::int64_t vocab_size, const Sequence& broken) {
    return [&, vocab_size, broken] {
      train(recipe, OwnData(vocab_size, broken), {.on_step = on_step});
    };
  };
  EXPECT_THAT(train_on(kVocabSize + 1, {}),
              ThrowsMessage<InvalidArgument>(
                  "recipe: model.vocab_size 257; at least 258, the vocabulary of the data, is "
                  "required; nearest: 258"));
  EXPECT_EQ(steps, 0);
  EXPECT_THAT(train_on(4, sequence_of({1, 2}, {2, 3}, {2})),
              ThrowsMessage<InvalidArgument>(
                  "data: sequence 2 has 2 tokens, 2 labels and documents of 2 tokens; "
                  "training.seq_len 3 of each is required"));
  EXPECT_EQ(steps, 1);  // the batch of step 3 is read in step 2
}

/// The texts of the InvalidArgument with which each rank ends, of which rank 1 has `broken` as its
/// sequence number `which`.
std::vector<std::string> texts_of_ranks(const Sequence& broken, const MeshShape& mesh = {.cp = 3},
                                        std::int64_t which = 2) {
  Recipe recipe = small_recipe();
  recipe.training.seq_len = 3;
  recipe.training.global_batch_size = mesh.dp;
  const Sequence good = sequence_of({1, 2, 3}, {2, 3, model::kIgnoredLabel}, {3});
  std::vector<std::string> texts(static_cast<std::size_t>(mesh.ranks()));
  const auto body = [&](comm::Communicator& comm) {
    const std::unique_ptr<model::Model> model = make_model(recipe);
    const OwnData data(4, comm.rank() == 1 ? broken : good, which);
    try {
      train(comm::Mesh(comm, mesh), *model, data, recipe, {});
    } catch (const InvalidArgument& error) {
      texts[comm.rank()] = error.what();
      throw;
    }
  };
  EXPECT_THROW(comm::run_ranks(mesh.ranks(), body, {.timeout_s = 20}), InvalidArgument);
  return texts;
}

TEST(Train, DataThatAreBrokenOnOneRankEndAllWithItsText) {
  EXPECT_THAT(texts_of_ranks(sequence_of({1, 2}, {2, 3}, {2})),
              testing::Each("rank 1: data: sequence 2 has 2 tokens, 2 labels and documents of 2 "
                            "tokens; training.seq_len 3 of each is required"));
}

TEST(Train, DataOfOneRankThatDifferEndAllWithBothTexts) {
  EXPECT_THAT(
      texts_of_ranks(sequence_of({1, 2, 2}, {2, 2, model::kIgnoredLabel}, {3})),
      testing::Each(testing::ContainsRegex("attention: rank [012] was asked for sequence=#.*, rank "
                                           "[012] for sequence=#.*; ranks hold different")));
}

// Along tp no call of attention compares them.
TEST(Train, DataOfOneRankAlongTpThatDifferEndAll) {
  EXPECT_THAT(
      texts_of_ranks(sequence_of({1, 2, 2}, {2, 2, model::kIgnoredLabel}, {3}), {.tp = 2}),
      testing::Each("train: rank 1 read other sequences than rank 0; the same data on all ranks "
                    "are required"));
}

TEST(Train, DataThatDifferFromTheStartEndAll) {
  for (const MeshShape& mesh : {MeshShape{.dp = 2}, MeshShape{.tp = 2}}) {
    EXPECT_THAT(
        texts_of_ranks(sequence_of({1, 2, 2}, {2, 2, model::kIgnoredLabel}, {3}), mesh, 0),
        testing::Each(
            "train: rank 1 read other data than rank 0; the same data on all ranks are required"));
  }
}

}  // namespace
}  // namespace armillary::train
