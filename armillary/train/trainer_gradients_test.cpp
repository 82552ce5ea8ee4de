// trainer_gradients_test.cpp: every gradient of a step on all meshes of 8 ranks against one rank:
// no factor of any degree, norms and embeddings included, and targets that ranks have unequally.
//
// With beta1 = 0 the mean of Adam is the gradient, and the checkpoint behind the step has it.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/saved_values.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

/// A step whose batch any dp of up to 8 ranks shares.
Recipe gradient_recipe(const std::string& model, std::int64_t kv_heads, bool tied) {
  Recipe recipe = small_recipe();
  recipe.model.name = model;
  recipe.model.n_heads = 8;
  recipe.model.n_kv_heads = kv_heads;
  recipe.model.enable_weight_tying = tied;
  recipe.training.global_batch_size = 8;
  recipe.training.steps = 1;
  recipe.training.check_replicas = 1;
  recipe.training.max_norm = std::numeric_limits<double>::infinity();
  recipe.optimizer.beta1 = 0;
  recipe.checkpoint.enable = true;
  return recipe;
}

/// Loss, and every gradient by the name of its mean.
struct StepGradients {
  double loss = 0;
  SavedValues values;
};

StepGradients gradients_of(Recipe recipe, const Data& data) {
  const ScratchFolder folder;
  recipe.job.dump_folder = folder.path("run");
  StepGradients gradients;
  train(recipe, data,
        {.on_step = [&](const StepMetrics& metrics) { gradients.loss = metrics.loss; }});
  gradients.values = saved_values(checkpoint_folder(recipe) + "/" + checkpoint_name(1), "means/");
  // Softmax does not see the bias of keys that do not rotate: its gradient is rounding.
  std::erase_if(gradients.values, [](const auto& one) { return one.first.ends_with("wk.bias"); });
  return gradients;
}

/// Those of a recipe. Gradients behind a LayerNorm cancel more.
void expect_gradients(const StepGradients& result, const StepGradients& expected,
                      const Recipe& recipe, const std::string& where) {
  const bool fp64 = recipe.training.mixed_precision_param == "float64";
  const bool is_gpt2 = recipe.model.name == "gpt2";
  EXPECT_NEAR(result.loss, expected.loss, (fp64 ? 1e-12 : 1e-5) * expected.loss) << where;
  const double bound = fp64 ? 1e-12 : 5e-5;
  expect_values_near(result.values, expected.values, is_gpt2 ? 10 * bound : bound, where);
}

void compute_in_fp64(Recipe& recipe) {
  apply_setting(recipe, "training.dtype=float64");
  apply_setting(recipe, "training.mixed_precision_param=float64");
}

/// All meshes of so many ranks, dp as shards, that share a batch of `batch`.
std::vector<MeshDegrees> meshes_of(int ranks, int batch) {
  std::vector<MeshDegrees> all;
  for (int dp = 1; dp <= ranks; ++dp) {
    for (int cp = 1; cp <= ranks / dp; ++cp) {
      if (ranks % (dp * cp) == 0 && batch % dp == 0) {
        all.push_back({.shards = dp, .cp = cp, .tp = ranks / (dp * cp)});
      }
    }
  }
  return all;
}

constexpr const char* kModes[] = {"none", "full", "attention_output"};

/// Models, stages and recomputation in turn over the meshes of 8 ranks.
void expect_meshes_of_eight(bool fp64) {
  const std::vector<MeshDegrees> meshes = meshes_of(8, 8);
  ASSERT_EQ(meshes.size(), 10U);
  int turn = 0;
  for (const auto& [model, kv_heads] :
       {std::pair("gpt", 8), std::pair("llama", 1), std::pair("llama", 2), std::pair("gpt2", 2)}) {
    Recipe recipe = gradient_recipe(model, kv_heads, kv_heads != 1);
    if (fp64) compute_in_fp64(recipe);
    const PackedText text = words(recipe.training.seq_len);
    const StepGradients one = gradients_of(recipe, text);
    for (MeshDegrees degrees : meshes) {
      degrees.zero = (turn + turn / 10) % 4;  // each mesh meets all
      Recipe spread = on(recipe, degrees);
      spread.activation_checkpoint.mode = kModes[turn % 3];
      ++turn;
      expect_gradients(gradients_of(spread, text), one, recipe,
                       fmt::format("{}, {} KV heads, {}", model, kv_heads, to_string(degrees)));
    }
  }
}

