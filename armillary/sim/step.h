// step.h: time and memory of a step around attention, by terms: a training step, the prefill of a
// prompt, or one denoising step of a diffusion transformer (DiT).
//
// The plan of attention is simulated; everything else of a transformer is a term that is computed
// from its cost (model_cost.h): matrix products, passes over activations, collectives of tensor
// parallelism, of gradients and of parameters (ZeRO), and the optimizer. Ranks are ordered as in
// USP's tip 7: tensor parallelism on neighbouring devices, then sequence, then data parallelism.
//
// Terms follow each other; nothing of them overlaps. Pipelines are not modelled.
#pragma once

#include <cstdint>

#include "armillary/sim/cluster.h"
#include "armillary/sim/model_cost.h"

namespace armillary::sim {

/// Division of a step over tp * sp * dp devices.
struct StepParallelism {
  int tp = 1;    ///< Tensor parallelism with its activations split by sequence (Megatron's TP-sp).
  int sp = 1;    ///< Ranks that share a sequence.
  int dp = 1;    ///< Groups of tp * sp devices that take different sequences.
  int zero = 1;  ///< Stage of ZeRO over sp * dp ranks: 0 to 3.
  Recompute recompute = Recompute::None;
};

/// How well programs use a machine; see the uses for sources.
struct StepRates {
  double matmul_share = 1;      ///< Reached share of Device::matmul_flops_per_s.
  double layer_passes = 60;     ///< Elements of hidden size read or written per token and layer.
  double gradient_share = 1;    ///< Share of group_bytes_per_s() in sums of gradients.
  double gradient_bytes = 4;    ///< Per parameter; Megatron sums gradients in fp32.
  double optimizer_bytes = 40;  ///< Memory traffic of Adam per parameter that a rank updates.
  /// Network links of a node that a group of gradients uses which has only some of the node's
  /// devices; 0: one for each of its devices.
  int part_node_links = 0;
};

/// The work of a step. Prefill and denoising run forward alone: they have no loss over all tokens,
/// no gradients and no optimizer.
enum class StepKind : std::uint8_t {
  Train,
  Prefill,  ///< K and V of all layers stay in memory; only the last token of a sequence has logits.
  Dit,      ///< Denoising, with a cost from dit_cost_of(): every token sees every other.
};

/// One step of one model on one cluster.
struct Step {
  StepKind kind = StepKind::Train;
  ModelCost model;
  std::int64_t seq = 0;
  std::int64_t batch = 1;  ///< Sequences per step, over all devices.
  StepParallelism parallelism;
  StepRates rates;
};

/// Seconds of a step, all its passes.
struct StepTime {
  double products = 0;
  double attention = 0;
  double passes = 0;  ///< Norms, activations, residuals and the loss, bound by memory.
  double tensor_parallel = 0;
  double gradients = 0;  ///< Sums of gradients, and gathers of parameters.
  double optimizer = 0;
  double total() const {
    return products + attention + passes + tensor_parallel + gradients + optimizer;
  }
};

/// `attention_s` is the time of attention of one layer in the passes of the step, for all sequences
/// of a rank: with Recompute::Full forward twice, with AttentionOutput a replay too.
/// @throws InvalidArgument for more ranks than devices, or a device without a matmul rate.
StepTime step_time(const Step& step, const Cluster& cluster, double attention_s);

/// Bytes of a step on one device.
struct StepMemory {
  double parameters = 0;  ///< bf16.
  double gradients = 0;   ///< fp32.
  double optimizer = 0;   ///< 12 bytes a parameter: fp32 copy and two moments.
  /// Kept from forward to backward; of forward alone those of one layer, and K and V that prefill
  /// keeps.
  double activations = 0;
  /// Beside them for a while: ActivationBytes::transient; of forward alone logits.
  double transient = 0;
  double total() const { return parameters + gradients + optimizer + activations + transient; }
};
StepMemory step_memory(const Step& step);

/// Bandwidth of ring collectives in groups of `members` devices that are `stride` apart, while all
/// such groups of the cluster work at once: that of the link within a node, or of all network links
/// that the members of one node have together, if less; with `part_node_links` (StepRates), of at
/// most so many of them.
double group_bytes_per_s(const Cluster& cluster, int members, int stride, int part_node_links = 0);

}  // namespace armillary::sim
