#include "armillary/plan/replay.h"

#include <algorithm>
#include <utility>

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

/// Leaves only tiles and slots that are used, numbered again.
void drop_unused(RankProgram& program) {
  std::vector<int> used = program.inputs;
  for (const std::vector<int>* role : {&program.outputs, &program.saved}) {
    used.insert(used.end(), role->begin(), role->end());
  }
  for (const Op& op : program.ops) {
    for (const View& view : op.views) used.push_back(view.tile);
  }
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());

  const auto new_id = [&](int tile) {
    return static_cast<int>(std::lower_bound(used.begin(), used.end(), tile) - used.begin());
  };
  std::vector<Tile> tiles;
  std::vector<Slot> slots;
  for (const int tile : used) {  // each is alive to the end, so each has a slot of its own
    tiles.push_back(std::move(program.tiles[tile]));
    slots.push_back(program.slots[tiles.back().slot]);
    tiles.back().slot = static_cast<int>(slots.size()) - 1;
  }
  program.tiles = std::move(tiles);
  program.slots = std::move(slots);
  for (std::vector<int>* role : {&program.inputs, &program.outputs, &program.saved}) {
    for (int& tile : *role) tile = new_id(tile);
  }
  for (Op& op : program.ops) {
    for (View& view : op.views) view.tile = new_id(view.tile);
  }
}

}  // namespace

RankProgram replay(const RankProgram& forward) {
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
  for (const int tile : forward.saved) {
    if (!is_result(forward, tile)) continue;
    program.inputs.push_back(tile);
    program.slots[program.tiles[tile].slot].external = true;
  }
  drop_unused(program);
  return program;
}

}  // namespace armillary::plan
