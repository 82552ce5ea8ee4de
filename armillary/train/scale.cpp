// scale.cpp: every size is the smaller of the recipe's and a bound; ratios that decide which code
// runs (query heads to KV heads, MLP to dim) are kept.
#include "armillary/train/scale.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/model/dit_options.h"
#include "armillary/model/registry.h"
#include "armillary/train/packed_text.h"
#include "armillary/train/recipe_parts.h"

namespace armillary::train {
namespace {

constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kKvHeads = 4;  // both of tp 2 x u 2 have one
constexpr std::int64_t kHeadDim = 16;
constexpr std::int64_t kMultiple = 16;  // of the width of Llama's MLP
constexpr std::int64_t kExperts = 4;
constexpr std::int64_t kTokens = 256;
constexpr std::int64_t kWords = 16;          // in front of the patches
constexpr std::int64_t kPatchesOfSide = 16;  // along each side of a picture
constexpr std::int64_t kSequences = 2;
constexpr std::int64_t kSteps = 10;

void lower(std::int64_t& value, std::int64_t bound) {
  value = std::min(value, bound);
}

void scale_model(model::ModelOptions& model) {
  const std::int64_t dim = model.dim;
  const std::int64_t group = model.n_heads / model.kv_heads();
  const std::int64_t kv_heads = std::min(model.kv_heads(), kKvHeads);
  const std::int64_t head_dim = std::min(model.head_width(), kHeadDim);
  const std::int64_t width = model.n_heads * model.head_width();
  lower(model.n_layers, kLayers);
  lower(model.n_kv_heads, kKvHeads);  // 0 stays
  model.n_heads = kv_heads * group;
  if (model.head_dim > 0) {
    model.head_dim = head_dim;
    model.dim = std::max<std::int64_t>(1, dim * (model.n_heads * head_dim) / width);
  } else {
    model.dim = model.n_heads * head_dim;
  }
  // Its divisors are those of the heads as they were.
  if (model.rope_scaling.starts_with("longrope")) model.rope_scaling = "none";
  if (model.hidden_dim > 0) {
    model.hidden_dim = std::max<std::int64_t>(1, model.hidden_dim * model.dim / dim);
  }
  lower(model.vocab_size, kVocabSize);
  if (model.name == "llama" || model.name == "moe") lower(model.multiple_of, kMultiple);
  if (model.name == "moe") {
    if (model.moe_inter_dim > 0) {
      model.moe_inter_dim = std::max<std::int64_t>(1, model.moe_inter_dim * model.dim / dim);
    }
    lower(model.num_experts, kExperts);
    lower(model.top_k, 2);
  }
  lower(model.text_tokens, kWords);
  for (std::int64_t* side : {&model.image_height, &model.image_width}) {
    lower(*side, kPatchesOfSide * model.patch_size);
  }
  if (model.name == "gpt2") lower(model.max_seq_len, kTokens);
}

/// Also the sequences of the batch, which ranks along dp share.
void scale_mesh(Recipe& recipe) {
  ParallelismOptions& p = recipe.parallelism;
  TrainingOptions& training = recipe.training;
  const std::int64_t dp = mesh_of(p).dp;
  const std::array degrees{&p.pipeline_parallel_degree, &p.data_parallel_replicate_degree,
                           &p.data_parallel_shard_degree, &p.context_parallel_degree,
                           &p.tensor_parallel_degree};
  const auto axes =
      std::ranges::count_if(degrees, [](const std::int64_t* degree) { return *degree > 1; });
  for (std::int64_t* degree : degrees) lower(*degree, axes == 1 ? 4 : 2);
  lower(p.pipeline_parallel_degree, kLayers);
  // One axis of 3 stays, and ep takes all of it or none.
  const bool is_three =
      std::ranges::any_of(degrees, [](const std::int64_t* degree) { return *degree == 3; });
  lower(p.expert_parallel_degree, is_three ? 3 : 2);
  p.threads_per_rank = 1;
  const std::int64_t sequences =
      std::clamp<std::int64_t>(training.global_batch_size / dp, 1, kSequences);
  training.global_batch_size = sequences * mesh_of(p).dp;
  lower(training.local_batch_size, sequences);
}

bool is_legal(const Recipe& recipe) {
  try {
    check_strategy(recipe);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

/// `usp:u=8` with at most 2: `usp:u=2`. Numbers of more than one digit are above it too.
std::string with_small_numbers(const std::string& strategy) {
  std::string text;
  for (std::size_t i = 0; i < strategy.size(); ++i) {
    const bool number = i > 0 && strategy[i - 1] == '=' && strategy[i] >= '1' && strategy[i] <= '9';
    if (!number) {
      text += strategy[i];
      continue;
    }
    const std::size_t end = std::min(strategy.find_first_not_of("0123456789", i), strategy.size());
    text += end - i == 1 && strategy[i] == '1' ? '1' : '2';
    i = end - 1;
  }
  return text;
}

/// Leaves the first strategy that solves the smaller problem; `ring` always does.
void scale_strategy(Recipe& recipe) {
  std::string& strategy = recipe.parallelism.strategy;
  const std::string before = strategy;
  const std::string name(parse_spec(before).name);
  for (const std::string& next : {before, with_small_numbers(before), name, std::string("ring")}) {
    strategy = next;
    if (is_legal(recipe)) return;
  }
}

}  // namespace

void scale_tiny(Recipe& recipe) {
  model::check_model(recipe.model);
  scale_model(recipe.model);
  if (recipe.model.name == "dit") {
    recipe.training.seq_len = model::dit_options(recipe.model).tokens();
  } else {
    lower(recipe.training.seq_len, kTokens);
  }
  lower(recipe.training.steps, kSteps);
  lower(recipe.lr_scheduler.warmup_steps, recipe.training.steps);
  scale_mesh(recipe);
  scale_strategy(recipe);
}

}  // namespace armillary::train
