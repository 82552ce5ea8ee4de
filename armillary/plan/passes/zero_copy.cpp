#include <vector>

#include "armillary/plan/hazards.h"
#include "armillary/plan/passes/lower.h"

namespace armillary::plan {

RankProgram zero_copy(RankProgram program) {
  // A send that a later op waits for would be written over: only writes wait for a read.
  std::vector<bool> waited_for(program.ops.size(), false);
  for_each_dependencies(program, [&](int /*op*/, std::span<const int> waits) {
    for (const int earlier : waits) waited_for[earlier] = true;
  });
  // A receive must be the only op that writes its tile.
  std::vector<int> writers(program.tiles.size(), 0);
  for (const Op& op : program.ops) {
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (writes(op, v)) ++writers[op.views[v].tile];
    }
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    Op& op = program.ops[i];
    if (!op.is_comm() || op.views.size() > 1) continue;
    const View& view = op.views.front();
    const Tile& tile = program.tiles[view.tile];
    op.zero_copy =
        op.kind == OpKind::Send
            ? !waited_for[i]
            : is_whole(tile, view) && !program.slots[tile.slot].external && writers[view.tile] == 1;
  }
  return program;
}

}  // namespace armillary::plan
