#include "armillary/predict/tune/advise_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::tune {
namespace {

/// Every division of the devices, those that do not fit too.
std::vector<DecodeMesh> all_decode_meshes(const cost::DecodeStep& step, const sim::Cluster& cluster,
                                          int devices) {
  std::vector<DecodeMesh> meshes;
  const cost::ModelAttention& model = step.model.attention;
  for (int tp = 1; tp <= devices; ++tp) {
    if (devices % tp != 0 || model.heads % tp != 0 || !cost::shares_kv_heads(model, tp)) continue;
    for (int cp = 1; cp <= devices / tp; ++cp) {
      const MeshShape mesh{.dp = devices / tp / cp, .cp = cp, .tp = tp};
      if (mesh.ranks() != devices || mesh.dp > step.sequences) continue;
      meshes.push_back({.mesh = mesh,
                        .time = cost::decode_time(step, mesh, cluster),
                        .memory = cost::decode_memory(step, mesh),
                        .longest_context = cost::longest_context(step, mesh, cluster)});
    }
  }
  return meshes;
}

}  // namespace

std::string to_string(const DecodeMesh& one) {
  return fmt::format("dp {}, cp {}, tp {}", one.mesh.dp, one.mesh.cp, one.mesh.tp);
}

std::vector<DecodeMesh> advise_decode(const cost::DecodeStep& step, const sim::Cluster& cluster,
                                      int devices) {
  if (step.model.expert_parameters > 0) {
    fail<InvalidArgument>(
        "advise: a model with experts, of which a step of decode reads those of its tokens, given "
        "with --step decode; --step train or prefill is required");
  }
  std::vector<DecodeMesh> meshes = all_decode_meshes(step, cluster, devices);
  // cp = devices is always there.
  const DecodeMesh longest = *std::ranges::max_element(meshes, {}, &DecodeMesh::longest_context);
  std::erase_if(meshes, [&](const DecodeMesh& one) { return one.longest_context < step.context; });
  if (meshes.empty()) {
    fail<InvalidArgument>(
        "advise: {} of {} do not fit {} of {}; the longest that fits is {}, with {}",
        count_of(step.sequences, "sequence"), count_of(step.context, "token"),
        count_of(devices, "device"), cluster.name, count_of(longest.longest_context, "token"),
        to_string(longest));
  }
  std::ranges::stable_sort(meshes, {}, [](const DecodeMesh& one) { return one.time.total(); });
  return meshes;
}

std::string to_json(const std::vector<DecodeMesh>& meshes) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const DecodeMesh& one : meshes) {
    rows.push_back({{"dp", one.mesh.dp},
                    {"cp", one.mesh.cp},
                    {"tp", one.mesh.tp},
                    {"time_s",
                     {{"total", one.time.total()},
                      {"matrices", one.time.matrices},
                      {"cache", one.time.cache},
                      {"exchange", one.time.exchange},
                      {"tensor_parallel", one.time.tensor_parallel}}},
                    {"memory_bytes",
                     {{"total", one.memory.total()},
                      {"parameters", one.memory.parameters},
                      {"cache", one.memory.cache}}},
                    {"longest_context", one.longest_context}});
  }
  return nlohmann::ordered_json{{"meshes", rows}}.dump();
}

}  // namespace armillary::tune
