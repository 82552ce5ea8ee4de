#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/program/hazards.h"

namespace armillary::plan {

RankProgram zero_copy(RankProgram program) {
  // How many operands write each tile.
  std::vector<int> writers(program.tiles.size(), 0);
  for (const Op& op : program.ops) {
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (writes(op, v)) ++writers[op.views[v].tile];
    }
  }
  // A send lends a view that keeps its values; a receive borrows a tile that it alone writes.
  LaterWrites later(program);
  for (auto op = program.ops.rbegin(); op != program.ops.rend(); ++op) {
    if (op->is_comm() && op->views.size() == 1) {
      const View& view = op->views.front();
      const Tile& tile = program.tiles[view.tile];
      op->zero_copy = op->kind == OpKind::Send
                          ? later.over(view) == nullptr
                          : is_whole(tile, view) && !program.slots[tile.slot].external &&
                                writers[view.tile] == 1;
    }
    later.add(*op);
  }
  return program;
}

}  // namespace armillary::plan
