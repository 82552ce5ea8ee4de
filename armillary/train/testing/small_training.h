// small_training.h: a training run of about a second, shared by the tests of this folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/train/packed_text.h"
#include "armillary/train/trainer.h"

namespace armillary::train {

/// Documents of many lengths with a pattern that a model can learn.
inline PackedText words(std::int64_t seq_len) {
  std::vector<std::string> documents;
  for (int i = 0; i < 60; ++i) {
    std::string document;
    for (int j = 0; j < 1 + i % 23; ++j) document += "word" + std::to_string((i * j) % 7) + ' ';
    documents.push_back(document);
  }
  return {documents, {.seq_len = seq_len, .seed = 3}};
}

inline Recipe small_recipe() {
  Recipe recipe;
  recipe.model.dim = 32;
  recipe.model.n_layers = 2;
  recipe.model.n_heads = 4;
  recipe.model.n_kv_heads = 2;
  recipe.training.seq_len = 50;  // divisible by 2 only
  recipe.training.global_batch_size = 2;
  recipe.training.steps = 20;
  recipe.lr_scheduler.warmup_steps = 3;
  return recipe;
}

/// The same with experts, which a balance loss and a bias balance.
inline Recipe small_moe_recipe() {
  Recipe recipe = small_recipe();
  recipe.model.name = "moe";
  recipe.model.num_experts = 6;
  recipe.model.moe_inter_dim = 10;
  recipe.model.router_aux_loss_coef = 0.05;
  recipe.model.load_balance_coeff = 0.01;
  return recipe;
}

inline std::vector<StepMetrics> run(const Recipe& recipe) {
  std::vector<StepMetrics> steps;
  train(recipe, words(recipe.training.seq_len),
        {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); }});
  return steps;
}

}  // namespace armillary::train
