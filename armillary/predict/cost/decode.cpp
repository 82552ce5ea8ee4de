#include "armillary/predict/cost/decode.h"

#include <algorithm>
#include <cmath>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/predict/cost/group.h"

namespace armillary::cost {
namespace {

/// Bytes of an element of a partial result.
constexpr double kPartialBytes = 4;

void check_decode_devices(const MeshShape& mesh, const sim::Cluster& cluster) {
  if (mesh.ranks() > cluster.devices()) {
    fail<InvalidArgument>("decode: {} asked for; {} has {}", count_of(mesh.ranks(), "device"),
                          cluster.name, cluster.devices());
  }
  if (cluster.device.matmul_flops_per_s > 0) return;
  fail<InvalidArgument>(
      "decode: device {} of cluster {} has no matmul_TFLOPs; the rate of matrix products is "
      "required",
      cluster.device.name, cluster.name);
}

/// Sequences of the replica with most.
double sequences_of(const DecodeStep& step, const MeshShape& mesh) {
  return static_cast<double>(ceil_div(step.sequences, mesh.dp));
}

/// K and V of one position of each of a rank's sequences.
double bytes_of_position(const DecodeStep& step, const MeshShape& mesh) {
  return sequences_of(step, mesh) * cache_bytes_of_token(step.model, mesh.tp);
}

}  // namespace

double cache_bytes_of_token(const ModelCost& model, int tp) {
  return static_cast<double>(model.attention.layers) *
         static_cast<double>(model.along_tp(tp).bytes.kv) / tp;
}

DecodeTime decode_time(const DecodeStep& step, const MeshShape& mesh, const sim::Cluster& cluster) {
  check_decode_devices(mesh, cluster);
  const ModelCost& model = step.model;
  const double memory = cluster.device.memory_bytes_per_s;
  const double sequences = sequences_of(step, mesh);
  const double matrices = static_cast<double>(model.along_tp(mesh.tp).matmul_parameters) / mesh.tp;
  const auto layers = static_cast<double>(model.attention.layers);
  DecodeTime time;
  time.matrices = std::max(matrices * step.parameter_bytes / memory,
                           2 * matrices * sequences / cluster.device.matmul_flops_per_s);
  const auto positions = static_cast<double>(ceil_div(step.context, mesh.cp));
  time.cache = positions * bytes_of_position(step, mesh) / memory;
  // Every rank sends its partial results to all others, as in an all-gather.
  const auto heads = static_cast<double>(ceil_div(model.attention.heads, std::int64_t{mesh.tp}));
  const double partial =
      sequences * heads * static_cast<double>(model.attention.head_dim + 1) * kPartialBytes;
  time.exchange = layers * group_of(cluster, mesh.cp, mesh.tp).ring_seconds(partial * mesh.cp);
  // Two all-gathers and two reduce-scatters of the tokens in each layer.
  time.tensor_parallel = layers * 4 *
                         group_of(cluster, mesh.tp, 1)
                             .ring_seconds(sequences * static_cast<double>(model.bytes.input));
  return time;
}

DecodeMemory decode_memory(const DecodeStep& step, const MeshShape& mesh) {
  const auto parameters = static_cast<double>(step.model.along_tp(mesh.tp).parameters);
  return {.parameters = step.parameter_bytes * parameters / mesh.tp,
          .cache =
              static_cast<double>(ceil_div(step.context, mesh.cp)) * bytes_of_position(step, mesh)};
}

std::int64_t longest_context(const DecodeStep& step, const MeshShape& mesh,
                             const sim::Cluster& cluster) {
  const double free = cluster.device.memory_bytes - decode_memory(step, mesh).parameters;
  if (free <= 0) return 0;
  return mesh.cp * static_cast<std::int64_t>(std::floor(free / bytes_of_position(step, mesh)));
}

}  // namespace armillary::cost
