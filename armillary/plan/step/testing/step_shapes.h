// step_shapes.h: small steps for tests: every stage of ZeRO, meshes of 1 to 16 ranks, embeddings
// that are tied or not, copies and sharers.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
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

/// Shards of a unit that no rule makes: the first replica has most, some have nothing.
inline void cut_unevenly(StepShape& shape) {
  const StepTables tables(shape);
  const auto replicas = static_cast<std::size_t>(tables.replicas());
  std::vector<std::vector<UseShards>> shards(shape.units.size());
  for (std::vector<UseShards>& of_unit : shards) of_unit.resize(shape.mesh.tp);
  for (std::size_t unit = 0; unit < shards.size(); ++unit) {
    for (int index = 0; index < shape.mesh.tp; ++index) {
      for (std::vector<std::int64_t>& counts : shards[unit][index]) counts.resize(replicas);
    }
  }
  for (std::size_t part = 0; part < tables.parts().size(); ++part) {
    const StepPart& of = tables.parts()[part];
    for (Rank rank = 0; rank < shape.mesh.ranks(); ++rank) {
      std::vector<std::int64_t>& counts =
          shards[of.unit][tables.tp_index(rank)][static_cast<std::size_t>(of.use)];
      const std::int64_t all = tables.values(static_cast<int>(part), rank, tables.all_shards());
      counts.assign(replicas, 0);
      counts.back() = all / 3;
      counts.front() += all - all / 3;
    }
  }
  for (std::size_t unit = 0; unit < shards.size(); ++unit) {
    shape.units[unit].shards = std::move(shards[unit]);
  }
}

/// Steps whose axes are cut in two: copies of shards, sharers of values along tp, both, with shards
/// of uneven sizes and a unit without values.
inline std::vector<StepShape> grouped_steps() {
  std::vector<StepShape> steps;
  for (const int zero : {0, 1, 2, 3}) {
    for (const int microbatches : {1, 2}) {
      const auto add = [&](const MeshShape& mesh, int copies, int sharers) {
        StepShape shape = small_step(mesh, zero, microbatches, zero % 2 == 1);
        shape.copies = copies;
        shape.sharers = sharers;
        if (sharers > 1) shape.units[1].shared = 7;
        if (copies > 1) shape.units.insert(shape.units.begin() + 2, {.name = "plain", .uses = {}});
        if (microbatches == 2) cut_unevenly(shape);
        steps.push_back(std::move(shape));
      };
      add({.dp = 2}, 2, 1);
      add({.dp = 4}, 2, 1);
      add({.dp = 2, .cp = 2}, 2, 1);
      add({.tp = 4}, 1, 2);
      add({.cp = 3, .tp = 4}, 1, 2);
      add({.dp = 4, .tp = 4}, 2, 2);
    }
  }
  return steps;
}

/// `dp 2 cp 1 tp 2, stage 3, 1 microbatches, tied, 1 copies, 1 sharers`.
inline std::string name_of(const StepShape& shape) {
  return fmt::format("dp {} cp {} tp {}, stage {}, {} microbatches{}, {} copies, {} sharers",
                     shape.mesh.dp, shape.mesh.cp, shape.mesh.tp, shape.zero, shape.microbatches,
                     shape.units.back().uses.empty() ? "" : ", tied", shape.copies, shape.sharers);
}

}  // namespace armillary::plan::step
