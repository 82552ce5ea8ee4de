// Parameters are counted by the unit that owns them and by their use along tp; shards are cut as
// stores cut them, unit by unit, of all uses together.
#include "armillary/train/step_shape.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/mesh.h"
#include "armillary/train/replica_groups.h"
#include "armillary/train/store.h"

namespace armillary::train {
namespace {

using plan::step::TpUse;
using plan::step::UnitShape;

/// The place of a unit among the names.
int number_of(const std::vector<std::string>& names, const std::string& unit) {
  return static_cast<int>(std::ranges::find(names, unit) - names.begin());
}

TpUse use_of(const model::Parameter& parameter, int tp) {
  if (parameter.is_expert) return TpUse::Experts;
  const int copies = model::copies_along_tp(parameter, tp);
  if (copies == 1) return TpUse::Split;
  return copies == tp ? TpUse::Summed : TpUse::Shared;
}

/// A rank along tp, or of experts along ep.
struct RankAlong {
  int index = 0;
  int ranks = 1;
  bool is_ep = false;
};

/// The values of each shard of a unit on one rank.
plan::step::UseShards shards_of(const std::vector<model::Parameter>& owned, const RankAlong& along,
                                int tp, int ranks) {
  std::vector<model::GlobalRange> ranges;
  ranges.reserve(owned.size());
  for (const model::Parameter& parameter : owned) {
    ranges.push_back(along.is_ep ? model::expert_range_of(parameter, along.index, along.ranks)
                                 : model::range_of(parameter, along.index, along.ranks));
  }
  plan::step::UseShards shards;
  for (std::vector<std::int64_t>& of_use : shards) of_use.resize(static_cast<std::size_t>(ranks));
  const std::vector<std::int64_t> counts = shares_of(ranges, ranks);
  std::size_t shard = 0;
  std::int64_t left = counts.front();  // of this shard
  for (std::size_t i = 0; i < owned.size(); ++i) {
    auto& of_use = shards[static_cast<std::size_t>(use_of(owned[i], tp))];
    std::int64_t values = model::count_of_values(ranges[i].size);
    while (values > 0) {
      while (left == 0) left = counts[++shard];
      const std::int64_t taken = std::min(values, left);
      of_use[shard] += taken;
      left -= taken;
      values -= taken;
    }
  }
  return shards;
}

/// Adds the values of a parameter to those of the unit that owns it.
void add_values(plan::step::StepShape& shape, UnitShape& unit, const model::Parameter& parameter) {
  const std::int64_t values = model::count_of_values(parameter.shape);
  const int tp = shape.mesh.tp;
  const TpUse use = use_of(parameter, tp);
  if (use == TpUse::Split) {
    unit.split += values;
  } else if (use == TpUse::Summed) {
    unit.summed += values;
  } else if (use == TpUse::Experts) {
    unit.experts += values;
  } else {
    const int copies = model::copies_along_tp(parameter, tp);
    if (shape.sharers > 1 && shape.sharers != copies) {
      fail<InvalidArgument>(
          "step: parameter {} is shared by {} of {} ranks along tp, another by {}; one number is "
          "required; nearest: tensor_parallel_degree = {}",
          parameter.name, copies, tp, shape.sharers, tp / std::max(copies, shape.sharers));
    }
    shape.sharers = copies;
    unit.shared += values;
  }
}

/// Each rank along ep has an expert.
void check_experts(const plan::step::StepShape& shape,
                   const std::vector<model::Parameter>& parameters) {
  for (const model::Parameter& parameter : parameters) {
    const std::int64_t experts = parameter.shape.empty() ? 0 : parameter.shape[0];
    if (!parameter.is_expert || shape.ep <= experts) continue;
    fail<InvalidArgument>(
        "step: ep {} of {} experts of {}; at most one rank an expert is required; nearest: ep {}",
        shape.ep, experts, parameter.name,
        plan::step::nearest_ep(shape, shape.ep, std::max(static_cast<int>(experts), 1)));
  }
}

}  // namespace

plan::step::StepShape step_shape_of(const model::Model& model,
                                    const ParallelismOptions& parallelism,
                                    const TrainingOptions& training,
                                    const OptimizerOptions& optimizer) {
  return step_shape_of(model, mesh_of(parallelism), parallelism, training, optimizer);
}

plan::step::StepShape step_shape_of(const model::Model& model, const MeshShape& mesh,
                                    const ParallelismOptions& parallelism,
                                    const TrainingOptions& training,
                                    const OptimizerOptions& optimizer) {
  check_copies(mesh.dp, parallelism);
  const std::vector<std::string> names = model.units();
  plan::step::StepShape shape{.units = {},
                              .mesh = mesh,
                              .microbatches = static_cast<int>(microbatches_of(mesh, training)),
                              .zero = static_cast<int>(parallelism.zero),
                              .reshard_after_forward = parallelism.reshard_after_forward};
  shape.state_on_host = optimizer.state_on_host();
  const Dtypes dtypes = dtypes_of(training);
  shape.bytes = {.weight = static_cast<int>(c10::elementSize(dtypes.param)),
                 .master = static_cast<int>(c10::elementSize(dtypes.master))};
  shape.ep = static_cast<int>(parallelism.expert_parallel_degree);
  // One sum over all replicas is the same if nothing is divided.
  if (shape.zero > 0) shape.copies = static_cast<int>(parallelism.data_parallel_replicate_degree);
  for (const std::string& name : names) shape.units.push_back({.name = name, .uses = {}});
  std::vector<std::vector<model::Parameter>> owned(names.size());
  for (const model::Parameter& parameter : model.parameters()) {
    if (model::count_of_values(parameter.shape) == 0) continue;
    const int owner = number_of(names, parameter.units.front());
    owned[static_cast<std::size_t>(owner)].push_back(parameter);
    add_values(shape, shape.units[static_cast<std::size_t>(owner)], parameter);
    for (std::size_t i = 1; i < parameter.units.size(); ++i) {
      std::vector<int>& uses =
          shape.units[static_cast<std::size_t>(number_of(names, parameter.units[i]))].uses;
      if (std::ranges::count(uses, owner) == 0) uses.push_back(owner);
      std::ranges::sort(uses);
    }
  }
  // Before anything is divided over ep.
  if (shape.ep > 1) {
    plan::step::check_shape(shape);
    for (const std::vector<model::Parameter>& of_unit : owned) check_experts(shape, of_unit);
  }
  const int ranks = mesh.dp / shape.copies * mesh.cp;
  for (std::size_t unit = 0; unit < owned.size(); ++unit) {
    const bool is_ep = shape.units[unit].experts > 0;
    const int along = is_ep ? shape.ep : mesh.tp;
    for (int index = 0; index < along; ++index) {
      shape.units[unit].shards.push_back(shards_of(owned[unit], {index, along, is_ep}, mesh.tp,
                                                   is_ep ? ranks * mesh.tp / shape.ep : ranks));
    }
  }
  return shape;
}

}  // namespace armillary::train
