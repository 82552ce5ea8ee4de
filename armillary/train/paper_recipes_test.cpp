// paper_recipes_test.cpp: recipes/papers: the shapes of the papers at full size, as numbers, and
// tiny, on ranks that are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "armillary/predict/cost/known_models.h"
#include "armillary/train/estimate.h"
#include "armillary/train/scale.h"
#include "armillary/train/testing/picture_file.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"
#include "armillary/train/whole_sequences.h"
#include "tests/seed.h"

namespace armillary::train {
namespace {

using testing::AnyOf;

/// A recipe as its paper has it.
struct PublishedShape {
  const char* shape;  ///< As cost::parse_shape has it.
  double parameters;  ///< By the name of the model,
  double rounding;    ///< and half a unit of its last digit.
  int devices;
  std::int64_t tokens;  ///< In a sequence; a batch has one.
  int zero;
  const char* recomputation;
  bool is_dit = false;     ///< Under a full mask.
  bool is_single = false;  ///< One modulation for all layers.
  int cross_words = 0;     ///< Those of cross-attention.
};

const std::map<std::string, PublishedShape>& published() {
  static const std::map<std::string, PublishedShape> models{
      // StarTrail, table 1; WallFacer, section 5.
      {"gpt_3b",
       {"layers=12,hidden=4096,heads=16,ffn=16384,vocab=50257,gated=false", 3e9, 0.5e9, 32, 65536,
        2, "attention_output"}},
      {"gpt_7b",
       {"layers=32,hidden=4096,heads=32,ffn=16384,vocab=50257,gated=false", 7e9, 0.5e9, 64, 131072,
        2, "attention_output"}},
      {"dit_1b",
       {"layers=24,hidden=1536,heads=24,ffn=6144,vocab=1,gated=false", 1e9, 0.05e9, 8, 524288, 2,
        "attention_output", /*is_dit=*/true}},
      // PixArt-alpha, whose modulation is not in the layers.
      {"pixart_alpha",
       {"layers=28,hidden=1152,heads=16,ffn=4608,vocab=1,gated=false", 0.6e9, 0.05e9, 8, 4096, 2,
        "none", /*is_dit=*/true, /*is_single=*/true, /*cross_words=*/120}},
      // Widths and number of layers of Flux.1, by the count of ours: 12 billion are in two streams.
      {"flux_joint",
       {"layers=57,hidden=3072,heads=24,ffn=12288,vocab=1,gated=false", 9.8e9, 0.05e9, 8, 4608, 3,
        "attention_output", /*is_dit=*/true}},
      // USP, section 5.
      {"llama2_7b", {"llama2-7b", 7e9, 0.5e9, 8, 65536, 1, "none"}},
      {"llama3_8b", {"llama3-8b", 8e9, 0.5e9, 16, 122880, 1, "none"}},
      // Attention2D, table 3. GPT-3's 2.65 billion are called 2.7.
      {"gpt_760m",
       {"layers=24,hidden=1536,heads=16,ffn=6144,vocab=50257,gated=false", 760e6, 5e6, 64, 32768, 3,
        "none"}},
      {"gpt_2_7b", {"gpt3-2.7b", 2.65e9, 0.005e9, 64, 32768, 3, "none"}},
      {"gpt_13b", {"gpt3-13b", 13e9, 0.5e9, 64, 32768, 3, "none"}},
      {"gpt_66b",
       {"layers=64,hidden=9216,heads=72,ffn=36864,vocab=50257,gated=false", 66e9, 0.5e9, 64, 32768,
        3, "none"}},
      {"gpt_175b", {"gpt3-175b", 175e9, 0.5e9, 64, 32768, 3, "none"}},
  };
  return models;
}

std::filesystem::path papers_folder() {
  return std::filesystem::path(__FILE__).parent_path() / "../../recipes/papers";
}

Recipe paper_recipe(const std::string& name) {
  return load_recipe((papers_folder() / (name + ".toml")).string());
}

TEST(PaperRecipes, EveryFileIsTheShapeOfItsPaper) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(papers_folder())) {
    const std::string name = entry.path().stem().string();
    ASSERT_TRUE(published().contains(name)) << entry.path();
    ++files;
    const PublishedShape& paper = published().at(name);
    const Recipe recipe = paper_recipe(name);
    validate(recipe);
    EXPECT_EQ(mesh_of(recipe.parallelism).ranks(), paper.devices) << name;
    EXPECT_EQ(recipe.training.mixed_precision_param, "bfloat16") << name;
    EXPECT_EQ(recipe.parallelism.mask, paper.is_dit ? "full" : "causal") << name;
    EXPECT_EQ(recipe.training.seq_len, paper.tokens) << name;
    EXPECT_EQ(recipe.training.global_batch_size, 1) << name;
    EXPECT_EQ(recipe.parallelism.zero, paper.zero) << name;
    EXPECT_EQ(recipe.activation_checkpoint.mode, paper.recomputation) << name;

    const cost::ModelCost cost = model_cost(recipe);
    const cost::ModelCost shape = cost::parse_model(
        paper.shape, paper.is_dit ? cost::StepKind::Dit : cost::StepKind::Train, paper.cross_words);
    EXPECT_NEAR(static_cast<double>(cost.parameters), paper.parameters, paper.rounding) << name;
    // The shape has no weights of norms and no biases.
    const std::int64_t shared =
        paper.is_single ? 6 * recipe.model.n_layers * recipe.model.dim * recipe.model.dim : 0;
    const auto layers = static_cast<double>(shape.layer_parameters - shared);
    EXPECT_NEAR(static_cast<double>(cost.layer_parameters), layers,
                (paper.is_dit ? 1.1e-3 : 2e-4) * layers)
        << name;
    EXPECT_EQ(cost.attention.layers, shape.attention.layers) << name;
    EXPECT_EQ(cost.attention.heads, shape.attention.heads) << name;
    EXPECT_EQ(cost.attention.kv_heads, shape.attention.kv_heads) << name;
    EXPECT_EQ(cost.attention.head_dim, shape.attention.head_dim) << name;
    EXPECT_EQ(cost.logits, shape.logits) << name;
  }
  EXPECT_EQ(files, published().size());
}

