// estimate_memory_test.cpp: the estimate of memory against the tensors of a run, within 1 %, for
// models, dtypes, meshes and strategies; and within 2 % what a layer more keeps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "armillary/model/testing/counting_allocator.h"
#include "armillary/train/estimate.h"
#include "armillary/train/packed_text.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/picture_file.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/trainer.h"

namespace armillary::train {
namespace {

/// Relative distance of an estimate from the peak of a run.
constexpr double kRoom = 0.01;

/// A recipe whose activations need more than its parameters.
Recipe long_recipe(const std::string& model, const std::string& dtype) {
  Recipe recipe;
  recipe.model.name = model;
  recipe.model.max_seq_len = 2048;
  recipe.model.dim = 96;
  recipe.model.n_layers = 6;
  recipe.model.n_heads = 4;
  recipe.model.n_kv_heads = 2;
  recipe.parallelism.context_parallel_degree = 2;
  recipe.parallelism.strategy = "ring";
  recipe.parallelism.layout = "contiguous";
  recipe.parallelism.mask = "window:left=64,right=0";
  recipe.training.seq_len = 2048;
  recipe.training.steps = 2;
  recipe.training.mixed_precision_param = dtype;
  recipe.training.loss_chunk_tokens = 128;
  return recipe;
}

const PackedText& long_text() {
  static const PackedText packed({std::string(5000, 'a')}, {.seq_len = 2048, .seed = 0});
  return packed;
}

/// Peak of the tensors of the rank that has most, in a run.
double peak_of_a_run(const Recipe& recipe, const Data& data = long_text()) {
  return static_cast<double>(model::CountingAllocator::instance().peak_bytes_of_a_thread(
      [&] { train(recipe, data, {}); }));
}

void expect_peak_of_a_run(const Recipe& recipe, const std::string& where,
                          const Data& data = long_text(), double room = kRoom) {
  const double expected = estimate(recipe, data).memory.total();
  const double measured = peak_of_a_run(recipe, data);
  fmt::print("{:<40} estimate {:.1f} MiB, run {:.1f} MiB, ratio {:.3f}\n", where,
             expected / (1 << 20), measured / (1 << 20), measured / expected);
  EXPECT_NEAR(measured / expected, 1, room) << where;
}

// Policies in turn over the models.
TEST(Estimate, MemoryIsThatOfARun) {
  std::size_t turn = 0;
  for (const auto& [model, dtype] : {std::pair("gpt", "float32"), std::pair("gpt", "bfloat16"),
                                     std::pair("llama", "float32"), std::pair("llama", "bfloat16"),
                                     std::pair("gpt2", "float32"), std::pair("gpt2", "bfloat16")}) {
    const std::string& mode = cost::recompute_names()[turn++ % 3];
    Recipe recipe = long_recipe(model, dtype);
    recipe.activation_checkpoint.mode = mode;
    expect_peak_of_a_run(recipe, fmt::format("{} {} {}", model, dtype, mode));
  }
}

/// Heads of another size than dim / heads, with norms whose inputs are kept too.
TEST(Estimate, MemoryOfWideHeadsAndTheirNormsIsThatOfARun) {
  for (const auto& [dtype, mode] : {std::pair("float32", "none"), std::pair("float32", "full"),
                                    std::pair("bfloat16", "none")}) {
    Recipe recipe = long_recipe("llama", dtype);
    recipe.model.head_dim = 40;
    recipe.model.qkv_bias = recipe.model.qk_norm = true;
    recipe.activation_checkpoint.mode = mode;
    expect_peak_of_a_run(recipe, fmt::format("heads of 40, {} {}", dtype, mode));
  }
}

/// The loss of many words and whole units need most in one or the other of these.
TEST(Estimate, MemoryIsThatOfARunOnEveryMesh) {
  struct RunMesh {
    std::int64_t dp, cp, tp, zero;
  };
  int turn = 0;
  for (const RunMesh& of : {RunMesh{1, 2, 1, 2}, RunMesh{1, 2, 1, 3}, RunMesh{2, 1, 1, 3},
                            RunMesh{1, 1, 2, 0}, RunMesh{1, 2, 2, 3}}) {
    const std::int64_t words = turn % 2 == 0 ? 4000 : 257;
    const bool tied = turn++ % 4 >= 2;
    Recipe recipe = long_recipe("llama", tied ? "bfloat16" : "float32");
    recipe.model.vocab_size = words;
    recipe.model.enable_weight_tying = tied;
    recipe.activation_checkpoint.mode = tied ? "full" : "attention_output";
    recipe.training.global_batch_size = 2;
    recipe.parallelism.data_parallel_shard_degree = of.dp;
    recipe.parallelism.context_parallel_degree = of.cp;
    recipe.parallelism.tensor_parallel_degree = of.tp;
    recipe.parallelism.zero = of.zero;
    // Tokens that are read ahead, about 24 bytes each, are not estimated: each rank along tp has
    // all of them, beside half of the activations.
    const double room = of.tp > of.cp ? 0.05 : kRoom;
    expect_peak_of_a_run(recipe,
                         fmt::format("dp {} cp {} tp {} zero {}, {} words{}", of.dp, of.cp, of.tp,
                                     of.zero, words, tied ? ", tied, bf16" : ""),
                         long_text(), room);
  }
}

/// Pictures of 1,024 patches with 40 words, which layers read by cross-attention or in front.
TEST(Estimate, MemoryOfPicturesIsThatOfARun) {
  const ScratchFolder folder;
  const std::string path = folder.path("pictures.safetensors");
  constexpr double kRoomOfPictures = 0.05;
  std::size_t turn = 0;
  for (const std::string modulation : {"zero", "single"}) {
    for (const std::string words : {"joint", "cross"}) {
      for (const std::string& mode : cost::recompute_names()) {
        Recipe recipe = long_recipe("dit", turn++ % 2 == 0 ? "float32" : "bfloat16");
        recipe.model.image_height = recipe.model.image_width = 64;
        recipe.model.channels = 4;
        recipe.model.n_classes = 3;
        recipe.model.text_tokens = 40;
        recipe.model.vocab_size = 7;
        recipe.model.modulation = modulation;
        recipe.model.words = words;
        recipe.parallelism.mask = "full";
        recipe.activation_checkpoint.mode = mode;
        recipe.training.seq_len = words == "joint" ? 1064 : 1024;
        const PictureOptions options = picture_options(recipe);
        write_pictures(path, options.shape, 3, options.n_classes, options.text_tokens);
        expect_peak_of_a_run(recipe, fmt::format("dit {} {} {}", modulation, words, mode),
                             PictureData(path, options), kRoomOfPictures);
      }
    }
  }
}

/// Gradients that travel in bf16 are there twice while they are summed, the second time rounded, in
/// stage 0 while sums are gathered too.
TEST(Estimate, MemoryIsThatOfARunWhoseSumsAreRounded) {
  for (const std::int64_t zero : {0, 1, 3}) {
    Recipe recipe = long_recipe("llama", "bfloat16");
    recipe.model.vocab_size = 4000;
    recipe.activation_checkpoint.mode = "full";
    recipe.training.mixed_precision_reduce = "bfloat16";
    recipe.training.global_batch_size = 2;
    recipe.parallelism.zero = zero;
    expect_peak_of_a_run(recipe, fmt::format("rounded sums, zero {}", zero));
  }
}

/// With state on the host, which here is memory of CPU tensors too and so is taken off.
void expect_peak_with_state_on_host(const Recipe& recipe, const std::string& where, double measured,
                                    const PackedText& data) {
  const cost::StepMemory memory = estimate(recipe, data).memory;
  const double on_device = measured - memory.host;
  fmt::print("{:<40} estimate {:.1f} MiB, run {:.1f} MiB, ratio {:.3f}\n", where,
             memory.total() / (1 << 20), on_device / (1 << 20), on_device / memory.total());
  EXPECT_GT(memory.host, 0) << where;
  EXPECT_NEAR(on_device / memory.total(), 1, kRoom) << where;
}

/// One rank, with the thread that copies. The state of two units is more than the backward of a
/// short sequence has freed before updates, and less than that of a long one.
TEST(Estimate, MemoryIsThatOfARunWithStateOnTheHost) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const std::int64_t length : {16, 2048}) {
      const PackedText packed({std::string(5000, 'a')}, {.seq_len = length, .seed = 0});
      Recipe recipe = long_recipe("llama", dtype);
      recipe.model.vocab_size = 4000;
      recipe.training.seq_len = length;
      recipe.parallelism.context_parallel_degree = 1;
      recipe.optimizer.state_device = "host";
      EXPECT_EQ(estimate(recipe, packed).memory.buffers > 0, length == 16) << dtype;
      const auto measured = static_cast<double>(
          model::CountingAllocator::instance().peak_bytes([&] { train(recipe, packed, {}); }));
      expect_peak_with_state_on_host(
          recipe, fmt::format("state on the host, {} tokens, {}", length, dtype), measured, packed);
    }
  }
}

