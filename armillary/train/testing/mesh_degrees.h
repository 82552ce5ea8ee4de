// mesh_degrees.h: recipes on meshes and stages of ZeRO, for tests that run many of them.
#pragma once

#include <fmt/format.h>

#include <string>

#include "armillary/train/recipe.h"

namespace armillary::train {

/// Degrees of a run, and its stage.
struct MeshDegrees {
  int copies = 1;
  int shards = 1;
  int cp = 1;
  int zero = 0;
  int tp = 1;

  int ranks() const { return copies * shards * cp * tp; }
  bool operator==(const MeshDegrees&) const = default;
};

inline std::string to_string(const MeshDegrees& degrees) {
  return fmt::format("dp {} x {}, cp {}, tp {}, ZeRO-{}", degrees.copies, degrees.shards,
                     degrees.cp, degrees.tp, degrees.zero);
}

inline Recipe on(Recipe recipe, const MeshDegrees& degrees) {
  recipe.parallelism.data_parallel_replicate_degree = degrees.copies;
  recipe.parallelism.data_parallel_shard_degree = degrees.shards;
  recipe.parallelism.context_parallel_degree = degrees.cp;
  recipe.parallelism.zero = degrees.zero;
  recipe.parallelism.tensor_parallel_degree = degrees.tp;
  return recipe;
}

}  // namespace armillary::train