// StarTrail's backbone has 1.02 billion parameters, which are those of layers with adaLN-zero.
TEST(PaperRecipes, Dit1bHasThePublishedParameters) {
  const cost::ModelCost cost = model_cost(paper_recipe("dit_1b"));
  EXPECT_EQ(cost.layer_parameters, 24 * (18 * 1536 * 1536 + (5 + 4 + 6) * 1536));
  EXPECT_NEAR(static_cast<double>(cost.layer_parameters), 1.02e9, 0.005e9);
}

// Matrices of a layer: 4 of attention, 8 of the MLP, 4 of cross-attention; biases, and a table
// of 6.
TEST(PaperRecipes, PixArtAlphaHasTheParametersOfItsLayers) {
  const cost::ModelCost cost = model_cost(paper_recipe("pixart_alpha"));
  EXPECT_EQ(cost.layer_parameters, 28 * (16 * 1152 * 1152 + (4 + 5 + 4 + 6) * 1152));
  EXPECT_EQ(cost.parameters, 641942800);
  EXPECT_EQ(cost.sequence_flops, 28.0 * 4 * 1152 * 1152 * 120);
}

// 512 words and 4,096 patches share the weights of 57 layers.
TEST(PaperRecipes, FluxJointHasTheParametersOfItsLayers) {
  const cost::ModelCost cost = model_cost(paper_recipe("flux_joint"));
  EXPECT_EQ(cost.layer_parameters, std::int64_t{57} * (18 * 3072 * 3072 + (5 + 4 + 6) * 3072));
  EXPECT_EQ(cost.parameters, 9814963264);
}

