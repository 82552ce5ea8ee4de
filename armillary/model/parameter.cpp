// parameter.cpp: shards as ranges of grains, and the checks that a model is told before it has any
// memory.
#include "armillary/model/parameter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::model {
namespace {

/// Words of errors, by Placement.
constexpr const char* kCuts[] = {"whole", "columns", "rows", "vocabulary"};

std::size_t cut_dim(TpSplit placement) {
  return placement == TpSplit::Rows ? 1 : 0;
}

/// "parameter 'w' [8, 4], cut by rows,".
std::string told(const Parameter& parameter) {
  return fmt::format("model: parameter {} [{}], cut by {},", quote(parameter.name),
                     fmt::join(parameter.shape, ", "),
                     kCuts[static_cast<std::size_t>(parameter.placement)]);
}

void check_units(const Parameter& parameter, std::span<const std::string> units) {
  if (parameter.units.empty()) {
    fail<InvalidArgument>("model: parameter {} is of no unit; at least one of {} is required",
                          quote(parameter.name), list_names(units));
  }
  for (const std::string& unit : parameter.units) {
    if (std::ranges::find(units, unit) != units.end()) continue;
    const std::string nearest = nearest_name(unit, units);
    fail<InvalidArgument>(
        "model: parameter {} is of unit {}, which is not declared; {} is required{}",
        quote(parameter.name), quote(unit), list_names(units),
        nearest.empty() ? "" : "; nearest: " + nearest);
  }
}

}  // namespace

GlobalRange range_of(const Parameter& parameter, int index, int ranks) {
  GlobalRange range = whole_of(parameter.shape);
  if (parameter.placement == TpSplit::Whole) return range;
  const std::size_t dim = cut_dim(parameter.placement);
  if (dim >= parameter.shape.size()) {
    fail<InvalidArgument>("{} has {} dims; more than {} are required", told(parameter),
                          parameter.shape.size(), dim);
  }
  const std::int64_t length = parameter.shape[dim];
  const std::int64_t grain = parameter.grain;
  if (grain < 1 || length % grain != 0) {
    fail<InvalidArgument>("{} has grains of {}; a divisor of {} is required; nearest: 1",
                          told(parameter), grain, length);
  }
  const std::int64_t grains = length / grain;
  if (ranks > grains) {
    fail<InvalidArgument>(
        "{} over tp {}; at most tp {}, one of its grains of {} a rank, is required; nearest: tp {}",
        told(parameter), ranks, grains, grain, std::max<std::int64_t>(grains, 1));
  }
  range.begin[dim] = index * grains / ranks * grain;
  range.size[dim] = (index + 1) * grains / ranks * grain - range.begin[dim];
  return range;
}

void check_parameters(std::span<const Parameter> parameters, std::span<const std::string> units,
                      int tp) {
  std::set<std::string> declared;
  for (const std::string& unit : units) {
    if (declared.insert(unit).second) continue;
    fail<InvalidArgument>("model: two units have the name {}; a name each is required",
                          quote(unit));
  }
  std::set<std::string> names;
  for (const Parameter& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      fail<InvalidArgument>("model: two parameters have the name {}; a name each is required",
                            quote(parameter.name));
    }
    if (std::ranges::any_of(parameter.shape, [](std::int64_t size) { return size < 0; })) {
      fail<InvalidArgument>("model: parameter {} has the shape [{}]; sizes from 0 are required",
                            quote(parameter.name), fmt::join(parameter.shape, ", "));
    }
    check_units(parameter, units);
    range_of(parameter, 0, tp);
  }
}

}  // namespace armillary::model