TEST(TrainGradients, OfEveryMeshOfEightRanksAreThoseOfOneRank) {
  expect_meshes_of_eight(/*fp64=*/false);
}

TEST(TrainGradients, OfEveryMeshInFp64AreThoseOfOneRankButForItsRounding) {
  expect_meshes_of_eight(/*fp64=*/true);
}

// Copies of shares, beside the axis of one: replicas along two axes.
TEST(TrainGradients, OfCopiesOfSharesAreThoseOfOneRank) {
  const Recipe recipe = gradient_recipe("llama", 2, true);
  const PackedText text = words(recipe.training.seq_len);
  const StepGradients one = gradients_of(recipe, text);
  for (int zero = 0; zero <= 3; ++zero) {
    const MeshDegrees degrees{.copies = 2, .shards = 2, .cp = 2, .zero = zero};
    expect_gradients(gradients_of(on(recipe, degrees), text), one, recipe, to_string(degrees));
  }
}

/// Text in which every third sequence has no target, and of the others only the first tokens do.
class FewTargets : public Data {
 public:
  explicit FewTargets(PackedText text) : text_(std::move(text)) {}
  std::int64_t vocab_size() const override { return text_.vocab_size(); }
  Sequence at(std::int64_t index) const override {
    Sequence sequence = text_.at(index);
    const at::Tensor labels = sequence.fields.at(model::kLabels).clone();
    const std::int64_t kept = index % 3 == 0 ? 0 : 1 + 7 * (index % 4);
    labels.narrow(0, kept, labels.size(0) - kept).fill_(model::kIgnoredLabel);
    sequence.fields.set(model::kLabels, labels);
    return sequence;
  }

 private:
  PackedText text_;
};

// Ranks along dp, cp and tp have no target in some microbatches, or in all of them.
TEST(TrainGradients, RanksWithoutATargetCountNothing) {
  for (const std::int64_t batch : {3, 6}) {
    Recipe recipe = gradient_recipe("llama", 2, false);
    recipe.training.global_batch_size = batch;
    const FewTargets text(words(recipe.training.seq_len));
    const StepGradients one = gradients_of(recipe, text);
    EXPECT_GT(one.loss, 0);
    for (int zero = 0; zero <= 3; ++zero) {
      const MeshDegrees degrees{
          .shards = 3, .cp = zero % 2 == 0 ? 2 : 1, .zero = zero, .tp = zero % 2 == 0 ? 1 : 2};
      expect_gradients(gradients_of(on(recipe, degrees), text), one, recipe,
                       fmt::format("{} sequences, {}", batch, to_string(degrees)));
    }
  }
}

// Minutes: 8 and 12 ranks and uneven ones in fp64, all stages, recomputation and models.
TEST(TrainGradients, DISABLED_OfTheWholeGridAreThoseOfOneRank) {
  for (const int ranks : {3, 5, 8, 12}) {
    int count = 0;
    for (const auto& [model, kv_heads] : {std::pair("gpt", 24), std::pair("gpt2", 24),
                                          std::pair("llama", 1), std::pair("llama", 2)}) {
      for (const bool tied : {false, true}) {
        Recipe recipe = gradient_recipe(model, kv_heads, tied);
        recipe.model.n_heads = 24;
        recipe.model.dim = 48;
        recipe.training.global_batch_size = ranks;
        compute_in_fp64(recipe);
        const PackedText text = words(recipe.training.seq_len);
        const StepGradients one = gradients_of(recipe, text);
        for (MeshDegrees degrees : meshes_of(ranks, ranks)) {
          // KV heads fewer than ranks are copied, if they divide them.
          if (degrees.tp > kv_heads && degrees.tp % kv_heads != 0) continue;
          for (int run = 0; run < 12; ++run) {
            degrees.zero = run % 4;
            Recipe spread = on(recipe, degrees);
            spread.activation_checkpoint.mode = kModes[run / 4];
            expect_gradients(gradients_of(spread, text), one, recipe,
                             fmt::format("{}, tied {}, {}, {}", model, tied, to_string(degrees),
                                         spread.activation_checkpoint.mode));
            ++count;
          }
        }
      }
    }
    fmt::print("{} ranks: {} runs\n", ranks, count);
  }
}

}  // namespace
}  // namespace armillary::train
