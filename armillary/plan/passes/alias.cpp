#include <algorithm>
#include <vector>

#include "armillary/plan/passes/compact.h"
#include "armillary/plan/passes/lower.h"

namespace armillary::plan {
namespace {

class Aliasing {
 public:
  Aliasing(const Problem& problem, RankProgram& program)
      : problem_(problem),
        program_(program),
        uses_(program.tiles.size(), 0),
        last_use_(program.tiles.size(), -1),
        result_(program.tiles.size(), false),
        given_(program.tiles.size(), false) {
    for (const auto* role : {&program.outputs, &program.saved}) {
      for (const int tile : *role) result_[tile] = true;
    }
    for (const int tile : program.inputs) given_[tile] = true;
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      for (const View& view : program.ops[i].views) {
        if (last_use_[view.tile] == static_cast<int>(i)) continue;
        last_use_[view.tile] = static_cast<int>(i);
        ++uses_[view.tile];
      }
    }
  }

  void move_sums() {
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) {
      const Op& op = program_.ops[i];
      if (op.kind == OpKind::Copy) move(i, op.views[0], op.views[1]);
      if (op.kind == OpKind::Finish) {
        move(i, op.views[0], op.views[2]);
        move(i, op.views[1], op.views[3]);
      }
    }
  }

 private:
  bool is_whole(const View& view) const { return plan::is_whole(program_.tiles[view.tile], view); }

  /// Lets `from` lie where `to` does, if op `i` moves all of it there unchanged, nothing else
  /// touches `to` and nothing `from` afterwards.
  void move(int i, const View& to, const View& from) {
    Tile& source = program_.tiles[from.tile];
    const Tile& target = program_.tiles[to.tile];
    const bool only = uses_[to.tile] == 1 && last_use_[from.tile] == i;
    const bool callers = result_[from.tile] || given_[from.tile];
    if (!only || callers || !result_[to.tile] || given_[to.tile]) return;
    if (!is_whole(to) || !is_whole(from)) return;
    if (dtype_of(problem_, source) == dtype_of(problem_, target)) source.slot = target.slot;
  }

  const Problem& problem_;
  RankProgram& program_;
  std::vector<int> uses_;      ///< Of each tile: ops that touch it.
  std::vector<int> last_use_;  ///< The last of them.
  std::vector<bool> result_;   ///< The caller receives it, or finds it in backward.
  std::vector<bool> given_;
};

/// What forward saves lies in memory of the caller, which keeps it.
void give_saved_slots(RankProgram& program) {
  for (const int id : program.saved) {
    Tile& tile = program.tiles[id];
    if (program.slots[tile.slot].external) continue;
    tile.slot = static_cast<int>(program.slots.size());
    program.slots.push_back({.bytes = 0, .external = true});
  }
}

}  // namespace

RankProgram alias(const Problem& problem, const Blocks& blocks, RankProgram program) {
  give_saved_slots(program);
  Aliasing(problem, program).move_sums();
  compact(problem, blocks, program);
  return program;
}

}  // namespace armillary::plan
