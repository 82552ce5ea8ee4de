// Terms of a step. Bandwidths of collectives are max-min fair rates of one flow per rank,
// all groups at once; the rest is arithmetic on the cost of the model.
#include "armillary/predict/cost/step.h"

#include <algorithm>
#include <limits>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/predict/cost/peak.h"
#include "armillary/predict/sim/flow_network.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::cost {
namespace {

/// Least rate of flows that go from each device to the one `distance` further, `width` devices at a
/// time: device d sends if d % period < width.
double shared_rate(const sim::Topology& topology, int senders, int distance) {
  std::vector<double> capacities;
  for (const sim::Channel& channel : topology.channels()) capacities.push_back(channel.bytes_per_s);
  sim::FlowNetwork network(capacities);
  std::vector<std::vector<sim::Crossing>> routes(senders);  // must outlive their flows
  std::vector<int> flows;
  for (int d = 0; d < senders; ++d) {
    const sim::MessageRoute& route = topology.route(d, d + distance);
    for (const int channel : route.channels) routes[d].push_back({.channel = channel});
    flows.push_back(network.start(0, routes[d], route.flow_bytes_per_s, 1));
  }
  network.settle(0);
  double least = std::numeric_limits<double>::infinity();
  for (const int flow : flows) least = std::min(least, network.rate(flow));
  return least;
}

/// Seconds of an all-gather or a reduce-scatter of a buffer.
double ring_seconds(double bytes, int members, double bytes_per_s) {
  return members == 1 ? 0 : bytes * (members - 1) / members / bytes_per_s;
}

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
  ReplicaWork share{.sequences = static_cast<double>(step.batch) / mesh.dp, .stage = step.model};
  if (mesh.pp > 1) share.stage = step.model.with_layers(step.model.attention.layers / mesh.pp);
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

}  // namespace

double group_bytes_per_s(const sim::Cluster& cluster, int members, int stride,
                         int part_node_links) {
  if (members == 1) return std::numeric_limits<double>::infinity();
  const int per_node = cluster.devices_per_node;
  const sim::Topology topology(cluster, std::min(cluster.devices(), 2 * per_node));
  double rate = std::numeric_limits<double>::infinity();
  if (stride < per_node) rate = shared_rate(topology, per_node - stride, stride);
  if (members * stride <= per_node) return rate;
  int links = std::max(1, per_node / stride);
  if (stride > 1 && part_node_links > 0) links = std::min(links, part_node_links);
  return std::min(rate, links * shared_rate(topology, per_node, per_node));
}

StepTime step_time(const Step& step, const Parallelism& parallelism, const sim::Cluster& cluster,
                   double attention_s, const StepRates& rates) {
  const MeshShape& mesh = parallelism.mesh;
  check_devices(mesh, cluster);
  const ReplicaWork share = share_of(step, parallelism);
  const double memory = cluster.device.memory_bytes_per_s;
  const int replicas = mesh.dp * mesh.cp;
  const double tokens = static_cast<double>(step.seq) * static_cast<double>(step.batch) / replicas;
  const auto parameters = static_cast<double>(share.stage.parameters);
  const auto layers = static_cast<double>(share.stage.attention.layers);
  const auto input_bytes = static_cast<double>(step.model.bytes.input);
  const bool trains = step.kind == StepKind::Train;
  StepTime time;
  time.products = product_flops(step.kind, parallelism.recompute, share, tokens) / mesh.tp /
                  (cluster.device.matmul_flops_per_s * rates.matmul_share);
  time.attention = layers * (share.microbatches * attention_s);
  // Passes over activations, forward a third of them, and six over the logits in fp32.
  time.passes = (layers * rates.layer_passes * input_bytes / (trains ? 1 : 3) +
                 (trains ? 6 * static_cast<double>(step.model.logits) * 4 : 0)) *
                tokens / mesh.tp / memory;
  // Tensor parallelism: two all-gathers and two reduce-scatters in each pass of a layer.
  const int collectives = !trains ? 4 : parallelism.recompute == Recompute::None ? 8 : 12;
  time.tensor_parallel =
      layers * collectives *
      ring_seconds(tokens * input_bytes, mesh.tp, group_bytes_per_s(cluster, mesh.tp, 1));
  // Gradients are reduce-scattered and parameters gathered; ZeRO-3 gathers these in each pass.
  const double gathered = parallelism.zero == 3 ? (trains ? 4 : 2) : (trains ? 2 : 0);
  time.gradients = ring_seconds(
      parameters / mesh.tp * ((trains ? rates.gradient_bytes : 0) + gathered), replicas,
      rates.gradient_share * group_bytes_per_s(cluster, replicas, mesh.tp, rates.part_node_links));
  if (trains) {
    time.optimizer = parameters / mesh.tp / (parallelism.zero == 0 ? 1 : replicas) *
                     rates.optimizer_bytes / memory;
  }
  if (mesh.pp == 1) return time;
  // Each stage waits for the first microbatch to come, and in training at the end for the last to
  // return.
  const double busy = time.total() - time.gradients - time.optimizer;
  time.pipeline = busy * (mesh.pp - 1) / share.microbatches +
                  (trains ? 2 : 1) * (tokens * input_bytes / mesh.tp) /
                      group_bytes_per_s(cluster, mesh.pp, mesh.ranks() / mesh.pp);
  return time;
}

StepMemory step_memory(const Step& step, const Parallelism& parallelism, double attention_bytes,
                       const ParameterBytes& bytes, double rank_tokens) {
  const MeshShape& mesh = parallelism.mesh;
  const ReplicaWork share = share_of(step, parallelism);
  const ModelCost& model = share.stage;
  const double tokens = rank_tokens > 0 ? rank_tokens : static_cast<double>(step.seq) / mesh.cp;
  const double parameters = static_cast<double>(model.parameters) / mesh.tp;
  const auto layers = static_cast<double>(model.attention.layers);
  const auto split_over = [&](int stage) {
    return parallelism.zero >= stage ? mesh.dp * mesh.cp : 1;
  };
  const auto of_tokens = [&](std::int64_t one, double count) {
    return static_cast<double>(one) * count / mesh.tp;
  };
  StepMemory memory{.parameters = bytes.parameter * parameters / split_over(3),
                    .attention = attention_bytes};
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
  memory.gradients = bytes.gradient * parameters / split_over(2);
  memory.optimizer = bytes.optimizer * parameters / split_over(1);
  // Units are whole for a while where replicas divide them.
  const int replicas = mesh.dp * mesh.cp;
  const bool divides_gradients = replicas > 1 && parallelism.zero >= 2;
  const double gathered = bytes.gathered > 0 ? bytes.gathered : bytes.parameter;
  const StepPeak peak =
      step_peak(model, {.policy = parallelism.recompute,
                        .tokens = tokens * share.in_pass,
                        .waiting_tokens = tokens * (share.under_way - share.in_pass),
                        .tp = mesh.tp,
                        .value = replicas > 1 && parallelism.zero == 3 ? gathered : 0,
                        .gradient = divides_gradients ? bytes.gradient : 0,
                        .share = share.microbatches > 1 ? 1.0 / replicas : 0,
                        .keeps_values = !parallelism.reshard_after_forward});
  memory.activations = peak.kept;
  memory.transient = peak.held;
  memory.gathered = peak.gathered;
  return memory;
}

}  // namespace armillary::cost
