// parameter.cpp: shards as ranges of grains, and the checks that a model is told before it has any
// memory.
#include "armillary/model/parameter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::model {
namespace {

/// Values of a model that can be counted in bytes of several buffers.
constexpr std::int64_t kMostValues = std::int64_t{1} << 56U;

/// Adds the values of a parameter. @throws InvalidArgument if there are then kMostValues or more.
void count_values(const Parameter& parameter, std::int64_t& all) {
  std::int64_t values = 1;
  const bool is_empty = std::ranges::find(parameter.shape, 0) != parameter.shape.end();
  bool is_countable = true;
  for (const std::int64_t size : parameter.shape) {
    is_countable = is_countable && !__builtin_mul_overflow(values, size, &values);
  }
  if (is_empty) return;
  if (is_countable && values < kMostValues - all) {
    all += values;
    return;
  }
  fail<InvalidArgument>(
      "model: parameter {} has the shape [{}]; fewer than 2^56 values in all parameters are "
      "required",
      quote(parameter.name), fmt::join(parameter.shape, ", "));
}

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

/// The most ranks that can share a grain.
std::int64_t most_ranks_of_a_grain(const Parameter& parameter) {
  if (parameter.copied) return std::numeric_limits<int>::max();
  return parameter.piece == 0 ? 1 : parameter.grain / parameter.piece;
}

/// Refuses more ranks than grains, unless the grains can be shared by as many each.
void check_sharing(const Parameter& parameter, std::int64_t grains, int ranks) {
  const std::int64_t grain = parameter.grain;
  if (parameter.piece < 0 || (parameter.piece > 0 && grain % parameter.piece != 0)) {
    fail<InvalidArgument>("{} has pieces of {}; a divisor of its grain {} is required; nearest: {}",
                          told(parameter), parameter.piece, grain, grain);
  }
  const std::int64_t most = grains == 0 ? 1 : most_ranks_of_a_grain(parameter);
  if (most == 1) {
    fail<InvalidArgument>(
        "{} over tp {}; at most tp {}, one of its grains of {} a rank, is required; nearest: tp {}",
        told(parameter), ranks, grains, grain, std::max<std::int64_t>(grains, 1));
  }
  if (ranks % grains == 0 && ranks / grains <= most) return;
  fail<InvalidArgument>(
      "{} over tp {}; at most tp {}, one of its grains of {} a rank, or a multiple of that{} is "
      "required; nearest: tp {}",
      told(parameter), ranks, grains, grain,
      parameter.copied ? "" : fmt::format(" up to tp {}", grains * most),
      grains * std::min(ranks / grains, most));
}

void check_units(const Parameter& parameter, std::span<const std::string> units) {
  if (parameter.units.empty()) {
    fail<InvalidArgument>("model: parameter {} is of no unit; at least one of {} is required",
                          quote(parameter.name), list_names(units));
  }
  auto next = units.begin();  // behind the unit before
  for (const std::string& unit : parameter.units) {
    const auto place = std::ranges::find(units, unit);
    if (place != units.end()) {
      if (place < next) {
        fail<InvalidArgument>(
            "model: parameter {} is of units {}; each once, in the order in which they run, is "
            "required",
            quote(parameter.name), list_names(parameter.units));
      }
      next = place + 1;
      continue;
    }
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
    check_sharing(parameter, grains, ranks);
    // The grain of this rank, then its part of it.
    const int sharers = static_cast<int>(ranks / grains);
    range.begin[dim] = index / sharers * grain;
    range.size[dim] = grain;
    if (parameter.copied) return range;
    const EvenPart pieces = even_part(grain / parameter.piece, index % sharers, sharers);
    range.begin[dim] += pieces.begin * parameter.piece;
    range.size[dim] = pieces.size * parameter.piece;
    return range;
  }
  const EvenPart part = even_part(grains, index, ranks);
  range.begin[dim] = part.begin * grain;
  range.size[dim] = part.size * grain;
  return range;
}

GlobalRange expert_range_of(const Parameter& parameter, int index, int ranks) {
  GlobalRange range = whole_of(parameter.shape);
  const std::int64_t experts = parameter.shape.empty() ? 0 : parameter.shape[0];
  if (ranks > experts) {
    fail<InvalidArgument>(
        "model: parameter {} [{}] of {} experts over ep {}; at most one rank an expert is "
        "required; nearest: ep {}",
        quote(parameter.name), fmt::join(parameter.shape, ", "), experts, ranks,
        std::max<std::int64_t>(experts, 1));
  }
  const EvenPart part = even_part(experts, index, ranks);
  range.begin[0] = part.begin;
  range.size[0] = part.size;
  return range;
}

int copies_along_tp(const Parameter& parameter, int ranks) {
  if (parameter.is_expert) return 1;
  if (parameter.placement == TpSplit::Whole) return ranks;
  const std::int64_t grains = parameter.shape[cut_dim(parameter.placement)] / parameter.grain;
  return parameter.copied && ranks > grains ? static_cast<int>(ranks / grains) : 1;
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
  std::map<std::string, bool> owners;  // whether a unit owns experts
  std::int64_t values = 0;
  for (const Parameter& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      fail<InvalidArgument>("model: two parameters have the name {}; a name each is required",
                            quote(parameter.name));
    }
    if (std::ranges::any_of(parameter.shape, [](std::int64_t size) { return size < 0; })) {
      fail<InvalidArgument>("model: parameter {} has the shape [{}]; sizes from 0 are required",
                            quote(parameter.name), fmt::join(parameter.shape, ", "));
    }
    count_values(parameter, values);
    check_units(parameter, units);
    range_of(parameter, 0, tp);
    const auto [owner, is_new] = owners.try_emplace(parameter.units.front(), parameter.is_expert);
    if (owner->second == parameter.is_expert) continue;
    fail<InvalidArgument>(
        "model: unit {} owns experts and other parameters, such as {}; a unit of its own for "
        "experts is required",
        quote(owner->first), quote(parameter.name));
  }
}

}  // namespace armillary::model
