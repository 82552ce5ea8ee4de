#include "armillary/train/step_shape.h"

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/mesh.h"

namespace armillary::train {
namespace {

/// The place of a unit among the names.
int number_of(const std::vector<std::string>& names, const std::string& unit) {
  return static_cast<int>(std::ranges::find(names, unit) - names.begin());
}

}  // namespace

plan::step::StepShape step_shape_of(const model::Model& model,
                                    const ParallelismOptions& parallelism,
                                    const TrainingOptions& training) {
  const MeshShape mesh = mesh_of(parallelism);
  const std::vector<std::string> names = model.units();
  plan::step::StepShape shape{.units = {},
                              .mesh = mesh,
                              .microbatches = static_cast<int>(microbatches_of(mesh, training)),
                              .zero = static_cast<int>(parallelism.zero)};
  if (parallelism.data_parallel_replicate_degree > 1 && shape.zero > 0) {
    fail<InvalidArgument>(
        "step: parallelism.data_parallel_replicate_degree = {} with zero = {}; the programs of a "
        "step have no copies of a share yet; nearest: data_parallel_replicate_degree = 1",
        parallelism.data_parallel_replicate_degree, shape.zero);
  }
  for (const std::string& name : names) shape.units.push_back({.name = name, .uses = {}});
  for (const model::Parameter& parameter : model.parameters()) {
    const int owner = number_of(names, parameter.units.front());
    plan::step::UnitShape& unit = shape.units[static_cast<std::size_t>(owner)];
    const int copies = model::copies_along_tp(parameter, mesh.tp);
    const std::int64_t values = model::count_of_values(parameter.shape);
    if (copies == 1) {
      unit.split += values;
    } else if (copies == mesh.tp) {
      unit.summed += values;
    } else {
      fail<InvalidArgument>(
          "step: parameter {} is shared by {} of {} ranks along tp; the programs of a step have "
          "one "
          "rank or all; nearest: tensor_parallel_degree = {}",
          parameter.name, copies, mesh.tp, mesh.tp / copies);
    }
    for (std::size_t i = 1; i < parameter.units.size(); ++i) {
      std::vector<int>& uses =
          shape.units[static_cast<std::size_t>(number_of(names, parameter.units[i]))].uses;
      if (std::ranges::count(uses, owner) == 0) uses.push_back(owner);
      std::ranges::sort(uses);
    }
  }
  return shape;
}

}  // namespace armillary::train