/// Ranks that divide the state: each with its share of it on the host.
TEST(Estimate, MemoryIsThatOfARunWithSharesOfTheStateOnTheHost) {
  for (const std::int64_t zero : {2, 3}) {
    Recipe recipe = long_recipe("llama", zero == 2 ? "float32" : "bfloat16");
    recipe.parallelism.zero = zero;
    recipe.optimizer.state_device = "host";
    // Buffers are of the thread that copies, and no part of the peak, which is in backward.
    EXPECT_EQ(estimate(recipe, long_text()).memory.buffers, 0) << zero;
    expect_peak_with_state_on_host(recipe, fmt::format("state on the host, zero {}", zero),
                                   peak_of_a_run(recipe), long_text());
  }
}

/// Y layers keep Y + 1 inputs, and attention's output beside them if it is not computed again.
TEST(Estimate, ALayerMoreKeepsAnInputMore) {
  for (const std::string& mode : cost::recompute_names()) {
    Recipe recipe = long_recipe("llama", "float32");
    recipe.activation_checkpoint.mode = mode;
    const cost::ModelCost cost = model_cost(recipe);
    const cost::Recompute policy = model::parse_recompute(mode);
    const double few = peak_of_a_run(recipe);
    recipe.model.n_layers += 2;
    const double more = peak_of_a_run(recipe);
    // Values, gradients, and of 2 ranks each half of the moments.
    const double at_rest = 12.0 * static_cast<double>(cost.layer_parameters) / 6;
    const auto bytes = static_cast<double>(1024 * cost::kept_by_layer(cost.bytes, policy));
    EXPECT_NEAR((more - few) / (2 * (at_rest + bytes)), 1, 0.01) << mode;
    if (policy == cost::Recompute::Full) {
      EXPECT_EQ(bytes, 1024.0 * 96 * 4);
      EXPECT_EQ(cost::kept_bytes(cost, policy, 1024), (6 + 1) * bytes);
    }
  }
}

