// Terms of a step. Bandwidths of collectives are max-min fair rates of one flow per rank,
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

/// Tokens of a rank, and sequences that its group of sequence parallelism has.
double tokens_of(const Step& step) {
  const int replicas = step.parallelism.sp * step.parallelism.dp;
  return static_cast<double>(step.seq) * static_cast<double>(step.batch) / replicas;
}
double sequences_of(const Step& step) {
  return static_cast<double>(step.batch) / step.parallelism.dp;
}

double query_size(const ModelShape& model) {
  return static_cast<double>(model.heads) * model.head_dim;
}
double key_size(const ModelShape& model) {
  return static_cast<double>(model.kv_heads) * model.head_dim;
}

/// Parameters of one layer of a DiT that condition it: six vectors of adaLN-zero from one of hidden
/// size (Peebles and Xie, arXiv:2212.09748, section 3.2), and the four matrices of cross-attention.
double conditioning_parameters(const Step& step) {
  const ModelShape& model = step.model;
  const double h = model.hidden;
  const double cross = 2 * h * query_size(model) + 2 * h * key_size(model);
  return 6 * h * h + (step.text_tokens > 0 ? cross : 0);
}

/// Flops of one layer of a DiT that condition it, on one rank: adaLN once for each sequence; Q and
/// Out of cross-attention for the tokens, K and V for the text, and each token with each of text.
double conditioning_flops(const Step& step) {
  const ModelShape& model = step.model;
  const double h = model.hidden;
  const double sequences = sequences_of(step);
  const double tokens = tokens_of(step);
  const double text = step.text_tokens;
  double flops = 2 * 6 * h * h * sequences;
  if (text > 0) {
    flops += 2 * 2 * h * query_size(model) * tokens +
             2 * 2 * h * key_size(model) * text * sequences + 4 * query_size(model) * tokens * text;
  }
  return flops;
}

/// All parameters that a step uses. A DiT has neither an embedding nor an output matrix.
double parameters_of(const Step& step) {
  const ModelShape& model = step.model;
  if (step.kind != StepKind::Dit) return model.parameters();
  return model.layers * (model.layer_parameters() + conditioning_parameters(step));
}

/// Flops of all matrix products of a step, on one rank before tensor parallelism. 2 flops per token
/// and parameter forward, 4 backward, 2 when computed again.
double product_flops(const Step& step) {
  const ModelShape& model = step.model;
  const double tokens = tokens_of(step);
  const double layers = model.layers * model.layer_parameters();
  const double output = static_cast<double>(model.vocab) * model.hidden;
  switch (step.kind) {
    case StepKind::Prefill:
      return 2 * layers * tokens + 2 * output * sequences_of(step);
    case StepKind::Dit:
      return 2 * layers * tokens + model.layers * conditioning_flops(step);
    default:
      return ((step.parallelism.recompute ? 8 : 6) * layers + 6 * output) * tokens;
  }
}

/// Kept in bf16 for each token and layer without K and V: input and result of both norms, Q and Out
/// (hidden size each), and the inner values of the feed-forward layer: gate, up and their product.
double elements_of_layer(const ModelShape& model) {
  return 6.0 * model.hidden + (model.gated ? 3.0 : 2.0) * model.ffn;
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
  const double tokens = tokens_of(step);
  const double parameters = parameters_of(step);
  const bool trains = step.kind == StepKind::Train;
  StepTime time;
  time.products =
      product_flops(step) / parts.tp / (cluster.device.matmul_flops_per_s * rates.matmul_share);
  time.attention = model.layers * attention_s;
  // Passes over activations, forward a third of them, and six over the logits in fp32.
  time.passes = (model.layers * rates.layer_passes * model.hidden * 2 / (trains ? 1 : 3) +
                 (trains ? 6.0 * model.vocab * 4 : 0)) *
                tokens / parts.tp / memory;
  // Tensor parallelism: two all-gathers and two reduce-scatters in each pass of a layer.
  const int collectives = trains ? (parts.recompute ? 12 : 8) : 4;
  time.tensor_parallel =
      model.layers * collectives *
      ring_seconds(tokens * model.hidden * 2, parts.tp, group_bytes_per_s(cluster, parts.tp, 1));
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
  const ModelShape& model = step.model;
  const StepParallelism& parts = step.parallelism;
  const int replicas = parts.sp * parts.dp;
  const double parameters = parameters_of(step) / parts.tp;
  const double tokens = tokens_of(step);
  const auto split_over = [&](int stage) { return parts.zero >= stage ? replicas : 1; };
  const double kv = 2 * key_size(model);
  StepMemory memory{.parameters = 2 * parameters / split_over(3)};
  if (step.kind != StepKind::Train) {
    // Layers share the memory of one; prefill keeps K and V of each.
    const double kept = step.kind == StepKind::Prefill ? model.layers * kv : kv;
    memory.activations = 2 * (elements_of_layer(model) + kept) * tokens / parts.tp;
    if (step.kind == StepKind::Prefill) {
      memory.loss = 6.0 * model.vocab * sequences_of(step) / parts.tp;
    }
    return memory;
  }
  const double layer = parts.recompute ? model.hidden : elements_of_layer(model) + kv;
  memory.gradients = step.rates.gradient_bytes * parameters / split_over(2);
  memory.optimizer = 12 * parameters / split_over(1);
  memory.activations = 2 * model.layers * layer * tokens / parts.tp;
  memory.loss = 6.0 * model.vocab * tokens / parts.tp;
  return memory;
}

}  // namespace armillary::sim
