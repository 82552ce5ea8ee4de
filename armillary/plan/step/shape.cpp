// Shapes and what follows from them. Units are walked once: each makes its parts, and an entry for
// every unit whose values it uses.
#include "armillary/plan/step/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::plan::step {
namespace {

std::int64_t values_of(const UnitShape& unit) {
  return unit.split + unit.summed + unit.alike + unit.shared + unit.experts;
}

/// Values of one use. Along a tp of 1 all but experts are split.
std::int64_t values_of(const StepShape& shape, const UnitShape& unit, TpUse use) {
  if (use == TpUse::Experts) return unit.experts;
  if (shape.mesh.tp == 1) return use == TpUse::Split ? values_of(unit) - unit.experts : 0;
  return std::array{unit.split, unit.summed, unit.alike,
                    unit.shared}[static_cast<std::size_t>(use)];
}

/// Ranks along tp with the same values.
int holders_of(const StepShape& shape, TpUse use) {
  if (use == TpUse::Split || use == TpUse::Experts) return 1;
  return use == TpUse::Shared ? shape.sharers : shape.mesh.tp;
}

constexpr std::array kUses{TpUse::Split, TpUse::Summed, TpUse::Alike, TpUse::Shared,
                           TpUse::Experts};

/// The sizes of the axes of which ep takes parts, from the inner ones on.
std::array<int, 4> sizes_for_ep(const StepShape& shape) {
  return {shape.sharers, shape.mesh.tp / shape.sharers, shape.mesh.cp,
          shape.mesh.dp / shape.copies};
}

/// Ranks that share experts, and the tokens of their own that these need.
void check_experts(const StepShape& shape) {
  const bool has_experts =
      std::ranges::any_of(shape.units, [](const UnitShape& u) { return u.experts > 0; });
  if (!has_experts && shape.ep != 1) {
    fail<InvalidArgument>("step: ep {} with a model that has no experts; ep 1 is required",
                          shape.ep);
  }
  const int nearest = nearest_ep(shape, shape.ep, std::numeric_limits<int>::max());
  if (shape.ep != nearest) {
    fail<InvalidArgument>(
        "step: ep {} in tp {} x cp {} x dp {}{}; whole axes from the left, and a divisor of the "
        "next one, are required; nearest: ep {}",
        shape.ep, shape.mesh.tp, shape.mesh.cp, shape.mesh.dp / shape.copies,
        shape.copies > 1 ? " of a copy" : "", nearest);
  }
  if (has_experts && shape.mesh.tp > 1 && !shape.sequence_parallel) {
    fail<InvalidArgument>(
        "step: experts with the same tokens on all ranks of tp {}; tokens of their own, or tp 1, "
        "are required",
        shape.mesh.tp);
  }
}

/// Shards that are given hold the values of the unit.
void check_unit_shards(const StepShape& shape, const UnitShape& unit) {
  if (unit.shards.empty()) return;
  const bool experts = unit.experts > 0;
  const int ranks = experts ? shape.ep : shape.mesh.tp;
  const auto replicas =
      static_cast<std::size_t>(shape.mesh.dp / shape.copies * shape.mesh.cp *
                               (experts ? shape.mesh.tp : 1) / (experts ? shape.ep : 1));
  for (const TpUse use : kUses) {
    bool fits = unit.shards.size() == static_cast<std::size_t>(ranks);
    std::int64_t sum = 0;
    for (const UseShards& of_rank : unit.shards) {
      const std::vector<std::int64_t>& counts = of_rank[static_cast<std::size_t>(use)];
      fits = fits && counts.size() == replicas;
      sum = std::accumulate(counts.begin(), counts.end(), sum);
    }
    const std::int64_t required = values_of(shape, unit, use) * holders_of(shape, use);
    if (fits && sum == required) continue;
    fail<InvalidArgument>(
        "step: the shards of unit {} hold {} values of one use; {} in {} shards on each of {} "
        "ranks along {} are required",
        unit.name, sum, required, replicas, ranks, experts ? "ep" : "tp");
  }
}

/// Copies divide dp, sharers tp.
void check_groups(const StepShape& shape) {
  const auto [dp, tp] = std::pair(shape.mesh.dp, shape.mesh.tp);
  if (shape.copies < 1 || dp % shape.copies != 0) {
    fail<InvalidArgument>("step: {} copies along dp {}; a divisor of {} is required; nearest: {}",
                          shape.copies, dp, dp, nearest_divisor(dp, std::max(shape.copies, 1)));
  }
  if (shape.sharers < 1 || tp % shape.sharers != 0 || (shape.sharers == tp && tp > 1)) {
    fail<InvalidArgument>(
        "step: {} sharers along tp {}; a divisor of {} below it is required; nearest: 1",
        shape.sharers, tp, tp);
  }
}

void check_unit(const StepShape& shape, int index) {
  const UnitShape& unit = shape.units[index];
  for (const std::int64_t values :
       {unit.split, unit.summed, unit.alike, unit.shared, unit.experts}) {
    if (values >= 0 && values < std::int64_t{1} << 56) continue;
    fail<InvalidArgument>("step: unit {} has {} values; 0 to 2^56 are required; nearest: {}",
                          unit.name, values, values < 0 ? 0 : (std::int64_t{1} << 56) - 1);
  }
  if (unit.experts > 0 && values_of(unit) != unit.experts) {
    fail<InvalidArgument>(
        "step: unit {} has {} values of experts and {} others; a unit of its own for experts is "
        "required",
        unit.name, unit.experts, values_of(unit) - unit.experts);
  }
  int before = -1;
  for (const int other : unit.uses) {
    const bool there = other > before && other < static_cast<int>(shape.units.size());
    if (!there || other == index || values_of(shape.units[other]) == 0) {
      fail<InvalidArgument>(
          "step: unit {} uses values of unit {}; other units that have values, ascending below {}, "
          "are required",
          unit.name, other, shape.units.size());
    }
    before = other;
  }
  if (unit.shared > 0 && shape.sharers == 1 && shape.mesh.tp > 1) {
    fail<InvalidArgument>(
        "step: unit {} has values that are shared, but sharers are 1; at least 2 "
        "are required",
        unit.name);
  }
  check_unit_shards(shape, unit);
}

}  // namespace

