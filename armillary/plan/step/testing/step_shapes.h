// step_shapes.h: small steps for tests: every stage of ZeRO, meshes of 1 to 8 ranks, embeddings
// that are tied or not.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "armillary/plan/step/shape.h"

namespace armillary::plan::step {

/// Three units of uneven sizes. A tied head has values of its own that all ranks of tp have.
inline StepShape small_step(const MeshShape& mesh, int zero, int microbatches, bool tied) {
  UnitShape embedding{.name = "embedding", .split = 23};
  UnitShape layer{.name = "layer", .split = 31, .summed = 5, .alike = 2};
  UnitShape head{.name = "head", .split = 17, .summed = 3};
  if (tied) {
    head.split = 0;
    head.uses = {0};
  }
  return {
      .units = {embedding, layer, head}, .mesh = mesh, .microbatches = microbatches, .zero = zero};
}

inline std::vector<MeshShape> small_meshes() {
  return {{},
          {.dp = 2},
          {.cp = 2},
          {.tp = 2},
          {.cp = 3},
          {.dp = 2, .cp = 2},
          {.cp = 2, .tp = 2},
          {.dp = 3, .tp = 2},
          {.dp = 2, .tp = 3},
          {.dp = 2, .cp = 2, .tp = 2},
          {.dp = 4, .cp = 2}};
}

/// The small steps on these meshes, with 1 and 3 microbatches.
inline std::vector<StepShape> small_steps(const std::vector<MeshShape>& meshes) {
  std::vector<StepShape> steps;
  for (const MeshShape& mesh : meshes) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const int microbatches : {1, 3}) {
        for (const bool tied : {false, true}) {
          steps.push_back(small_step(mesh, zero, microbatches, tied));
        }
      }
    }
  }
  return steps;
}

/// `dp 2 cp 1 tp 2, stage 3, 1 microbatches, tied`.
inline std::string name_of(const StepShape& shape) {
  return fmt::format("dp {} cp {} tp {}, stage {}, {} microbatches{}", shape.mesh.dp, shape.mesh.cp,
                     shape.mesh.tp, shape.zero, shape.microbatches,
                     shape.units.back().uses.empty() ? "" : ", tied");
}

}  // namespace armillary::plan::step
