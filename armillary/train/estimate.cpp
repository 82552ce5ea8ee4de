#include "armillary/train/estimate.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "armillary/plan/strategy.h"

namespace armillary::train {
namespace {

/// What autograd keeps of one layer for one token, in the activation dtype: x, norm(x), attention's
/// q, k, v and out, h, norm(h), and the feed-forward before and after GELU.
std::int64_t saved_values_per_token(const Recipe::Model& model) {
  const std::int64_t kv_dim = model.kv_heads() * model.head_dim();
  return 4 * model.dim + (2 * model.dim + 2 * kv_dim) + 2 * model.ffn_dim();
}

std::int64_t most_tokens_of_a_rank(const plan::Problem& problem) {
  std::int64_t most = 0;
  for (const plan::Runs& runs : plan::shards(problem.layout, problem.mask, problem.world).q) {
    most = std::max(most, plan::tokens(runs));
  }
  return most;
}

std::int64_t activation_bytes(const Recipe& recipe, const plan::Problem& problem) {
  const std::int64_t value_bytes = plan::bytes_of(problem.dtype);
  const std::int64_t layers =
      recipe.model.n_layers * saved_values_per_token(recipe.model) * value_bytes;
  const std::int64_t logits = kVocabSize * (value_bytes + 4);  // and their fp32 log-softmax
  return most_tokens_of_a_rank(problem) * (layers + logits);
}

/// Adds one sequence's plan to the traffic of its pass; returns the largest slots of a rank.
std::int64_t add_pass(PassTraffic& pass, const plan::Planner& planner, plan::Pass which,
                      std::int64_t layers) {
  std::int64_t peak = 0;
  for (plan::Rank rank = 0; rank < planner.problem().world; ++rank) {
    const plan::Traffic moved =
        plan::traffic(planner.problem(), planner.blocks(), planner.program(which, rank));
    pass.sent_bytes_per_rank[static_cast<std::size_t>(rank)] += layers * moved.sent_bytes;
    pass.steps = std::max(pass.steps, moved.steps);
    peak = std::max(peak, moved.peak_slot_bytes);
  }
  return peak;
}

double mib(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0);
}

std::string largest(const PassTraffic& pass) {
  return fmt::format(
      "{:.2f} MiB in {} steps a layer",
      mib(*std::max_element(pass.sent_bytes_per_rank.begin(), pass.sent_bytes_per_rank.end())),
      pass.steps);
}

nlohmann::json to_json(const PassTraffic& pass) {
  return {{"sent_bytes_per_rank", pass.sent_bytes_per_rank}, {"steps", pass.steps}};
}

}  // namespace

plan::Problem attention_problem(const Recipe& recipe, const plan::Mask& mask) {
  const Recipe::Model& model = recipe.model;
  plan::Problem problem;
  problem.world = static_cast<int>(recipe.parallelism.context_parallel_degree);
  problem.heads = static_cast<int>(model.n_heads);
  problem.kv_heads = static_cast<int>(model.kv_heads());
  problem.head_dim = static_cast<int>(model.head_dim());
  problem.value_dim = problem.head_dim;
  problem.dtype =
      recipe.training.mixed_precision_param == "bfloat16" ? plan::Dtype::Bf16 : plan::Dtype::F32;
  problem.mask = mask;
  problem.layout = plan::parse_layout(recipe.parallelism.layout);
  problem.wire = plan::parse_wire(recipe.parallelism.wire);
  return problem;
}

std::int64_t MemoryBytes::total() const {
  return parameters + gradients + optimizer + attention + activations;
}

