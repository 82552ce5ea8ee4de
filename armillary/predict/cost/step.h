// step.h: time and memory of a step around attention, by terms: a training step, the prefill of a
// prompt, or one denoising step of a diffusion transformer (DiT). The one price of a step:
// `armillary advise`, `armillary simulate --published` and `armillary train --dry-run` have no
// other.
//
//   ModelCost, Parallelism, attention (simulated or estimated) --> StepTime, StepMemory
//
// Attention comes from its plan; everything else of a transformer is a term that is computed from
// its cost (model.h): matrix products, passes over activations, collectives of tensor parallelism,
// of gradients and of parameters (ZeRO), the optimizer, and stages that wait. Ranks are ordered as
// in USP's tip 7 (arXiv:2405.07719): tp on neighbouring devices, then cp, dp and pp. In a training
// step gathers and sums go beside the units that run, as in the programs of plan/step (overlap.h);
// all other terms follow each other.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/core/mesh_shape.h"
#include "armillary/predict/cost/attention_time.h"
#include "armillary/predict/cost/group.h"
#include "armillary/predict/cost/model.h"
#include "armillary/predict/cost/overlap.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::cost {

/// The work of a step. Prefill and denoising run forward alone: they have no loss over all tokens,
/// no gradients and no optimizer.
enum class StepKind : std::uint8_t {
  Train,
  Prefill,  ///< K and V of all layers stay in memory; only the last token of a sequence has logits.
  Dit,      ///< Denoising, with a cost from dit_cost_of(): every token sees every other.
};

/// One step of one model.
struct Step {
  ModelCost model;
  std::int64_t seq = 0;
  std::int64_t batch = 1;  ///< Sequences, over all replicas.
  StepKind kind = StepKind::Train;
};

/// Division of a step over devices.
struct Parallelism {
  /// tp: with its activations split by tokens between products (Megatron's TP-sp). pp: stages of
  /// layers.
  MeshShape mesh;
  int zero = 0;  ///< Stage of ZeRO over the dp * cp ranks that hold the same parameters: 0 to 3.
  Recompute recompute = Recompute::None;
  std::int64_t microbatch = 1;  ///< Sequences of a replica in one pass; 0: all.
  /// Stage 3: gathered parameters are freed after forward.
  bool reshard_after_forward = true;
  int ep = 1;  ///< Ranks of tp, cp and dp, neighbours first, that share the experts of a layer.
  bool operator==(const Parallelism&) const = default;
};

/// Bytes of a parameter at rest: the usual ones of mixed precision are bf16 parameters, fp32
/// gradients, and an fp32 copy with two moments.
struct ParameterBytes {
  double parameter = 2;
  double gradient = 4;
  double optimizer = 12;
  double gathered = 0;  ///< A parameter that is whole for a while; 0: as `parameter`.
  double rounded = 0;   ///< A gradient that is rounded to be summed over ranks; 0: none is.
};

/// How well programs use a machine; see the uses for sources.
struct StepRates {
  double matmul_share = 1;      ///< Reached share of DeviceSpec::matmul_flops_per_s.
  double layer_passes = 60;     ///< Elements of hidden size read or written per token and layer.
  double gradient_share = 1;    ///< Share of group_bytes_per_s() in sums of gradients.
  double gradient_bytes = 4;    ///< Between ranks, per parameter; Megatron sums gradients in fp32.
  double gathered_bytes = 2;    ///< Per gathered parameter.
  double optimizer_bytes = 40;  ///< Memory traffic of Adam per parameter that a rank updates.
  /// Network links of a node that a group of gradients uses which has only some of the node's
  /// devices; 0: one for each of its devices.
  int part_node_links = 0;
  /// False: gathers and sums follow compute, as in Megatron-LM without --overlap-grad-reduce.
  bool overlaps = true;
};

/// Seconds of a step, of the stage with most work, for all sequences of its replica. Each term is
/// as if it were alone.
struct StepTime {
  double products = 0;
  double attention = 0;
  double passes = 0;  ///< Norms, activations, residuals and the loss, bound by memory.
  double tensor_parallel = 0;
  double experts = 0;  ///< Exchanges of tokens with ranks that have other experts, none hidden.
  /// Sums of gradients, and gathers of parameters: in stages 0 and 1 one of each, in stage 2 a sum
  /// and in stage 3 a sum and up to two gathers in every microbatch.
  double gradients = 0;
  double optimizer = 0;
  double pipeline = 0;  ///< Idle stages, and messages between stages.
  double hidden = 0;    ///< Part of `gradients` that goes beside the other terms.
  double total() const {
    return products + attention + passes + tensor_parallel + experts + gradients + optimizer +
           pipeline - hidden;
  }
};

/// `attention` of the passes of the step: with Recompute::Full forward twice, with AttentionOutput
/// a replay too.
/// @throws InvalidArgument for more ranks than devices, or a device without a matmul rate.
StepTime step_time(const Step& step, const Parallelism& parallelism, const sim::Cluster& cluster,
                   const AttentionTime& attention, const StepRates& rates = {});

/// The units of a training step: embedding, the layers of a stage, each with its experts behind it
/// if there are any, head. Parts that a model has not take no time; products of experts are in the
/// time of their layer. @throws as step_time().
std::vector<UnitTime> unit_times(const Step& step, const Parallelism& parallelism,
                                 const sim::Cluster& cluster, const AttentionTime& attention,
                                 const StepRates& rates = {});

/// Microbatches of a replica.
int microbatches(const Step& step, const Parallelism& parallelism);

/// Bytes of a step on the device that needs most: of a pipeline its first stage, with the embedding
/// and the output matrix, which different stages have.
struct StepMemory {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;  ///< On the device.
  double host = 0;       ///< State of the optimizer on the host; not in total().
  /// State of the optimizer that passes through the device, beyond what backward has freed then.
  double buffers = 0;
  double attention = 0;  ///< Slots of one layer; its tensors are in `activations`.
  // At the moment of training at which they are most together (peak.h).
  /// Kept from forward to backward by the microbatches under way; of forward alone those of one
  /// layer, and K and V that prefill keeps.
  double activations = 0;
  double transient = 0;  ///< Beside them for a while, for one microbatch; of prefill logits.
  /// Whole parameters and gradients of units, where ranks divide them, and rounded gradients.
  double gathered = 0;
  double checkpoint = 0;  ///< Copy of a rank's share of a checkpoint, of a trainer that saves.
  double total() const {
    return parameters + gradients + optimizer + buffers + gathered + attention + activations +
           transient + checkpoint;
  }
};

/// Bytes of the attention of one layer in one pass, on the rank that needs most.
struct AttentionBytes {
  AttentionBytes(double in_slots = 0)  // NOLINT(google-explicit-constructor): nothing more is kept
      : slots(in_slots) {}
  double slots = 0;
  // Kept from forward to backward beyond the tensors that a model counts (attention_memory.h).
  double layer = 0;   ///< With all that backward needs.
  double output = 0;  ///< With attention's output alone.
  double kept_bytes(Recompute policy) const {
    if (policy == Recompute::Full) return 0;
    return policy == Recompute::None ? layer : output;
  }
};

/// `rank_tokens`: tokens of a sequence on the rank with most of them; 0: seq / cp.
StepMemory step_memory(const Step& step, const Parallelism& parallelism,
                       const AttentionBytes& attention = {}, const ParameterBytes& bytes = {},
                       double rank_tokens = 0);

}  // namespace armillary::cost