// At full size, without text. Parameters, gradients and state of a rank are at least its share.
TEST(PaperRecipes, StepsAreEstimatedWithoutTensors) {
  for (const auto& [name, paper] : published()) {
    const Recipe recipe = paper_recipe(name);
    const Estimate result = estimate(recipe, WholeSequences(recipe.training.seq_len));
    const std::int64_t length = recipe.training.seq_len;
    EXPECT_EQ(result.visible_pairs, paper.is_dit ? length * length : length * (length + 1) / 2);
    const double share = 16.0 * static_cast<double>(result.cost.parameters) / paper.devices;
    EXPECT_GE(result.memory.total(), share) << name;
    if (recipe.parallelism.zero == 3) {
      EXPECT_NEAR(result.memory.parameters + result.memory.gradients + result.memory.optimizer,
                  share, 1e-3 * share)
          << name;
    }
    EXPECT_EQ(result.forward.sent_bytes_per_rank.size(), static_cast<std::size_t>(paper.devices));
  }
}

TEST(PaperRecipes, TinyOnesAreLegalOnFourRanks) {
  for (const auto& [name, paper] : published()) {
    const Recipe full = paper_recipe(name);
    Recipe tiny = full;
    scale_tiny(tiny);
    validate(tiny);
    EXPECT_EQ(mesh_of(tiny.parallelism).ranks(), 4) << name;
    EXPECT_EQ(tiny.parallelism.tensor_parallel_degree > 1,
              full.parallelism.tensor_parallel_degree > 1)
        << name;
    EXPECT_EQ(tiny.parallelism.zero, full.parallelism.zero) << name;
    EXPECT_THAT(tiny.parallelism.strategy, AnyOf("startrail:c=2", "usp:u=2", "attention2d:rows=2"))
        << name;
    EXPECT_EQ(tiny.model.n_heads / tiny.model.kv_heads(),
              full.model.n_heads / full.model.kv_heads())
        << name;
    EXPECT_LT(model_cost(tiny).parameters, 3'000'000) << name;
  }
}

/// The steps of a run on text, or of a dit on pictures.
std::vector<StepMetrics> run_paper(const Recipe& recipe) {
  if (recipe.model.name != "dit") return run(recipe);
  const ScratchFolder folder;
  const std::string path = folder.path("pictures.safetensors");
  const PictureOptions options = picture_options(recipe);
  write_pictures(path, options.shape, 5, options.n_classes, options.text_tokens);
  std::vector<StepMetrics> steps;
  train(recipe, PictureData(path, options),
        {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); }});
  return steps;
}

// Two in turn, by the seed, or all with ARMILLARY_TEST_ALL.
TEST(PaperRecipes, TinyOnesTrain) {
  const std::size_t count = published().size();
  const std::size_t first = test_all() ? 0 : test_seed() % count;
  for (std::size_t i = 0; i < (test_all() ? count : 2); ++i) {
    const auto turn = static_cast<std::ptrdiff_t>((first + i) % count);
    const std::string& name = std::next(published().begin(), turn)->first;
    Recipe recipe = paper_recipe(name);
    apply_setting(recipe, "model.scale=tiny");
    recipe.training.steps = 2;
    const std::vector<StepMetrics> steps = run_paper(recipe);
    ASSERT_EQ(steps.size(), 2U) << name;
    for (const StepMetrics& step : steps) {
      // Random weights know nothing of the words, and a dit begins with an output of 0: the loss is
      // then the mean square of noise - picture.
      const double expected = published().at(name).is_dit
                                  ? 4.0 / 3
                                  : std::log(static_cast<double>(recipe.model.vocab_size));
      EXPECT_NEAR(step.loss, expected, 0.5) << name;
      EXPECT_GT(step.grad_norm, 0) << name;
    }
  }
}

}  // namespace
}  // namespace armillary::train