int nearest_ep(const StepShape& shape, int wish, int most) {
  const auto distance = [&](std::int64_t ep) { return ep < wish ? wish - ep : ep - wish; };
  std::int64_t nearest = 1;
  std::int64_t inner = 1;
  for (const int size : sizes_for_ep(shape)) {
    // 1 is nearer than any other above twice the wish.
    for (std::int64_t part = 1; part <= size && inner * part <= 2 * std::int64_t{wish}; ++part) {
      const std::int64_t ep = inner * part;
      if (size % part == 0 && ep <= most && distance(ep) < distance(nearest)) nearest = ep;
    }
    inner *= size;
  }
  return static_cast<int>(nearest);
}

void check_shape(const StepShape& shape) {
  const std::int64_t ranks =
      checked_product("step", {shape.mesh.pp, shape.mesh.dp, shape.mesh.cp, shape.mesh.tp});
  if (ranks > std::numeric_limits<int>::max()) {
    fail<InvalidArgument>("step: a mesh of {} ranks; fewer than 2^31 are required", ranks);
  }
  check_mesh(shape.mesh, static_cast<int>(ranks));
  if (shape.mesh.pp != 1) {
    fail<InvalidArgument>("step: pp {}; 1 is required, a pipeline is no part of a step yet",
                          shape.mesh.pp);
  }
  if (shape.zero < 0 || shape.zero > 3) {
    fail<InvalidArgument>("step: ZeRO stage {}; 0 to 3 is required; nearest: {}", shape.zero,
                          std::clamp(shape.zero, 0, 3));
  }
  if (shape.microbatches < 1) {
    fail<InvalidArgument>("step: {} microbatches; at least 1 is required", shape.microbatches);
  }
  if (shape.units.empty()) fail<InvalidArgument>("step: 0 units; at least 1 is required");
  check_groups(shape);
  check_experts(shape);
  for (int unit = 0; unit < static_cast<int>(shape.units.size()); ++unit) check_unit(shape, unit);
  if (std::ranges::all_of(shape.units, [](const UnitShape& u) { return values_of(u) == 0; })) {
    fail<InvalidArgument>("step: no unit has values; at least 1 value is required");
  }
  const bool splits =
      std::ranges::any_of(shape.units, [](const UnitShape& u) { return u.split > 0; });
  if (shape.mesh.tp > 1 && !splits) {
    fail<InvalidArgument>("step: tp {}, but no unit has values that are split; tp 1 is required",
                          shape.mesh.tp);
  }
}

