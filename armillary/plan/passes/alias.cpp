// The pass `alias`. The slot of a sum becomes the slot of the result that it is finished or copied
// into, so that the op has nothing to move. Conditions are those of lower.h; they are read off two
// numbers per tile: how many ops use it, and which op is the last one.
#include <algorithm>
#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/passes/compact.h"
#include "armillary/plan/passes/lower.h"

namespace armillary::plan {
namespace {

/// Moves the sums of one program into the slots of their results.
class Aliasing {
 public:
  Aliasing(const Problem& problem, RankProgram& program)
      : problem_(problem),
        program_(program),
        uses_(program.tiles.size(), 0),
        last_use_(program.tiles.size(), -1),
        result_(program.tiles.size(), false),
        external_(program.tiles.size(), false) {
    for (const auto* role : {&program.outputs, &program.saved}) {
      for (const int tile : *role) result_[tile] = true;
    }
    for (const int tile : program.inputs) external_[tile] = true;
    // An op that shows a tile twice uses it once.
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      for (const View& view : program.ops[i].views) {
        if (last_use_[view.tile] == static_cast<int>(i)) continue;
        last_use_[view.tile] = static_cast<int>(i);
        ++uses_[view.tile];
      }
    }
  }

  /// Every copy and finish in order; finish moves out and lse independently of each other.
  void move_sums() {
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) {
      const Views& views = program_.ops[i].views;
      if (program_.ops[i].kind == OpKind::Copy) {
        move(i, views[CopyOperand::kDst], views[CopyOperand::kSrc]);
      }
      if (program_.ops[i].kind == OpKind::Finish) {
        move(i, views[FinishOperand::kOut], views[FinishOperand::kPartOut]);
        move(i, views[FinishOperand::kLse], views[FinishOperand::kPartLse]);
      }
    }
  }

 private:
  bool is_whole(const View& view) const { return plan::is_whole(program_.tiles[view.tile], view); }

  /// Puts the tile of `from` into the slot of the tile of `to`, if op `i` moves all of it there
  /// unchanged, no other op touches `to`, and no later op touches `from`.
  void move(int i, const View& to, const View& from) {
    Tile& source = program_.tiles[from.tile];
    const Tile& target = program_.tiles[to.tile];
    const bool only = uses_[to.tile] == 1 && last_use_[from.tile] == i;
    const bool is_external = result_[from.tile] || external_[from.tile];
    if (!only || is_external || !result_[to.tile] || external_[to.tile]) return;
    if (!is_whole(to) || !is_whole(from)) return;
    if (dtype_of(problem_, source) == dtype_of(problem_, target)) source.slot = target.slot;
  }

  const Problem& problem_;
  RankProgram& program_;
  std::vector<int> uses_;       ///< By tile: the number of ops that touch it.
  std::vector<int> last_use_;   ///< By tile: the last op that touches it.
  std::vector<bool> result_;    ///< By tile: the caller receives it, or finds it in backward.
  std::vector<bool> external_;  ///< By tile: the caller fills it.
};

}  // namespace

RankProgram alias(const Problem& problem, const Blocks& blocks, RankProgram program) {
  Aliasing(problem, program).move_sums();
  compact_slots(problem, blocks, program);
  return program;
}

}  // namespace armillary::plan
