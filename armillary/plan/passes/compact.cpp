// compact.cpp: elements are numbered by their rank among the used ones, then removed, and every
// index to them is replaced. Order is kept, so equal programs stay equal.
#include "armillary/plan/passes/compact.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace armillary::plan {
namespace {

/// The new number of each element: its rank among the used ones; -1 for an unused one.
std::vector<int> numbered(const std::vector<char>& used) {
  std::vector<int> places(used.size(), -1);
  int next = 0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i] != 0) places[i] = next++;
  }
  return places;
}

/// Removes the elements whose new number is -1.
template <class Values>
void keep(Values& values, const std::vector<int>& places) {
  Values rest;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (places[i] >= 0) rest.push_back(std::move(values[i]));
  }
  values = std::move(rest);
}

}  // namespace

void compact(const Problem& problem, const Blocks& blocks, RankProgram& program) {
  // Tiles of the caller are used even if no op touches them: they are its arguments and results.
  const std::array roles{&program.inputs, &program.outputs, &program.saved};
  std::vector<char> used(program.tiles.size(), 0);
  for (const std::vector<int>* role : roles) {
    for (const int tile : *role) used[tile] = 1;
  }
  for (const Op& op : program.ops) {
    for (const View& view : op.views) used[view.tile] = 1;
  }
  // Without an unused tile nothing has to be numbered again.
  if (std::find(used.begin(), used.end(), 0) != used.end()) {
    const std::vector<int> tiles = numbered(used);
    keep(program.tiles, tiles);
    for (std::vector<int>* role : roles) {
      for (int& tile : *role) tile = tiles[tile];
    }
    for (Op& op : program.ops) {
      for (View& view : op.views) view.tile = tiles[view.tile];
    }
  }
  compact_slots(problem, blocks, program);
}

void compact_slots(const Problem& problem, const Blocks& blocks, RankProgram& program) {
  std::vector<char> occupancy(program.slots.size(), 0);
  for (const Tile& tile : program.tiles) occupancy[tile.slot] = 1;
  const std::vector<int> slots = numbered(occupancy);
  keep(program.slots, slots);
  for (Slot& slot : program.slots) slot.bytes = 0;
  const std::vector<std::int64_t> sizes = tile_bytes(problem, blocks, program);
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    Tile& tile = program.tiles[t];
    tile.slot = slots[tile.slot];
    std::int64_t& bytes = program.slots[tile.slot].bytes;
    bytes = std::max(bytes, sizes[t]);
  }
}

void give_saved_slots(const Problem& problem, const Blocks& blocks, RankProgram& program) {
  const std::size_t before = program.slots.size();
  for (const int id : program.saved) {
    Tile& tile = program.tiles[id];
    // The slot of an input or output is the caller's already.
    if (program.slots[tile.slot].external) continue;
    tile.slot = static_cast<int>(program.slots.size());
    program.slots.push_back({.bytes = 0, .external = true});
  }
  if (program.slots.size() > before) compact_slots(problem, blocks, program);
}

}  // namespace armillary::plan