/// The same with four sequences of a quarter in a pass, and two passes.
TEST(Estimate, MemoryOfSeveralSequencesInAPassIsThatOfARun) {
  const PackedText packed({std::string(5000, 'a')}, {.seq_len = 512, .seed = 0});
  for (const std::string& mode : cost::recompute_names()) {
    Recipe recipe = long_recipe("gpt", "float32");
    recipe.training.seq_len = 512;
    recipe.training.global_batch_size = 8;
    recipe.training.local_batch_size = 4;
    recipe.activation_checkpoint.mode = mode;
    expect_peak_of_a_run(recipe, "4 sequences in a pass, " + mode, packed);
  }
}

/// A strategy on some ranks, with heads that it trades or not.
struct KeepingStrategy {
  std::int64_t ranks;
  const char* strategy;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
};
constexpr KeepingStrategy kKeepingStrategies[] = {
    {3, "ring"},
    {4, "allgather"},
    {2, "bidirectional_ring"},
    {4, "double_ring:window=2"},
    {3, "tokenring"},
    {4, "attention2d:rows=2"},
    {4, "startrail:c=2"},
    {2, "ulysses"},
    {4, "ulysses"},        // ranks outnumber KV heads
    {2, "ulysses", 3, 3},  // one rank has 2 heads, the other one
    {4, "usp:u=2"},
    {4, "grid:u=2,rq=1,rk=2"},
    {2, "auto:traffic"}};

