#include "armillary/plan/passes/replay.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "armillary/plan/passes/compact.h"

namespace armillary::plan {
namespace {

bool contains(const std::vector<int>& tiles, int tile) {
  return std::count(tiles.begin(), tiles.end(), tile) > 0;
}

bool is_result(const RankProgram& program, int tile) {
  const Tensor tensor = program.tiles[tile].tensor;
  return tensor == Tensor::Out || tensor == Tensor::Lse;
}

/// A send belongs to a replay if its tile is one that only the way to the saved tiles reads: an
/// input that is not itself saved, or a saved result on its way home. The receive at its other end
/// then writes a saved tile or an output, and so belongs too.
bool is_replayed(const RankProgram& forward, const Op& op) {
  const int tile = op.views[0].tile;
  const bool saved = contains(forward.saved, tile);
  switch (op.kind) {
    case OpKind::Send:
      return saved ? is_result(forward, tile) : contains(forward.inputs, tile);
    case OpKind::Recv:
    case OpKind::Copy:
      return saved || contains(forward.outputs, tile);
    default:
      return false;
  }
}

/// Each tile is alive to the end, so each gets a slot of its own.
void separate(RankProgram& program) {
  std::vector<Slot> slots;
  for (Tile& tile : program.tiles) {
    slots.push_back(program.slots[tile.slot]);
    tile.slot = static_cast<int>(slots.size()) - 1;
  }
  program.slots = std::move(slots);
}

}  // namespace

RankProgram replay(const Problem& problem, const Blocks& blocks, const RankProgram& forward) {
  RankProgram program{.rank = forward.rank,
                      .slots = forward.slots,
                      .tiles = forward.tiles,
                      .ops = {},
                      .inputs = forward.inputs,
                      .outputs = forward.outputs,
                      .saved = forward.saved};
  for (const Op& op : forward.ops) {
    if (is_replayed(forward, op)) program.ops.push_back(op);
  }
  separate(program);
  for (const int tile : forward.saved) {
    if (!is_result(forward, tile)) continue;
    program.inputs.push_back(tile);
    program.slots[program.tiles[tile].slot].external = true;
  }
  compact(problem, blocks, program);
  return program;
}

}  // namespace armillary::plan
