// Terms of a training step. Bandwidths of collectives are max-min fair rates of one flow per rank,
// all groups at once; the rest is arithmetic on the shape of the model.
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

}  // namespace

double ModelShape::layer_parameters() const {
  const double h = hidden;
  const double q = static_cast<double>(heads) * head_dim;
  const double kv = static_cast<double>(kv_heads) * head_dim;
  return 2 * h * q + 2 * h * kv + (gated ? 3 : 2) * h * ffn;
}

double ModelShape::parameters() const {
  return layers * layer_parameters() + 2.0 * vocab * hidden;
}

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
  const ModelShape& model = step.model;
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
  const double tokens = static_cast<double>(step.seq) * static_cast<double>(step.batch) / replicas;
  const double parameters = model.parameters();
  const double products = model.layers * model.layer_parameters();
  const double output = static_cast<double>(model.vocab) * model.hidden;
  StepTime time;
  // Products: 2 flops per token and parameter forward, 4 backward, 2 when computed again.
  time.products = ((parts.recompute ? 8 : 6) * products + 6 * output) * tokens / parts.tp /
                  (cluster.device.matmul_flops_per_s * rates.matmul_share);
  time.attention = model.layers * attention_s;
  // Passes over activations, and six over the logits in fp32.
  time.passes = (model.layers * rates.layer_passes * model.hidden * 2 + 6.0 * model.vocab * 4) *
                tokens / parts.tp / memory;
  // Tensor parallelism: two all-gathers and two reduce-scatters in each pass of a layer.
  time.tensor_parallel =
      model.layers * (parts.recompute ? 12 : 8) *
      ring_seconds(tokens * model.hidden * 2, parts.tp, group_bytes_per_s(cluster, parts.tp, 1));
  // Gradients are reduce-scattered and parameters gathered; ZeRO-3 gathers these in both passes.
  const double bytes = rates.gradient_bytes + (parts.zero == 3 ? 4 : 2);
  time.gradients = ring_seconds(
      parameters / parts.tp * bytes, replicas,
      rates.gradient_share * group_bytes_per_s(cluster, replicas, parts.tp, rates.part_node_links));
  time.optimizer =
      parameters / parts.tp / (parts.zero == 0 ? 1 : replicas) * rates.optimizer_bytes / memory;
  return time;
}

StepMemory step_memory(const Step& step) {
  const ModelShape& model = step.model;
  const StepParallelism& parts = step.parallelism;
  const int replicas = parts.sp * parts.dp;
  const double parameters = model.parameters() / parts.tp;
  const double tokens = static_cast<double>(step.seq) * static_cast<double>(step.batch) / replicas;
  const auto split_over = [&](int stage) { return parts.zero >= stage ? replicas : 1; };
  // Kept in bf16 for each token: input and result of both norms, Q and Out (hidden size each), K,
  // V, and the inner values of the feed-forward layer: gate, up and their product; all split over
  // tp.
  const double kv = 2.0 * model.kv_heads * model.head_dim;
  const double inner = (model.gated ? 3.0 : 2.0) * model.ffn;
  const double layer = parts.recompute ? model.hidden : 6.0 * model.hidden + kv + inner;
  return {.parameters = 2 * parameters / split_over(3),
          .gradients = step.rates.gradient_bytes * parameters / split_over(2),
          .optimizer = 12 * parameters / split_over(1),
          .activations = 2 * model.layers * layer * tokens / parts.tp,
          .loss = 6.0 * model.vocab * tokens / parts.tp};
}

}  // namespace armillary::sim
