// estimate.cpp: adds up the plans of step 1.
//
// For each microbatch of the step: its mask, then the programs of every rank and pass, one at a
// time; traffic is summed over microbatches and layers, slots and activations are the largest of
// any. Sizes that depend on the model alone come from ModelCost.
#include "armillary/train/estimate.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/plan/step/step_program.h"
#include "armillary/plan/step/traffic.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/cost/attention_memory.h"
#include "armillary/proof/prove.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/mesh.h"
#include "armillary/train/step_shape.h"

namespace armillary::train {
namespace {

/// Tokens of the largest shard.
std::int64_t most_tokens_of_a_rank(const plan::Problem& problem) {
  std::int64_t most = 0;
  for (const plan::Runs& runs : plan::shards(problem.layout, problem.mask, problem.world).q) {
    most = std::max(most, plan::tokens(runs));
  }
  return most;
}

/// Sequences of a microbatch of which the rank with parts of most of them has tokens, by the mask
/// of sequences of one document.
std::int64_t most_sequences_of_a_rank(const Recipe& recipe, const cost::ModelCost& cost) {
  const std::int64_t seq_len = recipe.training.seq_len;
  if (recipe.training.local_batch_size == 1) return 1;
  const std::vector<plan::Mask> masks(
      static_cast<std::size_t>(recipe.training.local_batch_size),
      sequence_mask(recipe.parallelism.mask, std::span(&seq_len, 1)));
  const plan::Problem problem = attention_problem(recipe, cost.attention, joined_mask(masks));
  std::int64_t most = 0;
  for (const plan::Runs& runs : plan::shards(problem.layout, problem.mask, problem.world).q) {
    std::int64_t count = 0;
    std::int64_t last = -1;  // positions ascend
    for (const plan::Run& run : runs) {
      const std::int64_t stripes = run.contiguous() ? 1 : run.count;
      for (std::int64_t i = 0; i < stripes; ++i) {
        const std::int64_t begin = run.begin + i * run.step;
        const std::int64_t end = (begin + run.tokens() / stripes - 1) / seq_len;
        count += end - std::max(begin / seq_len - 1, last);
        last = end;
      }
    }
    most = std::max(most, count);
  }
  return most;
}

/// The cost whose bytes of a sequence are those of all of a rank in a pass.
cost::ModelCost with_sequences_of_a_rank(cost::ModelCost cost, const Recipe& recipe) {
  cost::SequenceBytes& bytes = cost.sequence_bytes;
  if (bytes.input == 0 && bytes.layer == 0) return cost;
  const std::int64_t sequences = most_sequences_of_a_rank(recipe, cost);
  bytes.input *= sequences;
  bytes.layer *= sequences;
  return cost;
}

/// A microbatch and the ranks that share it.
struct PlannedMicrobatch {
  plan::Planner planner;
  std::int64_t first_rank = 0;  ///< Others follow at this distance.
  std::int64_t stride = 1;
};

/// Adds one pass of a microbatch to `pass`. Returns the slot bytes of the rank that has most.
std::int64_t add_pass(PassTraffic& pass, const PlannedMicrobatch& planned, std::int64_t layers,
                      const std::function<plan::RankProgram(plan::Rank)>& program) {
  const plan::Planner& planner = planned.planner;
  std::int64_t peak = 0;
  for (plan::Rank rank = 0; rank < planner.problem().world; ++rank) {
    const plan::Traffic moved = plan::traffic(planner.problem(), planner.blocks(), program(rank));
    pass.sent_bytes_per_rank[static_cast<std::size_t>(
        planned.first_rank + rank * planned.stride)] += layers * moved.sent_bytes;
    pass.steps = std::max(pass.steps, moved.steps);
    peak = std::max(peak, moved.peak_slot_bytes);
  }
  return peak;
}

/// Adds a microbatch: traffic of both passes, slots, and for each policy the pass that it repeats:
/// forward for Full, replay for AttentionOutput. Returns what a layer keeps of it.
cost::KeptBytes add_plan(Estimate& result, const PlannedMicrobatch& planned) {
  const plan::Planner& planner = planned.planner;
  const std::int64_t layers = result.cost.attention.layers;
  const auto program_of = [&](plan::Pass pass) {
    return [&planner, pass](plan::Rank rank) { return proof::runnable(planner, pass, rank); };
  };
  cost::KeptBytes kept_bytes;
  const auto forward = [&](plan::Rank rank) {
    plan::RankProgram program = proof::runnable(planner, plan::Pass::Forward, rank);
    kept_bytes.grow(cost::kept_by_attention(planner.problem(), planner.blocks(), program));
    return program;
  };
  // Slots of a layer are free again when its pass ends, so passes share memory.
  const auto slots = static_cast<double>(
      std::max(add_pass(result.forward, planned, layers, forward),
               add_pass(result.backward, planned, layers, program_of(plan::Pass::Backward))));
  result.memory.attention = std::max(result.memory.attention, slots);
  for (PolicyCost& cost : result.policies) {
    if (cost.policy == cost::Recompute::Full) add_pass(cost.more_sent, planned, layers, forward);
    if (cost.policy == cost::Recompute::AttentionOutput) {
      add_pass(cost.more_sent, planned, layers, program_of(plan::Pass::Replay));
    }
  }
  return kept_bytes;
}

/// The mask of the microbatch that begins with a sequence.
plan::Mask mask_of_microbatch(const Recipe& recipe, const Data& data, std::int64_t first) {
  std::vector<plan::Mask> masks;
  for (std::int64_t i = first; i < first + recipe.training.local_batch_size; ++i) {
    const SequenceParts parts = checked_parts(data, i, {recipe.training.seq_len, {}});
    masks.push_back(sequence_mask(recipe.parallelism.mask, parts.documents));
  }
  return joined_mask(masks);
}

std::int64_t tokens_of_step(const Recipe& recipe) {
  return recipe.training.seq_len * recipe.training.global_batch_size;
}

/// How a recipe divides what it trains.
struct Division {
  MeshShape mesh;
  std::int64_t copies = 1;  ///< Groups along dp that hold the same; 1 if nothing is divided.
  int zero = 0;
  bool reshards = true;  ///< Gathered parameters are freed after forward.
  int ep = 1;            ///< Ranks that share the experts of a layer.

