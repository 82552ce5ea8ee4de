// Terms of a step: arithmetic on the cost of the model. A training step is priced by units, too,
// whose walk (overlap.h) says how much of gathers and sums is hidden.
#include "armillary/predict/cost/step.h"

#include <algorithm>
#include <cmath>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/predict/cost/peak.h"

namespace armillary::cost {
namespace {

/// The work of one replica, by passes of one microbatch.
struct ReplicaWork {
  double sequences = 0;     ///< All that the replica takes.
  double microbatches = 1;  ///< Passes that it takes for them.
  double under_way = 1;     ///< Sequences whose activations a stage holds at once.
  double in_pass = 1;       ///< Sequences of a microbatch.
  ModelCost stage;          ///< Layers of one stage, with the embedding and the output matrix.
};

ReplicaWork share_of(const Step& step, const Parallelism& parts) {
  const MeshShape& mesh = parts.mesh;
  ReplicaWork share{.sequences = static_cast<double>(step.batch) / mesh.dp,
                    .stage = step.model.along_tp(mesh.tp)};
  if (mesh.pp > 1) share.stage = share.stage.with_layers(share.stage.attention.layers / mesh.pp);
  share.in_pass = parts.microbatch == 0 ? share.sequences : static_cast<double>(parts.microbatch);
  share.microbatches = share.sequences / share.in_pass;
  // The first stage has as many microbatches under way as there are stages; of forward alone one.
  const double stages = step.kind == StepKind::Train ? mesh.pp : 1;
  share.under_way = std::min(stages, share.microbatches) * share.in_pass;
  return share;
}

/// Flops of all matrix products of a stage, on one rank before tensor parallelism. Backward has
/// twice those of forward, whose layers are computed again if asked for.
double product_flops(StepKind kind, Recompute recompute, const ReplicaWork& share, double tokens) {
  const ModelCost& model = share.stage;
  const double layers =
      (2 * static_cast<double>(model.layer_matmul_parameters) + model.token_flops) * tokens +
      model.sequence_flops * share.sequences;
  const double output =
      2 * static_cast<double>(model.matmul_parameters - model.layer_matmul_parameters);
  if (kind != StepKind::Train) return layers + output * share.sequences;
  return (recompute == Recompute::None ? 3 : 4) * layers + 3 * output * tokens;
}

/// Bytes of the two passes of forward over a logit in fp32; backward has four.
constexpr double kLogitBytes = 2 * 4;

/// Tokens of a rank, of all its sequences.
double rank_tokens_of(const Step& step, const MeshShape& mesh) {
  return static_cast<double>(step.seq) * static_cast<double>(step.batch) / (mesh.dp * mesh.cp);
}

/// Sequences of a pass of which a rank has tokens: at most one more than its even share.
double rank_sequences_of(double in_pass, const MeshShape& mesh) {
  return std::min(in_pass, std::ceil(in_pass / mesh.cp) + (mesh.cp > 1 ? 1 : 0));
}

/// Parameters that a rank holds without ZeRO: of experts those along ep, of all others along tp.
double rank_parameters(const ModelCost& model, const Parallelism& parts) {
  return static_cast<double>(model.parameters - model.expert_parameters) / parts.mesh.tp +
         static_cast<double>(model.expert_parameters) / parts.ep;
}

/// The same divided over the ranks that have the same ones.
double rank_share(const ModelCost& model, const Parallelism& parts) {
  const double experts = static_cast<double>(model.expert_parameters) / parts.ep;
  const MeshShape& mesh = parts.mesh;
  const int replicas = mesh.dp * mesh.cp;
  const int of_experts = replicas * mesh.tp / parts.ep;
  return (rank_parameters(model, parts) - experts) / replicas + experts / of_experts;
}

/// Layers with their experts, which ranks along ep divide, as if those along tp divided them; but
/// without experts of which every rank has others, for these are always whole.
ModelCost with_experts_along_tp(ModelCost model, const Parallelism& parts) {
  const MeshShape& mesh = parts.mesh;
  model.layer_parameters -= model.expert_parameters;
  if (parts.ep < mesh.dp * mesh.cp * mesh.tp) {
    model.layer_parameters += model.expert_parameters / parts.ep * mesh.tp;
  }
  return model;
}

/// The groups of a rank. Gathers and sums reach a share of the links; those of experts count as if
/// they went over the replicas of the rest.
struct RankGroups {
  RankGroup tp;
  RankGroup ep;
  RankGroup cp;
  RankGroup replicas;
  RankGroup kv;  ///< Ranks along tp that have the same KV head.

