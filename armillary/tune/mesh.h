// mesh.h: time and memory of a training step on a mesh of devices, term by term.
//
//   devices = tp x cp x dp x pp, from neighbouring devices outwards (USP, tip 7)
//
//   tp   tensor parallelism, activations split by tokens between products (Megatron's TP-sp)
//   cp   ranks that share a sequence: attention by a strategy of this library, u x Rq x Rk = cp
//   dp   replicas that take other sequences
//   pp   stages of layers; a microbatch is one sequence
//
// Attention comes from the tuner, the terms of one stage from sim/step.h; pipelines and
// microbatches are added here. Terms follow each other: nothing of them overlaps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/strategy.h"
#include "armillary/sim/step.h"

namespace armillary::tune {

/// The cost of a model, with the name that it was asked for by.
struct NamedModel : sim::ModelCost {
  std::string name;
};

/// A known model (`llama3-8b`), or `layers=L,hidden=E,heads=H,kv_heads=G,head_dim=D,ffn=F,vocab=V`
/// with `,gated=false` for two matrices; `kv_heads` and `head_dim` may be left out. For a denoising
/// step it is a DiT of that shape, with cross-attention to `text_tokens` if there are any. Logits
/// exist for 1,024 tokens at once.
/// @throws InvalidArgument with the nearest name, for a number that is missing, or for 2^59
/// parameters.
NamedModel parse_model(std::string_view text, sim::StepKind kind = sim::StepKind::Train,
                       int text_tokens = 0);
std::vector<std::string> model_names();

/// A division of the devices.
struct Mesh {
  int tp = 1;
  int cp = 1;
  int dp = 1;
  int pp = 1;
  int zero = 0;  ///< Stage of ZeRO over the cp * dp ranks that hold the same parameters: 0 to 3.
  sim::Recompute recompute = sim::Recompute::None;
  bool operator==(const Mesh&) const = default;
  int devices() const { return tp * cp * dp * pp; }
};

/// One step: of training unless `kind` says another.
struct StepShape {
  NamedModel model;
  std::int64_t seq = 0;
  std::int64_t batch = 1;  ///< Sequences in a step, over all replicas.
  sim::StepKind kind = sim::StepKind::Train;
};

/// Seconds of a step.
struct MeshTime {
  sim::StepTime stage;  ///< The stage with most work, all sequences of its replica.
  double pipeline = 0;  ///< Idle stages, and messages between stages.
  double total() const { return stage.total() + pipeline; }
};
/// `attention_s`: the passes of one layer for one sequence on the cp ranks.
/// @throws InvalidArgument if the device's matmul rate is not known.
MeshTime mesh_time(const StepShape& step, const Mesh& mesh, const sim::Cluster& cluster,
                   double attention_s);

/// Bytes on the device that needs most.
struct MeshMemory {
  sim::StepMemory stage;  ///< The microbatches under way; loss and backward of one of them.
  double attention = 0;   ///< Slots of one layer; its tensors are in `stage`.
  double total() const { return stage.total() + attention; }
};
MeshMemory mesh_memory(const StepShape& step, const Mesh& mesh, double attention_bytes);

/// Elements that a device sends in attention of one layer, forward and backward, with every token
/// of the step seen by every other.
struct SequenceElements {
  double heads = 0;  ///< All-to-alls: Q, K, V, Out and their gradients.
  double ring = 0;   ///< Ring: K, V in both passes, and sums of dK, dV (fp32; all others bf16).
  double total() const { return heads + ring; }
};
/// cp ranks: u ways over heads, rings of cp / u. A KV head that several ways read goes to each.
/// Exact if u, which divides cp and the heads, divides the KV heads or is a multiple of them.
SequenceElements sequence_elements(const StepShape& step, int cp, int u);

/// A row of USP's Table 2: elements of collectives, and bytes, of one layer on each of n devices,
/// forward and backward. 2 (n - 1) / n elements for each element of an all-reduce, (n - 1) / n of
/// an all-gather or reduce-scatter, (n - 1) / n^2 of a tensor that all ranks share in an
/// all-to-all. A pipeline divides layers: its row is the mean over them.
struct MethodCost {
  std::string method;
  double parameter_elements = 0;
  double activation_elements = 0;
  double parameter_bytes = 0;
  double optimizer_bytes = 0;
  double activation_bytes = 0;
};
/// SP-Ulysses, SP-Ring, DP, DP with ZeRO-1, SP-Unified with ZeRO-1, 2 and 3, TP, TP-sp and PP.
/// SP-Unified has as many ways over heads as it can, and rings over the rest. Rows that cannot be
/// are left out: SP-Ulysses and TP if n does not divide the heads, PP if not the layers.
std::vector<MethodCost> method_costs(const StepShape& step, int devices);

}  // namespace armillary::tune