  explicit Division(const ParallelismOptions& parallelism)
      : mesh(mesh_of(parallelism)),
        copies(parallelism.zero == 0 ? 1 : parallelism.data_parallel_replicate_degree),
        zero(static_cast<int>(parallelism.zero)),
        reshards(parallelism.reshard_after_forward),
        ep(static_cast<int>(parallelism.expert_parallel_degree)) {}
  /// Ranks that share the parameters of a copy.
  std::int64_t shares() const { return mesh.dp / copies * mesh.cp; }
};

std::int64_t size_in_bytes(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

/// Whether ranks gather masters, which then do not go to the host with the moments.
bool gathers_masters(const Division& division) {
  return division.zero == 3 && division.shares() > 1;
}

/// Values that models are given, gradients, and AdamW's two moments; masters, if they have memory
/// of their own, are with the moments (store.h), but not on the host if ranks gather them.
cost::ParameterBytes parameter_bytes(const Division& division, const Dtypes& dtypes,
                                     bool state_on_host) {
  const auto master = static_cast<double>(size_in_bytes(dtypes.master));
  const double rounded =
      dtypes.reduce == dtypes.master ? 0 : static_cast<double>(size_in_bytes(dtypes.reduce));
  if (dtypes.param == dtypes.master) {
    return {.parameter = master, .gradient = master, .optimizer = 2 * master, .rounded = rounded};
  }
  const bool is_gathered = gathers_masters(division);
  const bool stays = is_gathered && state_on_host;
  const auto param = static_cast<double>(size_in_bytes(dtypes.param));
  const double of_models = is_gathered ? 0 : param;
  return {.parameter = stays ? master : of_models,
          .gradient = master,
          .optimizer = (stays ? 2 : 3) * master,
          .gathered = param,
          .rounded = rounded};
}

/// Puts the optimizer's state on the host, but for that of two units in a row
/// (plan/step/storage.h).
void move_state_to_host(cost::StepMemory& memory, const cost::ModelCost& cost) {
  const auto first = static_cast<double>(cost.first_parameters);
  const auto last = static_cast<double>(cost.last_parameters);
  const std::int64_t layers = cost.attention.layers;
  const double layer =
      layers == 0 ? 0 : static_cast<double>(cost.layer_parameters) / static_cast<double>(layers);
  // Experts are a unit behind their layer.
  const double experts =
      layers == 0 ? 0 : static_cast<double>(cost.expert_parameters) / static_cast<double>(layers);
  const double two = layers == 0   ? first + last
                     : experts > 0 ? std::max({first + layer - experts, layer, experts + last})
                                   : layer + std::max({first, last, layers > 1 ? layer : 0.0});
  memory.host = std::exchange(memory.optimizer, 0);
  const double buffers = memory.host * two / static_cast<double>(cost.parameters);
  memory.buffers = std::max(0.0, buffers - memory.activations - memory.transient - memory.gathered);
}

/// Bytes that a rank sends for values and gradients of the parameters, by the program of its step:
/// those along tp are summed before they are rounded to travel.
std::int64_t parameter_sent_bytes(const Recipe& recipe, const Dtypes& dtypes) {
  using plan::step::StepTensor;
  const plan::step::StepTables tables(
      step_shape_of(*make_model(recipe), recipe.parallelism, recipe.training));
  const plan::RankProgram program = rank_program(tables, step_measures(tables), 0);
  std::map<int, std::int64_t> bytes;  // by the ranks of a group
  for (const plan::Op& op : program.ops) {
    const plan::step::StepTraffic traffic = traffic_of(tables, program, op);
    const bool is_number = traffic.tensor == StepTensor::Loss || traffic.tensor == StepTensor::Norm;
    if (traffic.rounds == 0 || is_number) continue;
    const auto axes = tables.axis_sets()[static_cast<std::size_t>(op.peer)];
    // Replicas of experts may lie along tp too.
    const int unit = tables.parts()[op.views.front().blocks.front()].unit;
    const bool is_along_tp = (axes & tables.tp_axis()) != 0 && !tables.has_experts(unit);
    const at::ScalarType of_gradients = is_along_tp ? dtypes.master : dtypes.reduce;
    const at::ScalarType dtype = traffic.tensor == StepTensor::Weight ? dtypes.param : of_gradients;
    bytes[traffic.ranks] += traffic.rounds * traffic.values * size_in_bytes(dtype);
  }
  std::int64_t total = 0;
  for (const auto& [ranks, all] : bytes) total += all * (ranks - 1) / ranks;
  return total;
}

/// Bytes that each rank sends along tp in so many passes of its tokens: gathers and scatters of
/// all inputs of a layer, and of embedding and head if ranks divide words (Megatron's TP-sp,
/// arXiv:2205.05198).
std::int64_t tensor_sent_bytes(const Division& division, const Recipe& recipe,
                               const cost::ModelCost& cost, std::int64_t tokens) {
  const std::int64_t again = recipe.parallelism.tensor_parallel_keep_inputs ? 0 : 1;
  const std::int64_t repeated = recipe.activation_checkpoint.mode == "none" ? 0 : 2;
  const std::int64_t of_words = cost.logits > 0 ? 4 : 0;
  const std::int64_t times =
      cost.attention.layers * cost.tp_branches * (4 + again + repeated) + of_words;
  return times * tokens * cost.bytes.input * (division.mesh.tp - 1) / division.mesh.tp;
}

/// Bytes that each rank sends to those with other experts in so many passes of its tokens, if the
/// router spreads them evenly: rows there and back, and again in backward.
std::int64_t expert_sent_bytes(const Division& division, const Recipe& recipe,
                               const cost::ModelCost& cost, std::int64_t tokens) {
  const std::int64_t repeated = recipe.activation_checkpoint.mode == "none" ? 0 : 2;
  const std::int64_t times = cost.attention.layers * (4 + repeated) * cost.expert_rows;
  return times * tokens * cost.bytes.input / division.mesh.tp * (division.ep - 1) / division.ep;
}

/// Bytes as MiB, for a reader.
double mib(double bytes) {
  return bytes / (1024.0 * 1024.0);
}
double mib(std::int64_t bytes) {
  return mib(static_cast<double>(bytes));
}

/// Bytes sent by the rank that sends most.
std::int64_t most_sent(const PassTraffic& pass) {
  return *std::max_element(pass.sent_bytes_per_rank.begin(), pass.sent_bytes_per_rank.end());
}

/// One line about a pass: the rank that sends most.
std::string largest(const PassTraffic& pass) {
  return fmt::format("{:.2f} MiB in {} a layer", mib(most_sent(pass)),
                     count_of(pass.steps, "step"));
}

/// Inputs that the papers count for so many layers, with one checkpoint a layer (StarTrail 3.2.2,
/// WallFacer 4.2.2).
std::int64_t inputs_in_papers(const cost::ModelCost& cost) {
  return cost.attention.layers + 1;
}

/// A line for each policy; the recipe's is marked with '*'.
std::string describe_policies(const Recipe& recipe, const Estimate& estimate) {
  std::string text = fmt::format(
      "recomputation: activations, kept inputs of a layer (papers: Y + 1 = {}), and more work and "
      "traffic a step than none\n",
      inputs_in_papers(estimate.cost));
  for (const PolicyCost& cost : estimate.policies) {
    const std::string& name = cost::recompute_names()[static_cast<std::size_t>(cost.policy)];
    text += fmt::format("{} {:<16}  {:>10.2f} MiB  {:>7.1f}  {:>8.3f} TFLOP  {:>10.2f} MiB sent\n",
                        name == recipe.activation_checkpoint.mode ? '*' : ' ', name,
                        mib(cost.activation_bytes), cost.kept_inputs, cost.more_flops * 1e-12,
                        mib(most_sent(cost.more_sent)));
  }
  return text;
}

nlohmann::json to_json(const PassTraffic& pass) {
  return {{"sent_bytes_per_rank", pass.sent_bytes_per_rank}, {"steps", pass.steps}};
}

/// Lines about settings that do nothing.
std::string describe_unused(const Recipe& recipe) {
  std::string text;
  for (const std::string& line : settings_without_effect(recipe)) {
    text += "note        " + line + "\n";
  }
  return text;
}

/// Parameters that multiply a token, if the model has experts.
std::string active_text(const cost::ModelCost& cost) {
  if (cost.expert_parameters == 0) return "";
  return fmt::format(", {} of them multiply a token", cost.matmul_parameters);
}

/// The dtype in which gradients travel.
const std::string& reduce_name(const TrainingOptions& training) {
  return training.dtype == "float64" ? training.dtype : training.mixed_precision_reduce;
}

/// The strategy of each rank along tp, whose heads may differ.
std::vector<ChosenStrategy> strategies_along_tp(const Recipe& recipe,
                                                const cost::ModelAttention& shape,
                                                const MeshShape& mesh) {
  std::vector<ChosenStrategy> strategies;
  strategies.reserve(mesh.tp);
  for (int index = 0; index < mesh.tp; ++index) {
    strategies.push_back(chosen_strategy(recipe, heads_along_tp(shape, index, mesh.tp), mesh.cp));
  }
  return strategies;
}

/// An estimate in which nothing is counted yet.
Estimate empty_estimate(const cost::ModelCost& cost, std::size_t world) {
  Estimate result;
  result.cost = cost;
  result.forward.sent_bytes_per_rank.resize(world);
  result.backward.sent_bytes_per_rank.resize(world);
  for (const std::string& name : cost::recompute_names()) {
    result.policies.push_back({.policy = model::parse_recompute(name)});
    result.policies.back().more_sent.sent_bytes_per_rank.resize(world);
  }
  return result;
}

}  // namespace

Estimate estimate(const Recipe& recipe, const Data& data) {
  return estimate(recipe, model_cost(recipe), data);
}

Estimate estimate(const Recipe& recipe, const cost::ModelCost& cost, const Data& data) {
  const Division division(recipe.parallelism);
  check_batch(division.mesh, recipe.training);
  check_dtypes(recipe.training, division.shares() * division.copies);
  const Dtypes dtypes = dtypes_of(recipe.training);
  const std::int64_t world = division.mesh.ranks();
  const std::int64_t microbatches = microbatches_of(division.mesh, recipe.training);
  Estimate result = empty_estimate(cost, static_cast<std::size_t>(world));
  // The step has all sequences.
  result.cost.sequence_flops *= static_cast<double>(recipe.training.global_batch_size);
  result.gradient_sent_bytes = parameter_sent_bytes(recipe, dtypes);

  // Plans of every microbatch.
  std::int64_t most_tokens = 0;
  cost::KeptBytes kept_bytes;
  const int tp = division.mesh.tp;
  const std::vector<ChosenStrategy> strategies =
      strategies_along_tp(recipe, cost.attention, division.mesh);
  result.attention = strategies.front();
  for (std::int64_t i = 0; i < division.mesh.dp * microbatches; ++i) {
    const plan::Mask mask = mask_of_microbatch(recipe, data, i * recipe.training.local_batch_size);
    for (int index = 0; index < tp; ++index) {
      const PlannedMicrobatch planned{
          plan::Planner(attention_problem(recipe, heads_along_tp(cost.attention, index, tp), mask),
                        strategies[static_cast<std::size_t>(index)].strategy),
          i / microbatches * division.mesh.cp * tp + index, tp};
      kept_bytes.grow(add_plan(result, planned));
      most_tokens = std::max(most_tokens, most_tokens_of_a_rank(planned.planner.problem()));
    }
    result.visible_pairs += mask.area();
  }

  // Work that policies repeat, and the memory of each.
  const std::string& mode = recipe.activation_checkpoint.mode;
  const cost::AttentionBytes attention = cost::attention_bytes(result.memory.attention, kept_bytes);
  for (PolicyCost& policy : result.policies) {
    policy.more_flops =
        cost::flops_again(result.cost, policy.policy, tokens_of_step(recipe), result.visible_pairs);
    cost::StepMemory memory = memory_of(recipe, cost,
                                        {.policy = policy.policy,
                                         .attention = attention,
                                         .tokens = static_cast<double>(most_tokens)});
    policy.activation_bytes = static_cast<std::int64_t>(memory.activations + memory.transient);
    // Tokens are divided over the ranks along tp.
    const auto tokens = static_cast<double>(most_tokens);
    policy.kept_inputs =
        (cost::kept_bytes(cost, policy.policy, tokens) +
         tp * static_cast<double>(cost.attention.layers) * attention.kept_bytes(policy.policy)) /
        (tokens * static_cast<double>(std::max<std::int64_t>(cost.bytes.input, 1)));
    if (policy.policy != model::parse_recompute(mode)) continue;
    if (recipe.checkpoint.enable) {
      // Masters and AdamW's moments.
      const std::int64_t saved = 3 * size_in_bytes(dtypes.master) * cost.parameters;
      memory.checkpoint = static_cast<double>(ceil_div(saved, world));
    }
    result.memory = memory;
  }
  result.tensor_sent_bytes = tensor_sent_bytes(division, recipe, cost, microbatches * most_tokens);
  result.expert_sent_bytes = expert_sent_bytes(division, recipe, cost, microbatches * most_tokens);
  return result;
}

// The sequences of a microbatch are one sequence, and passes follow each other.
cost::StepMemory memory_of(const Recipe& recipe, const cost::ModelCost& cost,
                           const PassLoad& load) {
  const Division division(recipe.parallelism);
  cost::StepMemory memory = cost::step_memory(
      {.model = with_sequences_of_a_rank(cost, recipe),
       .seq = recipe.training.seq_len * recipe.training.local_batch_size,
       .batch = microbatches_of(division.mesh, recipe.training)},
      {.mesh = {.cp = static_cast<int>(division.shares()), .tp = division.mesh.tp},
       .zero = division.zero,
       .recompute = load.policy,
       .reshard_after_forward = division.reshards,
       .ep = std::min(division.ep, static_cast<int>(division.shares()) * division.mesh.tp)},
      load.attention,
      parameter_bytes(division, dtypes_of(recipe.training), recipe.optimizer.state_on_host()),
      load.tokens);
  if (recipe.optimizer.state_on_host()) move_state_to_host(memory, cost);
  return memory;
}

std::string describe(const Recipe& recipe, const Estimate& estimate) {
  const cost::StepMemory& memory = estimate.memory;
  const std::int64_t tokens = tokens_of_step(recipe);
  const std::string copy =
      memory.checkpoint == 0
          ? ""
          : fmt::format(", copy for a checkpoint about {:.2f}", mib(memory.checkpoint));
  const std::string gathered =
      memory.gathered == 0 ? "" : fmt::format(", gathered {:.2f}", mib(memory.gathered));
  const std::string tensor =
      estimate.tensor_sent_bytes == 0
          ? ""
          : fmt::format("  tensor parallelism {:.2f} MiB\n", mib(estimate.tensor_sent_bytes));
  const std::string experts =
      estimate.expert_sent_bytes == 0
          ? ""
          : fmt::format("  experts   about {:.2f} MiB\n", mib(estimate.expert_sent_bytes));
  const Dtypes dtypes = dtypes_of(recipe.training);
  const bool masters_stay = memory.host > 0 && gathers_masters(Division(recipe.parallelism));
  const std::string state =
      recipe.optimizer.name + (dtypes.param == dtypes.master || masters_stay ? "" : " and masters");
  const std::string on_device =
      memory.host == 0 ? fmt::format("{} {:.2f}", state, mib(memory.optimizer))
                       : fmt::format("buffers of {} {:.2f}", state, mib(memory.buffers));
  const std::string on_host =
      memory.host == 0 ? ""
                       : fmt::format("  on the host: {} {:.2f} MiB\n", state, mib(memory.host));
  const std::string& reason = estimate.attention.reason;
  // Arguments in the order of the lines.
  return fmt::format(
      "model       {}, {} parameters{}\n"
      "step        {}, {} a head, {:.3f} TFLOP\n"
      "attention   {}, layout {}, mask {}, transfer dtype {}, {}\n{}"
      "sent a step by the busiest rank\n"
      "  forward   {}\n"
      "  backward  {}\n"
      "{}  gradients in {}{} {:.2f} MiB\n"
      "memory of the largest rank: {:.2f} MiB\n"
      "  parameters {:.2f}, gradients {:.2f}, {}{}, attention slots {:.2f}, activations {:.2f}{} "
      "MiB\n{}{}{}",
      recipe.model.name, estimate.cost.parameters, active_text(estimate.cost),
      count_of(tokens, "token"), count_of(estimate.visible_pairs, "visible pair"),
      estimate.cost.flops(tokens, estimate.visible_pairs) * 1e-12,
      to_string(estimate.attention.strategy), recipe.parallelism.layout, recipe.parallelism.mask,
      recipe.parallelism.transfer_dtype, count_of(mesh_of(recipe.parallelism).ranks(), "rank"),
      reason.empty() ? "" : "            " + reason + "\n", largest(estimate.forward),
      largest(estimate.backward), tensor + experts, reduce_name(recipe.training),
      recipe.parallelism.zero == 0 ? "" : ", parameters", mib(estimate.gradient_sent_bytes),
      mib(memory.total()), mib(memory.parameters), mib(memory.gradients), on_device, gathered,
      mib(memory.attention), mib(memory.activations + memory.transient), copy, on_host,
      describe_policies(recipe, estimate), describe_unused(recipe));
}

nlohmann::json to_json(const Recipe& recipe, const Estimate& estimate) {
  const cost::StepMemory& memory = estimate.memory;
  const std::int64_t tokens = tokens_of_step(recipe);
  const auto whole = [](double bytes) { return static_cast<std::int64_t>(bytes); };
  nlohmann::json policies = nlohmann::json::array();
  for (const PolicyCost& cost : estimate.policies) {
    policies.push_back({{"mode", cost::recompute_names()[static_cast<std::size_t>(cost.policy)]},
                        {"activation_bytes", cost.activation_bytes},
                        {"kept_inputs", cost.kept_inputs},
                        {"more_flops", cost.more_flops},
                        {"more_sent_bytes_per_rank", cost.more_sent.sent_bytes_per_rank}});
  }
  nlohmann::json json = {{"parameters", estimate.cost.parameters},
                         {"world", mesh_of(recipe.parallelism).ranks()},
                         {"strategy", to_string(estimate.attention.strategy)},
                         {"strategy_reason", estimate.attention.reason},
                         {"layout", recipe.parallelism.layout},
                         {"mask", recipe.parallelism.mask},
                         {"wire", recipe.parallelism.transfer_dtype},
                         {"tokens_per_step", tokens},
                         {"visible_pairs", estimate.visible_pairs},
                         {"flops_per_step", estimate.cost.flops(tokens, estimate.visible_pairs)},
                         {"forward", to_json(estimate.forward)},
                         {"backward", to_json(estimate.backward)},
                         {"gradient_dtype", reduce_name(recipe.training)},
                         {"gradient_sent_bytes", estimate.gradient_sent_bytes},
                         {"tensor_sent_bytes", estimate.tensor_sent_bytes},
                         {"activation_checkpoint",
                          {{"mode", recipe.activation_checkpoint.mode},
                           {"kept_inputs_in_papers", inputs_in_papers(estimate.cost)},
                           {"policies", policies}}},
                         {"memory_bytes",
                          {{"parameters", whole(memory.parameters)},
                           {"gradients", whole(memory.gradients)},
                           {"optimizer", whole(memory.optimizer)},
                           {"on_the_host", whole(memory.host)},
                           {"buffers", whole(memory.buffers)},
                           {"gathered", whole(memory.gathered)},
                           {"attention", whole(memory.attention)},
                           {"activations", whole(memory.activations + memory.transient)},
                           {"checkpoint", whole(memory.checkpoint)},
                           {"total", whole(memory.total())}}},
                         {"without_effect", settings_without_effect(recipe)}};
  if (estimate.cost.expert_parameters > 0) {
    json["expert_parameters"] = estimate.cost.expert_parameters;
    json["token_parameters"] = estimate.cost.matmul_parameters;
    json["expert_sent_bytes"] = estimate.expert_sent_bytes;
  }
  return json;
}

}  // namespace armillary::train
