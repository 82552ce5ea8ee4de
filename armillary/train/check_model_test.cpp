// check_model_test.cpp: models that are right pass, and each row fails for a model that is wrong in
// its way.
#include "armillary/train/check_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/model/registry.h"
#include "armillary/train/estimate.h"
#include "armillary/train/testing/sequences.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// The report of a model on the ranks of the recipe, from rank 0.
CheckReport checked(const Recipe& recipe, const MakeModel& make, const Data& data) {
  CheckReport report;
  comm::run_ranks(static_cast<int>(recipe.parallelism.context_parallel_degree),
                  [&](comm::Communicator& comm) {
                    const CheckReport of_rank = check_model(comm, make, data, recipe);
                    if (comm.rank() == 0) report = of_rank;
                  });
  return report;
}

CheckReport checked(const Recipe& recipe) {
  return checked(
      recipe, [](const Recipe& of) { return make_model(of); }, words(recipe.training.seq_len));
}

std::vector<std::string> failed_rows(const CheckReport& report) {
  std::vector<std::string> names;
  for (const CheckRow& row : report.rows) {
    if (!row.ok()) names.push_back(row.name);
  }
  return names;
}

Recipe recipe_on(int world, const std::string& strategy, const std::string& layout) {
  Recipe recipe = small_recipe();
  recipe.parallelism.context_parallel_degree = world;
  recipe.parallelism.strategy = strategy;
  recipe.parallelism.layout = layout;
  return recipe;
}

TEST(CheckModel, ExpertsAreEqualToOneDevice) {
  Recipe recipe = recipe_on(3, "ring", "zigzag");
  recipe.model.name = "moe";
  recipe.model.num_experts = 5;
  recipe.model.num_shared_experts = 1;
  recipe.model.moe_inter_dim = 24;
  const CheckReport report = checked(recipe);
  EXPECT_TRUE(report.ok()) << describe(report);
}

TEST(CheckModel, RecipesAreEqualToOneDevice) {
  for (Recipe recipe : {recipe_on(1, "ring", "contiguous"), recipe_on(2, "usp:u=2", "striped"),
                        recipe_on(3, "ring", "zigzag")}) {
    recipe.model.name = recipe.parallelism.context_parallel_degree == 3 ? "llama" : "gpt";
    const CheckReport report = checked(recipe);
    EXPECT_TRUE(report.ok()) << describe(report);
    EXPECT_EQ(to_json(report)["world"], report.world);
    EXPECT_THAT(describe(report),
                HasSubstr(report.world == 1 ? "ok on one rank, where nothing is spread: "
                                            : "\nequal to one device\n"));
    EXPECT_EQ(report.rows.size(), 5U);
  }
}

// The bias of keys has a gradient that is 0 but for rounding, which is no error.
TEST(CheckModel, Gpt2IsEqualToOneDevice) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    Recipe recipe = recipe_on(3, "ring", "zigzag");
    recipe.model = model::default_options("gpt2");
    recipe.model.dim = 32;
    recipe.model.n_layers = 2;
    recipe.model.vocab_size = 301;
    recipe.training.mixed_precision_param = dtype;
    const CheckReport report = checked(recipe);
    EXPECT_TRUE(report.ok()) << describe(report);
  }
}

// Attention that backward computes again, or replays, is not counted as a call.
TEST(CheckModel, RecomputedLayersAreEqualToOneDevice) {
  for (const char* mode : {"full", "attention_output"}) {
    Recipe recipe = recipe_on(2, "ring", "zigzag");
    recipe.activation_checkpoint.mode = mode;
    const CheckReport report = checked(recipe);
    EXPECT_TRUE(report.ok()) << mode << '\n' << describe(report);
    EXPECT_THAT(report.rows[2].note, HasSubstr("worst of 2: call ")) << mode;
  }
}

TEST(CheckModel, Bf16IsComparedWithFp32) {
  Recipe recipe = recipe_on(2, "ring", "zigzag");
  recipe.training.mixed_precision_param = "bfloat16";
  const CheckReport report = checked(recipe);
  EXPECT_TRUE(report.ok()) << describe(report);
  EXPECT_THAT(report.rows[1].note, HasSubstr("worst ratio: "));
  EXPECT_GT(report.rows[1].value, 0);
}

TEST(CheckModel, TheReportHasTheSameRowsAsJson) {
  const CheckReport report{
      .title = "t", .rows = {{"loss", 2e-5, 1e-5, "n"}, {"leak", 0, 1, ""}}, .world = 2};
  const nlohmann::json json = to_json(report);
  EXPECT_FALSE(json["ok"]);
  EXPECT_EQ(json["rows"][0]["name"], "loss");
  EXPECT_FALSE(json["rows"][0]["ok"]);
  EXPECT_TRUE(json["rows"][1]["ok"]);
  EXPECT_THAT(describe(report), HasSubstr("FAIL  loss"));
  EXPECT_THAT(describe(report), HasSubstr("NOT equal to one device"));
  EXPECT_FALSE((CheckRow{"loss", std::nan(""), 1, ""}.ok()));
}

/// Mistakes that a model can make.
struct Mistakes {
  bool leaks = false;    ///< Every token sees the mean of its rank's tokens.
  bool scales = false;   ///< Attention over ranks has another scale than on one device.
  bool forgets = false;  ///< Every run gives something else.
  bool is_deaf = false;  ///< It does not read its tokens.
  bool attends = true;
};

