#include <vector>

#include "armillary/plan/hazards.h"
#include "armillary/plan/passes/lower.h"

namespace armillary::plan {

RankProgram lend(RankProgram program) {
  std::vector<bool> waited_for(program.ops.size(), false);
  for_each_dependencies(program, [&](int /*op*/, std::span<const int> waits) {
    for (const int earlier : waits) waited_for[earlier] = true;
  });
  std::vector<int> writers(program.tiles.size(), 0);
  for (const Op& op : program.ops) {
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (writes(op, v)) ++writers[op.views[v].tile];
    }
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    Op& op = program.ops[i];
    if (!op.is_comm() || op.views.size() > 1) continue;
    const Tile& tile = program.tiles[op.views[0].tile];
    op.loan = op.kind == OpKind::Send
                  ? !waited_for[i]
                  : is_whole(tile, op.views[0]) && !program.slots[tile.slot].external &&
                        writers[op.views[0].tile] == 1;
  }
  return program;
}

}  // namespace armillary::plan