Estimate estimate(const Recipe& recipe, const PackedText& text) {
  Estimate result;
  result.size = gpt_size(recipe.model);
  result.memory.parameters = 4 * result.size.parameters;
  result.memory.gradients = 4 * result.size.parameters;
  result.memory.optimizer = 8 * result.size.parameters;
  const std::int64_t world = recipe.parallelism.context_parallel_degree;
  result.gradient_sent_bytes = result.memory.gradients * 2 * (world - 1) / world;
  for (PassTraffic* pass : {&result.forward, &result.backward}) {
    pass->sent_bytes_per_rank.assign(static_cast<std::size_t>(world), 0);
  }
  const auto strategy = plan::parse_strategy(recipe.parallelism.strategy);
  for (std::int64_t i = 0; i < recipe.training.local_batch_size; ++i) {
    const plan::Mask mask = sequence_mask(recipe.parallelism.mask, text.at(i).documents);
    const plan::Planner planner(attention_problem(recipe, mask), strategy);
    result.visible_pairs += mask.area();
    const std::int64_t layers = recipe.model.n_layers;
    const auto slots = std::max(add_pass(result.forward, planner, plan::Pass::Forward, layers),
                                add_pass(result.backward, planner, plan::Pass::Backward, layers));
    result.memory.attention = std::max(result.memory.attention, slots);
    result.memory.activations =
        std::max(result.memory.activations, activation_bytes(recipe, planner.problem()));
  }
  return result;
}

double model_flops(const Recipe::Model& model, std::int64_t tokens, std::int64_t visible_pairs) {
  const auto product = [](auto... factors) { return (static_cast<double>(factors) * ...); };
  return product(6, gpt_size(model).matmul_parameters, tokens) +
         product(12, model.n_layers, model.n_heads, model.head_dim(), visible_pairs);
}

std::string describe(const Recipe& recipe, const Estimate& estimate) {
  const MemoryBytes& memory = estimate.memory;
  const std::int64_t tokens = recipe.training.seq_len * recipe.training.local_batch_size;
  return fmt::format(
      "model       {}, {} parameters\n"
      "step        {} tokens, {} visible pairs a head, {:.3f} TFLOP\n"
      "attention   {}, layout {}, mask {}, wire {}, {} ranks\n"
      "sent a step by the busiest rank\n"
      "  forward   {}\n"
      "  backward  {}\n"
      "  gradients {:.2f} MiB\n"
      "memory of the largest rank: {:.2f} MiB\n"
      "  parameters {:.2f}, gradients {:.2f}, AdamW {:.2f}, attention slots {:.2f}, activations "
      "about {:.2f} MiB\n",
      recipe.model.name, estimate.size.parameters, tokens, estimate.visible_pairs,
      model_flops(recipe.model, tokens, estimate.visible_pairs) * 1e-12,
      recipe.parallelism.strategy, recipe.parallelism.layout, recipe.parallelism.mask,
      recipe.parallelism.wire, recipe.parallelism.context_parallel_degree,
      largest(estimate.forward), largest(estimate.backward), mib(estimate.gradient_sent_bytes),
      mib(memory.total()), mib(memory.parameters), mib(memory.gradients), mib(memory.optimizer),
      mib(memory.attention), mib(memory.activations));
}

nlohmann::json to_json(const Recipe& recipe, const Estimate& estimate) {
  const MemoryBytes& memory = estimate.memory;
  const std::int64_t tokens = recipe.training.seq_len * recipe.training.local_batch_size;
  return {{"parameters", estimate.size.parameters},
          {"world", recipe.parallelism.context_parallel_degree},
          {"strategy", recipe.parallelism.strategy},
          {"layout", recipe.parallelism.layout},
          {"mask", recipe.parallelism.mask},
          {"wire", recipe.parallelism.wire},
          {"tokens_per_step", tokens},
          {"visible_pairs", estimate.visible_pairs},
          {"flops_per_step", model_flops(recipe.model, tokens, estimate.visible_pairs)},
          {"forward", to_json(estimate.forward)},
          {"backward", to_json(estimate.backward)},
          {"gradient_sent_bytes", estimate.gradient_sent_bytes},
          {"memory_bytes",
           {{"parameters", memory.parameters},
            {"gradients", memory.gradients},
            {"optimizer", memory.optimizer},
            {"attention", memory.attention},
            {"activations", memory.activations},
            {"total", memory.total()}}}};
}

}  // namespace armillary::train