std::string axis_names(AxisSet axes) {
  constexpr std::array<std::string_view, kStepAxes> kNames{"pp",     "dp",      "cp",  "tp",
                                                           "copies", "sharers", "rest"};
  std::string names;
  for (std::size_t axis = 0; axis < kStepAxes; ++axis) {
    if ((axes >> axis & 1) == 0) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kNames[axis]);
  }
  return names;
}

StepTables::StepTables(const StepShape& shape) : shape_(shape) {
  check_shape(shape);
  replicas_ = shape.mesh.dp / shape.copies * shape.mesh.cp;
  // Parts, and which unit uses which.
  users_.resize(shape.units.size());
  for (int unit = 0; unit < units(); ++unit) {
    const UnitShape& of_unit = shape.units[unit];
    BlockIds& own = parts_of_.emplace_back();
    for (const TpUse use : kUses) {
      const std::int64_t values = values_of(shape, of_unit, use);
      if (values == 0) continue;
      own.push_back(static_cast<int>(parts_.size()));
      parts_.push_back({unit, use, values});
    }
    std::vector<int>& used = used_.emplace_back(of_unit.uses);
    if (!own.empty()) used.insert(std::ranges::lower_bound(used, unit), unit);
    for (const int other : used) users_[other].push_back(unit);
  }
  // Axes: those of the mesh from the neighbours outwards, two of them cut in two.
  int stride = 1;
  for (const MeshAxis axis : shape.mesh.order) {
    const int size = shape.mesh.size(axis);
    const auto place = static_cast<std::size_t>(axis);
    axes_[place] = {size, stride};
    if (axis == MeshAxis::Dp) {
      axes_[place].size = size / shape.copies;
      axes_[kMeshAxes.size()] = {shape.copies, stride * axes_[place].size};
    } else if (axis == MeshAxis::Tp) {
      axes_[kMeshAxes.size() + 1] = {shape.sharers, stride};
      axes_[place] = {size / shape.sharers, stride * shape.sharers};
    }
    stride *= size;
  }
  add_ep();
  // Groups.
  const AxisSet all = with_ranks((1U << kStepAxes) - 1);
  for (AxisSet axes = 1; axes <= all; ++axes) {
    if ((axes & ~all) == 0) axis_sets_.push_back(axes);
  }
  replica_ = places_along(replica_axes());
  expert_replica_ = places_along(expert_replica_axes());
  ep_index_ = places_along(ep_axes_);
  expert_replicas_ = static_cast<int>(group(expert_replica_axes(), 0).size());
}

