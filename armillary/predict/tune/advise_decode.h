// advise_decode.h: meshes for a step of decode: dp, cp and tp, by time and memory
// (predict/cost/decode.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/predict/cost/decode.h"

namespace armillary::tune {

/// A mesh with its costs.
struct DecodeMesh {
  MeshShape mesh;
  cost::DecodeTime time;
  cost::DecodeMemory memory;
  std::int64_t longest_context = 0;
};
/// `dp 1, cp 4, tp 2`.
std::string to_string(const DecodeMesh& one);

/// Every mesh of so many devices that fits, the fastest first; tp divides the query heads and can
/// share the KV heads (cost::shares_kv_heads), dp is at most the sequences.
/// @throws InvalidArgument for a model with experts, for more devices than the cluster has, for a
/// device without a rate of products, or "does not fit", with the longest context that does.
std::vector<DecodeMesh> advise_decode(const cost::DecodeStep& step, const sim::Cluster& cluster,
                                      int devices);

/// One JSON object: `meshes`, each with its axes, `time_s` and `memory_bytes` by term and
/// `longest_context`.
std::string to_json(const std::vector<DecodeMesh>& meshes);

}  // namespace armillary::tune
