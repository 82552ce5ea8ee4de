// inference.cpp: prefill and decode of one prompt. Only attention of the prefill is simulated,
// since its messages go beside its kernels; a step of decode has nothing to hide them behind.
#include "armillary/predict/cost/inference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/predict/cost/attention_memory.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/group_share.h"

namespace armillary::cost {
namespace {

/// Worlds above this have one rank of each class of alike ones.
constexpr int kUnfoldedRanks = 256;

void check_counts(const Inference& of) {
  for (const auto& [name, count] : {std::pair<const char*, std::int64_t>{"tokens", of.prompt},
                                    {"sequences", of.sequences},
                                    {"cp", of.cp},
                                    {"tp", of.tp}}) {
    if (count >= 1) continue;
    fail<InvalidArgument>("inference: {} {} given; at least 1 is required", name, count);
  }
}

/// The legal tp that is nearest to the one given; of two equally near ones, the smaller.
int nearest_tp(const ModelAttention& model, const sim::Cluster& cluster, int wish) {
  int nearest = 1;
  for (int tp = 1; tp <= cluster.devices_per_node; ++tp) {
    const bool is_legal =
        cluster.devices_per_node % tp == 0 && model.heads % tp == 0 && shares_kv_heads(model, tp);
    if (is_legal && std::abs(tp - wish) < std::abs(nearest - wish)) nearest = tp;
  }
  return nearest;
}

void check_inference(const Inference& of, const sim::Cluster& cluster) {
  check_counts(of);
  if (of.model.expert_parameters > 0) {
    fail<InvalidArgument>(
        "inference: a model with experts, of which a step of decode reads those of its tokens, was "
        "given; a model without is required; nearest: advise --step prefill");
  }
  if (of.layout.kind == plan::LayoutKind::Balanced) {
    fail<InvalidArgument>(
        "inference: layout {} given, which a cache does not have; contiguous, zigzag or striped is "
        "required; nearest: zigzag",
        to_string(of.layout));
  }
  const ModelAttention& model = of.model.attention;
  if (nearest_tp(model, cluster, of.tp) == of.tp) return;
  fail<InvalidArgument>(
      "inference: tp {} with {}, {} and nodes of {}; a divisor of heads and devices that shares "
      "the KV heads is required; nearest: {}",
      of.tp, count_of(model.heads, "head"), count_of(model.kv_heads, "KV head"),
      count_of(cluster.devices_per_node, "device"), nearest_tp(model, cluster, of.tp));
}

/// Attention of a layer, on one of the ranks along tp.
plan::Problem layer_problem(const Inference& of) {
  const ModelAttention& model = of.model.attention;
  const auto head_dim = static_cast<int>(model.head_dim);
  return {.world = of.cp,
          .batch = of.sequences,
          .heads = static_cast<int>(model.heads) / of.tp,
          .kv_heads = std::max(static_cast<int>(model.kv_heads) / of.tp, 1),
          .head_dim = head_dim,
          .value_dim = head_dim,
          .dtype = of.dtype,
          .mask = plan::causal_mask({of.prompt, of.prompt}, plan::Align::Start),
          .layout = of.layout};
}

/// Bytes of prefill of so many tokens, of which the slots are known for the prompt.
StepMemory memory_of_prefill(const Inference& of, std::int64_t tokens, double slots) {
  const double grown = slots * static_cast<double>(tokens) / static_cast<double>(of.prompt);
  return step_memory(
      {.model = of.model, .seq = tokens, .batch = of.sequences, .kind = StepKind::Prefill},
      {.mesh = {.cp = of.cp, .tp = of.tp}, .microbatch = 0}, grown,
      {.parameter = of.parameter_bytes}, static_cast<double>(ceil_div(tokens, of.cp)));
}

/// The longest prompt whose bytes are within the limit, which grow with it; 0: none.
std::int64_t longest_prompt(const Inference& of, double slots, double limit) {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  std::int64_t fits = 0;
  for (std::int64_t step = kMost; step > 0; step /= 2) {
    if (memory_of_prefill(of, fits + step, slots).total() <= limit) fits += step;
  }
  return fits;
}

}  // namespace

InferenceCost inference_cost(const Inference& of, const sim::Cluster& cluster) {
  check_inference(of, cluster);
  const MeshShape mesh{.cp = of.cp, .tp = of.tp};
  const DecodeStep decode{.model = of.model,
                          .context = of.prompt,
                          .sequences = of.sequences,
                          .parameter_bytes = of.parameter_bytes};
  InferenceCost cost{.decode = decode_time(decode, mesh, cluster)};  // Refuses too many ranks.
  const plan::Planner planner(layer_problem(of), of.strategy);
  const sim::Timeline attention =
      sim::simulate(planner, plan::Pass::Forward, sim::group_share(cluster, of.tp),
                    {.fold = of.cp > kUnfoldedRanks});
  cost.prefill = step_time(
      {.model = of.model, .seq = of.prompt, .batch = of.sequences, .kind = StepKind::Prefill},
      {.mesh = mesh, .microbatch = 0}, cluster, attention_time({attention}));
  std::int64_t slots = 0;
  for (const sim::RankTimeline& rank : attention.ranks) slots = std::max(slots, rank.slot_bytes);
  const auto slot_bytes = static_cast<double>(slots);
  cost.memory = memory_of_prefill(of, of.prompt, slot_bytes);
  cost.cache_bytes = decode_memory(decode, mesh).cache;
  cost.longest_prompt = longest_prompt(of, slot_bytes, cluster.device.memory_bytes);
  cost.longest_context = longest_context(decode, mesh, cluster);
  return cost;
}

void check_inference_fits(const std::string& where, const Inference& of, const InferenceCost& cost,
                          const sim::Cluster& cluster) {
  const double limit = cluster.device.memory_bytes;
  if (cost.memory.total() <= limit) return;
  fail<InvalidArgument>(
      "{}: {} of {} over cp {}, tp {} of {}: {}, the longest prompt that fits is {}", where,
      count_of(of.sequences, "sequence"), count_of(of.prompt, "token"), of.cp, of.tp, cluster.name,
      does_not_fit(cost.memory.total(), limit), cost.longest_prompt);
}

std::string to_json(const Inference& of, const InferenceCost& cost) {
  const StepTime& prefill = cost.prefill;
  const DecodeTime& decode = cost.decode;
  const nlohmann::ordered_json json{{"prompt", of.prompt},
                                    {"sequences", of.sequences},
                                    {"cp", of.cp},
                                    {"tp", of.tp},
                                    {"strategy", to_string(of.strategy)},
                                    {"layout", to_string(of.layout)},
                                    {"time_to_first_token_s",
                                     {{"total", prefill.total()},
                                      {"products", prefill.products},
                                      {"attention", prefill.attention},
                                      {"passes", prefill.passes},
                                      {"tensor_parallel", prefill.tensor_parallel}}},
                                    {"time_per_token_s",
                                     {{"total", decode.total()},
                                      {"matrices", decode.matrices},
                                      {"cache", decode.cache},
                                      {"exchange", decode.exchange},
                                      {"tensor_parallel", decode.tensor_parallel}}},
                                    {"cache_bytes", cost.cache_bytes},
                                    {"memory_bytes",
                                     {{"total", cost.memory.total()},
                                      {"parameters", cost.memory.parameters},
                                      {"activations", cost.memory.activations},
                                      {"transient", cost.memory.transient},
                                      {"attention", cost.memory.attention}}},
                                    {"longest_prompt", cost.longest_prompt},
                                    {"longest_context", cost.longest_context}};
  return json.dump();
}

}  // namespace armillary::cost