void StepTables::add_ep() {
  constexpr std::array kInner{kSharersAxis, bit(MeshAxis::Tp), bit(MeshAxis::Cp),
                              bit(MeshAxis::Dp)};
  const std::array<int, 4> sizes = sizes_for_ep(shape_);
  int left = shape_.ep;
  for (std::size_t i = 0; i < kInner.size() && left > 1; ++i) {
    const auto axis = static_cast<std::size_t>(std::countr_zero(kInner[i]));
    if (left < sizes[i]) {
      cut_ = kInner[i];
      axes_[std::countr_zero(kRestAxis)] = {sizes[i] / left, axes_[axis].stride * left};
      axes_[axis].size = left;
    }
    left /= axes_[axis].size;
    if (axes_[axis].size > 1) ep_axes_ |= kInner[i];
  }
}

std::vector<int> StepTables::places_along(AxisSet axes) const {
  std::vector<int> places(static_cast<std::size_t>(shape_.mesh.ranks()), -1);
  for (Rank rank = 0; rank < shape_.mesh.ranks(); ++rank) {
    if (places[rank] >= 0) continue;
    int place = 0;
    for (const Rank other : group(axes, rank)) places[other] = place++;
  }
  return places;
}

bool StepTables::has_experts() const {
  return std::ranges::any_of(shape_.units, [](const UnitShape& u) { return u.experts > 0; });
}

std::int64_t StepTables::values(int part, Rank rank, const Heads& shards) const {
  const StepPart& of = parts_[part];
  const bool experts = of.use == TpUse::Experts;
  const int index = experts ? ep_index(rank) : tp_index(rank);
  const std::vector<UseShards>& of_unit = shape_.units[of.unit].shards;
  if (!of_unit.empty()) {
    const std::vector<std::int64_t>& counts = of_unit[index][static_cast<std::size_t>(of.use)];
    return std::accumulate(counts.begin() + shards.begin, counts.begin() + shards.end,
                           std::int64_t{0});
  }
  // Groups of ranks with the same values share them.
  const int groups = experts ? shape_.ep : shape_.mesh.tp / holders(of.use);
  const int group = index / holders(of.use);
  const std::int64_t whole =
      piece_begin(of.values, groups, group + 1) - piece_begin(of.values, groups, group);
  const int all = this->shards(of.unit);
  return piece_begin(whole, all, shards.end) - piece_begin(whole, all, shards.begin);
}

AxisSet StepTables::same_axes(TpUse use) const {
  if (use == TpUse::Split || use == TpUse::Experts) return 0;
  return use == TpUse::Shared ? with_ranks(kSharersAxis) : tp_axis();
}

// Replicas of stage 0 have the same dense gradients, but other experts along ep.
AxisSet StepTables::norm_axes() const {
  return tp_axis() | (zero() > 0 ? replica_axes() : ep_axes_);
}

AxisSet StepTables::same_in_norm(int part) const {
  const StepPart& of = parts_[part];
  return (same_axes(of.use) | (zero(of.unit) == 0 ? shard_axes(of.unit) : 0)) & norm_axes();
}

bool StepTables::counts_in_norm(int part, Rank rank) const {
  return group(same_in_norm(part), rank).front() == rank;
}

int StepTables::holders(TpUse use) const {
  return holders_of(shape_, use);
}

AxisSet StepTables::with_ranks(AxisSet axes) const {
  if ((axes & cut_) != 0) axes |= kRestAxis;
  AxisSet result = 0;
  for (std::size_t axis = 0; axis < kStepAxes; ++axis) {
    if (axes_[axis].size > 1) result |= axes & 1U << axis;
  }
  return result;
}

std::vector<Rank> StepTables::group(AxisSet axes, Rank rank) const {
  std::vector<Rank> ranks{rank};
  for (std::size_t axis = 0; axis < kStepAxes; ++axis) {
    if ((axes >> axis & 1) == 0) continue;
    // From each rank so far, all places along this axis.
    std::vector<Rank> more;
    for (const Rank from : ranks) {
      for (int place = 0; place < size(axis); ++place) {
        more.push_back(from + (place - index(axis, from)) * axes_[axis].stride);
      }
    }
    ranks = std::move(more);
  }
  std::ranges::sort(ranks);
  return ranks;
}

}  // namespace armillary::plan::step