/// The recipe of such a strategy, with so many layers.
Recipe keeping_recipe(const KeepingStrategy& of, std::int64_t layers) {
  Recipe recipe = long_recipe("gpt", "float32");
  recipe.model.n_layers = layers;
  recipe.model.n_heads = of.heads;
  recipe.model.n_kv_heads = of.kv_heads;
  recipe.training.seq_len = 768;  // divisible by 2, 3 and 4
  recipe.parallelism.context_parallel_degree = of.ranks;
  recipe.parallelism.strategy = of.strategy;
  return recipe;
}

const PackedText& text_of_keeping_recipes() {
  static const PackedText packed({std::string(2000, 'a')}, {.seq_len = 768, .seed = 0});
  return packed;
}

/// Y + 1 inputs are kept where layers keep theirs, and with attention's output as much again of
/// heads that are divided evenly, and its log-sum-exps.
TEST(Estimate, EveryStrategyKeepsYPlusOneInputs) {
  for (const KeepingStrategy& of : kKeepingStrategies) {
    const Estimate result = estimate(keeping_recipe(of, 6), text_of_keeping_recipes());
    const auto kept_inputs = [&](cost::Recompute policy) {
      return result.policies.at(static_cast<std::size_t>(policy)).kept_inputs;
    };
    EXPECT_EQ(kept_inputs(cost::Recompute::Full), 6 + 1) << of.strategy << " on " << of.ranks;
    // The rank with most heads: 2 of 3 of all tokens, where 1.5 would be even.
    const double share = of.heads % 2 == 0 ? 1 : 2 / 1.5;
    const double output = share * (96 + static_cast<double>(of.heads)) / 96;
    EXPECT_NEAR(kept_inputs(cost::Recompute::AttentionOutput), 6 + 1 + 6 * output, 1e-9)
        << of.strategy << " on " << of.ranks;
  }
}

/// The ten meshes of 8 ranks.
TEST(Estimate, EveryMeshKeepsYPlusOneInputs) {
  int meshes = 0;
  for (const int tp : {1, 2, 4, 8}) {
    for (int cp = 1; cp <= 8 / tp; cp *= 2) {
      for (const int zero : {0, 1, 2, 3}) {
        const MeshDegrees degrees{.shards = 8 / tp / cp, .cp = cp, .zero = zero, .tp = tp};
        Recipe recipe = on(keeping_recipe({.ranks = cp, .strategy = "ring"}, 6), degrees);
        recipe.model.n_heads = recipe.model.n_kv_heads = 8;
        recipe.training.global_batch_size = degrees.shards;
        const Estimate result = estimate(recipe, text_of_keeping_recipes());
        EXPECT_EQ(result.policies.at(1).kept_inputs, 6 + 1) << to_string(degrees);
      }
      ++meshes;
    }
  }
  EXPECT_EQ(meshes, 10);
}

/// Two layers more, under each policy of each strategy: tensors of a run grow as its estimate.
TEST(Estimate, ALayerOfEveryStrategyKeepsWhatIsSaid) {
  const PackedText& data = text_of_keeping_recipes();
  for (const KeepingStrategy& of : kKeepingStrategies) {
    for (const std::string& mode : cost::recompute_names()) {
      Recipe few = keeping_recipe(of, 2);
      Recipe more = keeping_recipe(of, 4);
      few.activation_checkpoint.mode = more.activation_checkpoint.mode = mode;
      const double expected =
          estimate(more, data).memory.total() - estimate(few, data).memory.total();
      const double measured = peak_of_a_run(more, data) - peak_of_a_run(few, data);
      EXPECT_NEAR(measured / expected, 1, 0.02)
          << of.strategy << " on " << of.ranks << ", " << mode << ": a run grows by " << measured
          << " bytes, its estimate by " << expected;
    }
  }
}

/// Policies in turn over the strategies, each with more activations than parameters.
TEST(Estimate, MemoryIsThatOfARunOfEveryStrategy) {
  std::size_t turn = 0;
  for (const KeepingStrategy& of : kKeepingStrategies) {
    const std::string& mode = cost::recompute_names()[turn++ % 3];
    Recipe recipe = keeping_recipe(of, 6);
    recipe.training.seq_len = 2048;
    recipe.activation_checkpoint.mode = mode;
    expect_peak_of_a_run(recipe, fmt::format("{} on {}, {}", of.strategy, of.ranks, mode));
  }
}

}  // namespace
}  // namespace armillary::train
