#include "armillary/plan/passes/replay.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "armillary/plan/passes/compact.h"

namespace armillary::plan {
namespace {

// A replay keeps the tiles, inputs, outputs and saved tiles of forward, and those of its messages
// and copies that lead to saved tiles or outputs without attention. Then every tile gets a slot of
// its own, the saved results become inputs, and unused tiles are dropped.

bool contains(const std::vector<int>& tiles, int tile) {
  return std::count(tiles.begin(), tiles.end(), tile) > 0;
}

bool is_result(const RankProgram& program, int tile) {
  const Tensor tensor = program.tiles[tile].tensor;
  return tensor == Tensor::Out || tensor == Tensor::Lse;
}

/// True if the op belongs to a replay. A send does if its tile is an input that is not itself
/// saved, which is read only on the way to saved tiles, or a saved result on the way to its owner.
/// The receive at its other end writes a saved tile or an output, and so belongs to the replay too.
bool is_replayed(const RankProgram& forward, const Op& op) {
  const int tile = op.views.front().tile;  // sent, received, or the destination of a copy
  const bool saved = contains(forward.saved, tile);
  switch (OpKind(op.kind)) {
    case OpKind::Send:
      return saved ? is_result(forward, tile) : contains(forward.inputs, tile);
    case OpKind::Recv:
    case OpKind::Copy:
      return saved || contains(forward.outputs, tile);
    default:
      return false;
  }
}

/// Gives each tile a slot of its own, inputs and outputs those of the caller: in a replay all tiles
/// are alive to the end.
void separate(RankProgram& program) {
  program.slots.assign(program.tiles.size(), {});
  for (std::size_t t = 0; t < program.tiles.size(); ++t) {
    program.tiles[t].slot = static_cast<int>(t);
  }
  for (const auto* role : {&program.inputs, &program.outputs}) {
    for (const int tile : *role) program.slots[tile].external = true;
  }
}

}  // namespace

RankProgram replay(const Problem& problem, const Blocks& blocks, const RankProgram& forward) {
  RankProgram program{.words = forward.words,
                      .rank = forward.rank,
                      .slots = {},
                      .tiles = forward.tiles,
                      .ops = {},
                      .inputs = forward.inputs,
                      .outputs = forward.outputs,
                      .saved = forward.saved};
  for (const Op& op : forward.ops) {
    if (is_replayed(forward, op)) program.ops.push_back(op);
  }
  // The caller brings the saved results.
  for (const int tile : forward.saved) {
    if (is_result(forward, tile)) program.inputs.push_back(tile);
  }
  separate(program);
  compact(problem, blocks, program);
  give_saved_slots(problem, blocks, program);
  return program;
}

}  // namespace armillary::plan
