// Terms of a step. Bandwidths of collectives are max-min fair rates of one flow per rank,
// all groups at once; the rest is arithmetic on the cost of the model.
#include "armillary/sim/step.h"

#include <algorithm>
#include <limits>

#include "armillary/core/error.h"
#include "armillary/sim/max_min.h"
#include "armillary/sim/topology.h"

namespace armillary::sim {
namespace {

/// Least rate of flows that go from each device to the one `distance` further, `width` devices at a
/// time: device d sends if d % period < width.
double shared_rate(const Topology& topology, int senders, int distance) {
  std::vector<double> capacities;
  for (const Channel& channel : topology.channels()) capacities.push_back(channel.bytes_per_s);
  FlowNetwork network(capacities);
  std::vector<std::vector<Crossing>> routes(senders);  // must outlive their flows
  std::vector<int> flows;
  for (int d = 0; d < senders; ++d) {
    const Route& route = topology.route(d, d + distance);
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

/// Tokens of a rank, and sequences that its group of sequence parallelism has.
double tokens_of(const Step& step) {
  const int replicas = step.parallelism.sp * step.parallelism.dp;
  return static_cast<double>(step.seq) * static_cast<double>(step.batch) / replicas;
}
double sequences_of(const Step& step) {
  return static_cast<double>(step.batch) / step.parallelism.dp;
}

/// Flops of all matrix products of a step, on one rank before tensor parallelism. Backward has
/// twice those of forward, whose layers are computed again if asked for.
double product_flops(const Step& step) {
  const ModelCost& model = step.model;
  const double tokens = tokens_of(step);
  const double sequences = sequences_of(step);
  const double layers =
      (2 * static_cast<double>(model.layer_matmul_parameters) + model.token_flops) * tokens +
      model.sequence_flops * sequences;
  const double output =
      2 * static_cast<double>(model.matmul_parameters - model.layer_matmul_parameters);
  if (step.kind != StepKind::Train) return layers + output * sequences;
  const int passes = step.parallelism.recompute == Recompute::None ? 3 : 4;
  return passes * layers + 3 * output * tokens;
}

}  // namespace

double group_bytes_per_s(const Cluster& cluster, int members, int stride, int part_node_links) {
  if (members == 1) return std::numeric_limits<double>::infinity();
  const int per_node = cluster.devices_per_node;
  const Topology topology(cluster, std::min(cluster.devices(), 2 * per_node));
  double rate = std::numeric_limits<double>::infinity();
  if (stride < per_node) rate = shared_rate(topology, per_node - stride, stride);
  if (members * stride <= per_node) return rate;
  int links = std::max(1, per_node / stride);
  if (stride > 1 && part_node_links > 0) links = std::min(links, part_node_links);
  return std::min(rate, links * shared_rate(topology, per_node, per_node));
}

StepTime step_time(const Step& step, const Cluster& cluster, double attention_s) {
  const ModelCost& model = step.model;
  const StepParallelism& parts = step.parallelism;
  const StepRates& rates = step.rates;
  const int replicas = parts.sp * parts.dp;
  if (parts.tp * replicas > cluster.devices()) {
    fail<InvalidArgument>("step: {} devices asked for; {} has {}", parts.tp * replicas,
                          cluster.name, cluster.devices());
  }
  if (cluster.device.matmul_flops_per_s <= 0) {
    fail<InvalidArgument>(
        "step: device {} of cluster {} has no matmul_TFLOPs; the rate of matrix products is "
        "required",
        cluster.device.name, cluster.name);
  }
  const double memory = cluster.device.memory_bytes_per_s;
  const double tokens = tokens_of(step);
  const auto parameters = static_cast<double>(model.parameters);
  const auto layers = static_cast<double>(model.attention.layers);
  const auto input_bytes = static_cast<double>(model.bytes.input);
  const bool trains = step.kind == StepKind::Train;
  StepTime time;
  time.products =
      product_flops(step) / parts.tp / (cluster.device.matmul_flops_per_s * rates.matmul_share);
  time.attention = layers * attention_s;
  // Passes over activations, forward a third of them, and six over the logits in fp32.
  time.passes = (layers * rates.layer_passes * input_bytes / (trains ? 1 : 3) +
                 (trains ? 6 * static_cast<double>(model.logits) * 4 : 0)) *
                tokens / parts.tp / memory;
  // Tensor parallelism: two all-gathers and two reduce-scatters in each pass of a layer.
  const int collectives = !trains ? 4 : parts.recompute == Recompute::None ? 8 : 12;
  time.tensor_parallel =
      layers * collectives *
      ring_seconds(tokens * input_bytes, parts.tp, group_bytes_per_s(cluster, parts.tp, 1));
  // Gradients are reduce-scattered and parameters gathered; ZeRO-3 gathers these in each pass.
  const double gathered = parts.zero == 3 ? (trains ? 4 : 2) : (trains ? 2 : 0);
  time.gradients = ring_seconds(
      parameters / parts.tp * ((trains ? rates.gradient_bytes : 0) + gathered), replicas,
      rates.gradient_share * group_bytes_per_s(cluster, replicas, parts.tp, rates.part_node_links));
  if (trains) {
    time.optimizer =
        parameters / parts.tp / (parts.zero == 0 ? 1 : replicas) * rates.optimizer_bytes / memory;
  }
  return time;
}

StepMemory step_memory(const Step& step) {
  const ModelCost& model = step.model;
  const StepParallelism& parts = step.parallelism;
  const int replicas = parts.sp * parts.dp;
  const double parameters = static_cast<double>(model.parameters) / parts.tp;
  const double tokens = tokens_of(step);
  const auto layers = static_cast<double>(model.attention.layers);
  const auto split_over = [&](int stage) { return parts.zero >= stage ? replicas : 1; };
  const auto of_tokens = [&](std::int64_t bytes, double count) {
    return static_cast<double>(bytes) * count / parts.tp;
  };
  StepMemory memory{.parameters = 2 * parameters / split_over(3)};
  if (step.kind != StepKind::Train) {
    // Layers share the memory of one; prefill keeps K and V of each.
    memory.activations = of_tokens(model.bytes.layer, tokens);
    if (step.kind == StepKind::Prefill) {
      memory.activations += (layers - 1) * of_tokens(model.bytes.kv, tokens);
      memory.transient = of_tokens(model.bytes.chunk, sequences_of(step));
    }
    return memory;
  }
  memory.gradients = step.rates.gradient_bytes * parameters / split_over(2);
  memory.optimizer = 12 * parameters / split_over(1);
  const ActivationBytes activations = activation_bytes(model, parts.recompute, tokens);
  memory.activations = activations.kept / parts.tp;
  memory.transient = activations.transient / parts.tp;
  return memory;
}

}  // namespace armillary::sim