  RankGroups(const Parallelism& parts, const sim::Cluster& cluster, const StepRates& rates,
             int copies)
      : tp(group_of(cluster, parts.mesh.tp, 1)),
        ep(group_of(cluster, parts.ep, 1)),
        cp(group_of(cluster, parts.mesh.cp, parts.mesh.tp)),
        replicas(
            group_of(cluster, parts.mesh.dp * parts.mesh.cp, parts.mesh.tp, rates.part_node_links)),
        kv(group_of(cluster, copies, 1)) {
    replicas.bytes_per_s *= rates.gradient_share;
  }
};

void check_devices(const MeshShape& mesh, const sim::Cluster& cluster) {
  if (mesh.ranks() > cluster.devices()) {
    fail<InvalidArgument>("step: {} asked for; {} has {}", count_of(mesh.ranks(), "device"),
                          cluster.name, cluster.devices());
  }
  if (cluster.device.matmul_flops_per_s <= 0) {
    fail<InvalidArgument>(
        "step: device {} of cluster {} has no matmul_TFLOPs; the rate of matrix products is "
        "required",
        cluster.device.name, cluster.name);
  }
}

/// A step on a cluster.
struct PlacedStep {
  const Step& step;
  const Parallelism& parallelism;
  const sim::Cluster& cluster;
  const StepRates& rates;
  ReplicaWork share;
  RankGroups groups;