/// An embedding, attention of its rows to each other, and the embedding again as the output.
class SmallModel : public model::Model {
 public:
  SmallModel(Mistakes mistakes, double mean) : mistakes_(mistakes), mean_(mean) {}

  std::vector<std::string> units() const override { return {"all"}; }
  std::vector<model::Parameter> parameters() const override {
    return {{.name = "embedding",
             .shape = {kVocabSize, 8},
             .units = {"all"},
             .init = {.mean = mean_, .deviation = 0.5}}};
  }
  cost::ModelCost cost() const override { return {}; }
  std::int64_t vocab_size() const override { return kVocabSize; }

  at::Tensor run(int /*unit*/, const model::Weights& weights, const at::Tensor& /*x*/,
                 const model::ModelInputs& inputs) override {
    const at::Tensor& embedding = weights.at("embedding");
    const at::Tensor& tokens_BL = inputs.batch.at(model::kTokens);
    at::Tensor x_BLE =
        at::embedding(embedding, mistakes_.is_deaf ? at::zeros_like(tokens_BL) : tokens_BL);
    if (mistakes_.leaks) x_BLE = x_BLE + x_BLE.mean(1, /*keepdim=*/true);
    if (mistakes_.forgets) x_BLE = x_BLE * (1 + 1e-7 * ++runs_);
    if (mistakes_.attends) x_BLE = x_BLE + attention(x_BLE, inputs.attends, inputs.positions_L);
    return at::cross_entropy_loss(at::linear(x_BLE, embedding).flatten(0, 1),
                                  inputs.batch.at(model::kLabels).flatten(), {}, at::Reduction::Sum,
                                  model::kIgnoredLabel);
  }

 private:
  at::Tensor attention(const at::Tensor& x_BLE, const model::Attends& attends,
                       const at::Tensor& positions_L) const {
    const at::Tensor x_BLHD = x_BLE.view({1, -1, 2, 4});
    const auto call = attends.attend.begin({1, x_BLHD.size(1), 2, 2, 4, at::kFloat});
    call.take_k(x_BLHD.detach());
    call.take_v(x_BLHD.detach());
    const bool is_part = positions_L.numel() < small_recipe().training.seq_len;
    const at::Tensor q_BLHD = mistakes_.scales && is_part ? x_BLHD * 1.01 : x_BLHD;
    return call.finish(q_BLHD, x_BLHD, x_BLHD).flatten(2);
  }

  Mistakes mistakes_;
  double mean_;
  int runs_ = 0;
};

CheckReport checked(Mistakes mistakes) {
  const Recipe recipe = recipe_on(2, "ring", "contiguous");
  return checked(
      recipe, [&](const Recipe&) { return std::make_unique<SmallModel>(mistakes, 0); },
      words(recipe.training.seq_len));
}

TEST(CheckModel, EachMistakeFailsItsRow) {
  EXPECT_THAT(failed_rows(checked(Mistakes{})), IsEmpty()) << describe(checked(Mistakes{}));
  EXPECT_THAT(failed_rows(checked({.leaks = true})), testing::Contains("leak"));
  EXPECT_THAT(failed_rows(checked({.forgets = true})), testing::Contains("determinism"));
  const std::vector<std::string> scaled = failed_rows(checked({.scales = true}));
  EXPECT_THAT(scaled, ElementsAre("loss", "gradients", "attention outputs"));
}

/// The text with which every rank refuses.
std::string refusal(const MakeModel& make) {
  const Recipe recipe = recipe_on(2, "ring", "contiguous");
  std::mutex mutex;
  std::vector<std::string> texts;
  const auto body = [&](comm::Communicator& comm) {
    try {
      check_model(comm, make, words(recipe.training.seq_len), recipe);
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      texts.emplace_back(error.what());
    }
  };
  try {
    comm::run_ranks(2, body);
  } catch (const CommError&) {
    // The group has failed with one of the texts.
  }
  EXPECT_EQ(texts.size(), 2U) << "on every rank";
  return texts.empty() ? "" : texts[0];
}

TEST(CheckModel, ModelsThatCannotBeCheckedAreRefused) {
  const auto make = [](Mistakes mistakes) {
    return [mistakes](const Recipe&) { return std::make_unique<SmallModel>(mistakes, 0); };
  };
  EXPECT_THAT(refusal(make({.attends = false})), HasSubstr("called no attention"));
  EXPECT_THAT(refusal(make({.is_deaf = true})), HasSubstr("changes no output of attention"));
  std::atomic<int> result = 0;
  EXPECT_THAT(refusal([&](const Recipe&) {
                return std::make_unique<SmallModel>(Mistakes{}, 0.5 * result++);
              }),
              HasSubstr("parameters"));
}

TEST(CheckModel, RandomTextHasDocumentsInEverySequence) {
  for (const std::int64_t tokens : {1, 2, 50, 512}) {
    const Sequence sequence =
        checked_sequence(random_text(tokens, 3), 0, {.seq_len = tokens, .fields = {}});
    EXPECT_GE(sequence.documents.size(), tokens < 50 ? 1U : 2U) << tokens;
    EXPECT_EQ(tokens_of(sequence), tokens_of(random_text(tokens, 3).at(0)));
  }
}

}  // namespace
}  // namespace armillary::train
