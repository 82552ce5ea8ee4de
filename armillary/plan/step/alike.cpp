// alike.cpp: the small mesh that is like a large one, and the comparison of a rank's program with
// that of the rank it is like, op by op and tile by tile.
#include "armillary/plan/step/alike.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/step/check_step.h"
#include "armillary/plan/step/repeat.h"
#include "armillary/plan/step/words.h"

namespace armillary::plan::step {
namespace {

/// Views and tiles of two programs, compared but for the shards that they name.
class AlikePrograms {
 public:
  AlikePrograms(const TabledProgram& own, const TabledProgram& model) : own_(own), model_(model) {}

  /// Slots, tiles, the caller's tiles and groups.
  bool same_storage() const {
    const RankProgram& own = own_.program;
    const RankProgram& model = model_.program;
    std::vector<std::vector<Rank>> groups;
    for (const AxisSet axes : own_.tables.axis_sets()) {
      groups.push_back(own_.tables.group(axes, own.rank));
    }
    return own.words == model.words && own.groups == groups && own.inputs == model.inputs &&
           own.outputs == model.outputs && own.saved == model.saved &&
           std::ranges::equal(own.slots, model.slots, {}, &Slot::external, &Slot::external) &&
           std::ranges::equal(own.tiles, model.tiles, [&](const Tile& a, const Tile& b) {
             return a.tensor == b.tensor && a.partial == b.partial && a.narrow == b.narrow &&
                    a.slot == b.slot && a.blocks == b.blocks && same_heads(b, a.heads, b.heads);
           });
  }

  /// Requires the same storage.
  bool same_op(const Op& a, const Op& b) const {
    const bool same = a.kind == b.kind && a.lane == b.lane && a.step == b.step &&
                      a.peer == b.peer && a.collective == b.collective && a.init == b.init &&
                      a.zero_copy == b.zero_copy;
    return same && std::equal(a.views.begin(), a.views.end(), b.views.begin(), b.views.end(),
                              [&](const View& left, const View& right) {
                                return left.tile == right.tile && left.blocks == right.blocks &&
                                       same_heads(model_.program.tiles[right.tile], left.heads,
                                                  right.heads);
                              });
  }

 private:
  /// `tile` is of the model, whose heads are all shards or its own.
  bool same_heads(const Tile& tile, const Heads& own, const Heads& model) const {
    if (step_words()[tile.tensor].side != kUnitSide) return own == model;
    const int unit = model_.tables.parts()[tile.blocks.front()].unit;
    const bool all = model == model_.tables.all_shards(unit);
    return own ==
           (all ? own_.tables.all_shards(unit) : own_.tables.own_shard(unit, own_.program.rank));
  }

  const TabledProgram& own_;
  const TabledProgram& model_;
};

/// Whether rank 0 does the same in all microbatches that a proof leaves out. Not if slots of its
/// transient tiles take turns from one microbatch to the next.
bool repeats(const StepShape& shape) {
  StepShape longer = shape;
  longer.microbatches = 2 * kProvedMicrobatches;
  const StepTables tables(longer);
  return !without_repeats(tables, rank_program(tables, step_measures(tables), 0)).fault;
}

/// Requires as many microbatches.
std::optional<int> difference(const TabledProgram& own, const TabledProgram& model) {
  const AlikePrograms programs(own, model);
  if (!programs.same_storage()) return -1;
  const std::vector<Op>& ops = own.program.ops;
  const std::vector<Op>& others = model.program.ops;
  const auto [first, other] = std::ranges::mismatch(
      ops, others, [&](const Op& a, const Op& b) { return programs.same_op(a, b); });
  if (first == ops.end() && other == others.end()) return std::nullopt;
  return static_cast<int>(first - ops.begin());
}

}  // namespace

StepShape smallest_alike(const StepShape& shape) {
  const StepTables tables(shape);
  // Two for each axis; one of which ep takes a part is two of them.
  const auto twos = [](AxisSet axes) { return 1 << std::popcount(axes); };
  StepShape small = shape;
  small.copies = twos(tables.with_ranks(kCopiesAxis));
  small.sharers = twos(tables.with_ranks(kSharersAxis));
  small.mesh.dp = twos(tables.with_ranks(bit(MeshAxis::Dp))) * small.copies;
  small.mesh.cp = twos(tables.with_ranks(bit(MeshAxis::Cp)));
  small.mesh.tp = twos(tables.with_ranks(bit(MeshAxis::Tp))) * small.sharers;
  small.ep = twos(tables.ep_axes());
  if (small.mesh != shape.mesh || small.copies != shape.copies || small.sharers != shape.sharers ||
      small.ep != shape.ep) {
    for (UnitShape& unit : small.units) unit.shards.clear();
  }
  if (shape.microbatches > kProvedMicrobatches && repeats(small)) {
    small.microbatches = kProvedMicrobatches;
  }
  return small;
}

Rank rank_alike(const StepTables& tables, Rank rank, const StepTables& small) {
  for (Rank other = 0; other < small.shape().mesh.ranks(); ++other) {
    bool same = true;
    for (std::size_t axis = 0; axis < kStepAxes; ++axis) {
      same = same &&
             small.index(axis, other) == std::min(tables.index(axis, rank), small.size(axis) - 1);
    }
    if (same) return other;
  }
  ARMILLARY_CHECK(false);
}

std::optional<int> first_difference(const TabledProgram& own, const TabledProgram& model) {
  const int microbatches = model.tables.shape().microbatches;
  if (own.tables.shape().microbatches == microbatches) return difference(own, model);
  ARMILLARY_CHECK(microbatches == kProvedMicrobatches);
  const FoldedProgram folded = without_repeats(own.tables, own.program);
  if (folded.fault) return folded.fault;
  const std::optional<int> op = difference({own.tables, folded.program}, model);
  if (!op || *op < 0) return op;
  const bool at_end = *op == std::ssize(folded.ops);
  return at_end ? static_cast<int>(own.program.ops.size()) : folded.ops[*op];
}

std::vector<Diagnostic> check_small(const StepProgram& small, int limit) {
  std::vector<Diagnostic> faults = check_step(small.world(), small.tables.shape(), limit);
  if (!faults.empty()) return faults;
  struct Joint {
    Kind kind;
    Lane lane = 0;
    int microbatch = 0;
    bool operator==(const Joint&) const = default;
  };
  std::map<std::vector<Rank>, std::pair<Rank, std::vector<Joint>>> models;  // By group.
  for (const RankProgram& program : small.ranks) {
    std::map<std::vector<Rank>, std::vector<Joint>> mine;
    for (const Op& op : program.ops) {
      if (!step_words()[op.kind].joint) continue;
      mine[program.groups[op.peer]].push_back(
          {op.kind, op.lane, op.step / (2 * small.tables.units())});
    }
    for (const auto& [group, ops] : mine) {
      const auto model = models.try_emplace(group, program.rank, ops).first;
      const auto& [rank, expected] = model->second;
      if (ops == expected) continue;
      Diagnostic fault{.rank = program.rank, .op = -1, .rule = "match", .text = {}};
      fault.text = "comes to other joint ops in a microbatch than rank " + std::to_string(rank);
      return {std::move(fault)};
    }
  }
  return {};
}

}  // namespace armillary::plan::step