  PlacedStep(const Step& of, const Parallelism& parts, const sim::Cluster& on,
             const StepRates& reached)
      : step(of),
        parallelism(parts),
        cluster(on),
        rates(reached),
        share(share_of(of, parts)),
        groups(parts, on, reached, kv_copies(of.model.attention, parts.mesh.tp)) {}
};

/// Fills in gathers, sums and the update of so many parameters of a rank.
void add_values(UnitTime& unit, const PlacedStep& placed, double mine) {
  const RankGroup& replicas = placed.groups.replicas;
  const StepRates& rates = placed.rates;
  unit.gather = replicas.ring_seconds(mine * rates.gathered_bytes);
  unit.sum = replicas.ring_seconds(mine * rates.gradient_bytes);
  unit.update = mine / (placed.parallelism.zero == 0 ? 1 : replicas.members) *
                rates.optimizer_bytes / placed.cluster.device.memory_bytes_per_s;
}

/// The experts of a layer, of which backward runs forward so many times again: rows go there and
/// back, and again in backward. `tokens`: of a pass, on the ranks along tp together.
UnitTime experts_of(const PlacedStep& placed, double tokens, double again) {
  const ModelCost& model = placed.share.stage;
  const double rows = tokens / placed.parallelism.mesh.tp * static_cast<double>(model.expert_rows);
  const double exchange =
      placed.groups.ep.ring_seconds(rows * static_cast<double>(model.bytes.input));
  UnitTime experts{.forward = 2 * exchange, .backward = 2 * (1 + again) * exchange};
  add_values(experts, placed,
             static_cast<double>(model.expert_parameters) /
                 static_cast<double>(model.attention.layers) / placed.parallelism.ep);
  return experts;
}

/// The units of a training step (step.h).
std::vector<UnitTime> units_of(const PlacedStep& placed, const AttentionTime& attention) {
  const MeshShape& mesh = placed.parallelism.mesh;
  const ModelCost& model = placed.share.stage;
  const RankGroups& groups = placed.groups;
  const StepRates& rates = placed.rates;
  const int passes = microbatches(placed.step, placed.parallelism);
  const double tokens = rank_tokens_of(placed.step, mesh) / passes;
  const double flops_per_s = placed.cluster.device.matmul_flops_per_s * rates.matmul_share;
  const double memory = placed.cluster.device.memory_bytes_per_s;
  const auto values = [&](UnitTime& unit, double parameters) {
    add_values(unit, placed, parameters / mesh.tp);
  };
  // Embedding, which has the table that a head may share, and head.
  const auto outputs = static_cast<double>(model.matmul_parameters - model.layer_matmul_parameters);
  const auto around = static_cast<double>(model.parameters - model.layer_parameters);
  const bool has_units = model.first_parameters + model.last_parameters > 0;
  const double last =
      has_units ? static_cast<double>(model.last_parameters) : std::min(around, outputs);
  UnitTime embedding;
  values(embedding, around - last);
  UnitTime head;
  values(head, last);
  head.forward =
      tokens / mesh.tp *
      (2 * outputs / flops_per_s + kLogitBytes * static_cast<double>(model.logits) / memory);
  head.backward = 2 * head.forward;
  // A layer.
  const auto layers = static_cast<double>(model.attention.layers);
  const auto input_bytes = static_cast<double>(model.bytes.input);
  const double products =
      ((2 * static_cast<double>(model.layer_matmul_parameters) + model.token_flops) * tokens +
       model.sequence_flops * placed.share.sequences / passes) /
      layers / mesh.tp / flops_per_s;
  const double memory_bound = rates.layer_passes / 3 * input_bytes * tokens / mesh.tp / memory;
  const double tensor =
      2 * static_cast<double>(model.tp_branches) * groups.tp.ring_seconds(tokens * input_bytes);
  const double again = placed.parallelism.recompute == Recompute::None ? 0 : 1;
  UnitTime layer{.forward = products + memory_bound + tensor + attention.forward,
                 .backward = (2 + again) * products + 2 * memory_bound + (1 + again) * tensor +
                             attention.backward};
  values(layer, static_cast<double>(model.layer_parameters - model.expert_parameters) / layers);
  // Copies of KV heads sum their gradients.
  layer.along_tp = 2 * groups.kv.ring_seconds(static_cast<double>(model.kv_parameters) / mesh.tp *
                                              rates.gradient_bytes);
  const double tensor_link = groups.tp.shares_links(groups.replicas) ? tensor : 0;
  const double attention_link = groups.cp.shares_links(groups.replicas) ? attention.link_share : 0;
  layer.forward_link = tensor_link + attention_link * attention.forward;
  layer.backward_link = (1 + again) * tensor_link + attention_link * attention.backward;
  std::vector<UnitTime> units{embedding};
  for (std::int64_t i = 0; i < model.attention.layers; ++i) {
    units.push_back(layer);
    if (model.expert_parameters > 0) units.push_back(experts_of(placed, tokens, again));
  }
  units.push_back(head);
  return units;
}

}  // namespace

int microbatches(const Step& step, const Parallelism& parallelism) {
  return std::max(1, static_cast<int>(std::lround(share_of(step, parallelism).microbatches)));
}

std::vector<UnitTime> unit_times(const Step& step, const Parallelism& parallelism,
                                 const sim::Cluster& cluster, const AttentionTime& attention,
                                 const StepRates& rates) {
  check_devices(parallelism.mesh, cluster);
  return units_of(PlacedStep(step, parallelism, cluster, rates), attention);
}

StepTime step_time(const Step& step, const Parallelism& parallelism, const sim::Cluster& cluster,
                   const AttentionTime& attention, const StepRates& rates) {
  const MeshShape& mesh = parallelism.mesh;
  check_devices(mesh, cluster);
  const PlacedStep placed(step, parallelism, cluster, rates);
  const ReplicaWork& share = placed.share;
  const RankGroups& groups = placed.groups;
  const double memory = cluster.device.memory_bytes_per_s;
  const double tokens = rank_tokens_of(step, mesh);
  const int passes = microbatches(step, parallelism);
  const double parameters = rank_parameters(share.stage, parallelism);
  const auto layers = static_cast<double>(share.stage.attention.layers);
  const auto input_bytes = static_cast<double>(step.model.bytes.input);
  const bool trains = step.kind == StepKind::Train;
  StepTime time;
  time.products = product_flops(step.kind, parallelism.recompute, share, tokens) / mesh.tp /
                  (cluster.device.matmul_flops_per_s * rates.matmul_share);
  time.attention = layers * (share.microbatches * attention.total());
  // Passes over activations, forward a third of them, and six over the logits in fp32.
  time.passes = (layers * rates.layer_passes * input_bytes / (trains ? 1 : 3) +
                 (trains ? 3 * kLogitBytes * static_cast<double>(step.model.logits) : 0)) *
                tokens / mesh.tp / memory;
  // Tensor parallelism: an all-gather and a reduce-scatter in each pass of a branch of a layer.
  const int collectives = !trains ? 2 : parallelism.recompute == Recompute::None ? 4 : 6;
  time.tensor_parallel = layers * static_cast<double>(step.model.tp_branches) * collectives *
                         passes * groups.tp.ring_seconds(tokens / passes * input_bytes);
  // Experts: as many exchanges as of one branch, of the rows of a rank's own tokens.
  time.experts = layers * collectives * passes *
                 groups.ep.ring_seconds(tokens / passes / mesh.tp *
                                        static_cast<double>(step.model.expert_rows) * input_bytes);
  Overlapped walked;
  if (trains) {
    walked = overlapped(units_of(placed, attention), passes,
                        groups.replicas.members == 1 ? 0 : parallelism.zero);
    time.gradients = walked.collectives;
    time.optimizer = parameters / (parallelism.zero == 0 ? 1 : groups.replicas.members) *
                     rates.optimizer_bytes / memory;
  } else if (parallelism.zero == 3) {
    time.gradients = groups.replicas.ring_seconds(parameters * rates.gathered_bytes);
  }
  // Each stage waits for the first microbatch to come, and in training at the end for the last to
  // return.
  if (mesh.pp > 1) {
    const double busy = time.total() - time.gradients - time.optimizer;
    time.pipeline = busy * (mesh.pp - 1) / share.microbatches +
                    (trains ? 2 : 1) * (tokens * input_bytes / mesh.tp) /
                        group_bytes_per_s(cluster, mesh.pp, mesh.ranks() / mesh.pp);
  }
  if (trains && rates.overlaps) {
    time.hidden = std::max(0.0, time.total() - time.pipeline - walked.end);
  }
  return time;
}

StepMemory step_memory(const Step& step, const Parallelism& parallelism,
                       const AttentionBytes& attention, const ParameterBytes& bytes,
                       double rank_tokens) {
  const MeshShape& mesh = parallelism.mesh;
  const ReplicaWork share = share_of(step, parallelism);
  const ModelCost& model = share.stage;
  const double tokens = rank_tokens > 0 ? rank_tokens : static_cast<double>(step.seq) / mesh.cp;
  const auto layers = static_cast<double>(model.attention.layers);
  // Bytes of the parameters of a rank, each with so many, which replicas divide from a stage on.
  const auto bytes_from = [&](int stage, double one) {
    return one * (parallelism.zero >= stage ? rank_share(model, parallelism)
                                            : rank_parameters(model, parallelism));
  };
  const auto of_tokens = [&](std::int64_t one, double count) {
    return static_cast<double>(one) * count / mesh.tp;
  };
  StepMemory memory{.parameters = bytes_from(3, bytes.parameter), .attention = attention.slots};
  if (step.kind != StepKind::Train) {
    // Layers share the memory of one; prefill keeps K and V of each, also of those that have left.
    memory.activations = of_tokens(model.bytes.layer, tokens * share.under_way);
    if (step.kind == StepKind::Prefill) {
      memory.activations +=
          of_tokens(model.bytes.kv, tokens * (layers * share.sequences - share.under_way));
      memory.transient = of_tokens(model.bytes.logits, share.in_pass);
    }
    return memory;
  }
  memory.gradients = bytes_from(2, bytes.gradient);
  memory.optimizer = bytes_from(1, bytes.optimizer);
  // Units are whole for a while where replicas divide them. A sum that is rounded, or added to an
  // earlier one, has memory of its own for the share of a rank; at stage 0 rounded gradients become
  // their sums in place.
  const int replicas = mesh.dp * mesh.cp;
  const bool divides_gradients = replicas > 1 && parallelism.zero >= 2;
  const double gathered = bytes.gathered > 0 ? bytes.gathered : bytes.parameter;
  const auto sum = [&](bool is_added) {
    const double own = 1.0 / replicas;
    if (replicas == 1) return 0.0;
    if (bytes.rounded > 0) return bytes.rounded * (parallelism.zero == 0 ? 1 : 1 + own);
    return divides_gradients ? bytes.gradient * (is_added ? 1 + own : 1) : 0.0;
  };
  const StepPeak peak = step_peak(
      with_experts_along_tp(model, parallelism),
      {.policy = parallelism.recompute,
       .tokens = tokens * share.in_pass,
       .sequences = rank_sequences_of(share.in_pass, mesh),
       .waiting_tokens = tokens * (share.under_way - share.in_pass),
       .tp = mesh.tp,
       .attention_layer = attention.layer,
       .attention_kept = attention.kept_bytes(parallelism.recompute),
       .value = replicas > 1 && parallelism.zero == 3 ? gathered : 0,
       .gradient = divides_gradients ? bytes.gradient : 0,
       .sum = sum(share.microbatches > 1),
       .sum_before = divides_gradients && share.microbatches > 1 ? sum(share.microbatches > 2) : 0,
       .gathered_sum = parallelism.zero == 0 ? sum(false) : 0,
       .keeps_values = !parallelism.reshard_after_forward});
  memory.activations = peak.activations;
  memory.transient = peak.transient;
  memory.gathered = peak.gathered;
  return memory;
}

}  // namespace armillary::cost
