// decode.h: time and memory of a step of decode: one new token for each of some sequences, whose K
// and V are spread over the ranks along cp, heads and matrices over those along tp.
//
//   a step reads every matrix and all of K and V once, and each layer exchanges partial results
//   along cp (plan/decode/decode_program.h) and tokens along tp
//
// Terms follow each other. Work of a host between ops is left out, so small models on fast devices
// take longer.
#pragma once

#include <cstdint>

#include "armillary/core/mesh_shape.h"
#include "armillary/predict/cost/model.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::cost {

/// New tokens of all sequences, each behind so many.
struct DecodeStep {
  ModelCost model;
  std::int64_t context = 0;    ///< Tokens of a sequence.
  std::int64_t sequences = 1;  ///< Those of all replicas along dp.
  double parameter_bytes = 2;  ///< Bytes of one parameter.
};

/// Bytes of K and V of a token in all layers; of one of the ranks along tp, those of its KV heads.
double cache_bytes_of_token(const ModelCost& model, int tp = 1);

/// Seconds of a step.
struct DecodeTime {
  double matrices = 0;  ///< Read from memory, or multiplied, if that takes longer.
  double cache = 0;     ///< K and V, read from memory.
  double exchange = 0;  ///< Partial results along cp, every rank with all queries.
  double tensor_parallel = 0;
  double total() const { return matrices + cache + exchange + tensor_parallel; }
};
/// The mesh has dp, cp and tp; ranks along tp have the KV heads that training gives them
/// (ModelCost::along_tp). @throws InvalidArgument for more ranks than devices, or a device without
/// a matmul rate.
DecodeTime decode_time(const DecodeStep& step, const MeshShape& mesh, const sim::Cluster& cluster);

/// Bytes of a rank.
struct DecodeMemory {
  double parameters = 0;
  double cache = 0;
  double total() const { return parameters + cache; }
};
DecodeMemory decode_memory(const DecodeStep& step, const MeshShape& mesh);

/// The longest sequences of which the cache fits beside the parameters; 0: none.
std::int64_t longest_context(const DecodeStep& step, const MeshShape& mesh,
                             const sim::Cluster& cluster);

}  // namespace armillary::cost
