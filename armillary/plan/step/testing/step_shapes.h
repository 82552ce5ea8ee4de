// step_shapes.h: small steps for tests: every stage of ZeRO, meshes of 1 to 16 ranks, embeddings
// that are tied or not, copies, sharers and experts.
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
  std::vector<std::vector<UseShards>> shards(shape.units.size());
  const auto replicas_of = [&](std::size_t unit) {
    return static_cast<std::size_t>(tables.shards(static_cast<int>(unit)));
  };
  for (std::size_t unit = 0; unit < shards.size(); ++unit) {
    shards[unit].resize(shape.units[unit].experts > 0 ? shape.ep : shape.mesh.tp);
    for (UseShards& of_rank : shards[unit]) {
      for (std::vector<std::int64_t>& counts : of_rank) counts.resize(replicas_of(unit));
    }
  }
  for (std::size_t part = 0; part < tables.parts().size(); ++part) {
    const StepPart& of = tables.parts()[part];
    for (Rank rank = 0; rank < shape.mesh.ranks(); ++rank) {
      const int index = of.use == TpUse::Experts ? tables.ep_index(rank) : tables.tp_index(rank);
      std::vector<std::int64_t>& counts = shards[of.unit][index][static_cast<std::size_t>(of.use)];
      const std::int64_t all =
          tables.values(static_cast<int>(part), rank, tables.all_shards(of.unit));
      counts.assign(replicas_of(static_cast<std::size_t>(of.unit)), 0);
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

/// A unit of experts behind the layer, which uses values of the layer too, as a router.
inline void add_experts(StepShape& shape, int ep) {
  shape.units.insert(shape.units.begin() + 2, {.name = "experts", .uses = {1}, .experts = 29});
  shape.ep = ep;
}

/// Steps with experts: ep of every kind of axis, whole or cut.
inline std::vector<StepShape> expert_steps() {
  std::vector<StepShape> steps;
  for (const int zero : {0, 1, 2, 3}) {
    for (const int microbatches : {1, 2}) {
      const auto add = [&](const MeshShape& mesh, int ep, int copies = 1, int sharers = 1) {
        StepShape shape = small_step(mesh, zero, microbatches, zero % 2 == 1);
        shape.copies = copies;
        shape.sharers = sharers;
        if (sharers > 1) shape.units[1].shared = 7;
        add_experts(shape, ep);
        if (microbatches == 2) cut_unevenly(shape);
        steps.push_back(std::move(shape));
      };
      add({}, 1);
      add({.tp = 2}, 1);
      add({.tp = 2}, 2);
      add({.cp = 2}, 1);
      add({.cp = 2}, 2);
      add({.dp = 2}, 2);
      add({.tp = 4}, 2);
      add({.cp = 3, .tp = 2}, 2);
      add({.cp = 2, .tp = 2}, 4);
      add({.dp = 2, .cp = 2, .tp = 2}, 1);
      add({.dp = 2, .cp = 2, .tp = 2}, 4);
      add({.cp = 4, .tp = 2}, 4);
      add({.dp = 4}, 2);
      add({.dp = 4}, 2, 2);
      add({.dp = 2, .tp = 2}, 2, 2);
      add({.tp = 4}, 2, 1, 2);
      add({.tp = 8}, 2, 1, 4);
    }
  }
  return steps;
}

/// `dp 2 cp 1 tp 2, stage 3, 1 microbatches, tied, 1 copies, 1 sharers, ep 1`.
inline std::string name_of(const StepShape& shape) {
  return fmt::format("dp {} cp {} tp {}, stage {}, {} microbatches{}, {} copies, {} sharers, ep {}",
                     shape.mesh.dp, shape.mesh.cp, shape.mesh.tp, shape.zero, shape.microbatches,
                     shape.units.back().uses.empty() ? "" : ", tied", shape.copies, shape.sharers,
                     shape.ep);
}

}  // namespace armillary::plan::step
