// program_builder.cpp: ops are collected in any order and finished in four passes.
//
// `finish` adds the copies that round sums for their way, sorts the ops by step (a counting sort),
// drops tiles that no op touches, and places tiles in slots: tiles in order of their first step,
// each in the free slot of its tensor with the least number, or else in a new one. Then saved tiles
// move to slots of the caller.
#include "armillary/plan/strategies/program_builder.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/passes/compact.h"

namespace armillary::plan {
namespace {

bool is_empty(const View& view) {
  return view.blocks.empty() || view.heads.count() == 0;
}

/// Steps of the first and the last op that touches a tile; last is -1 if there is none.
struct Lifetime {
  int first = std::numeric_limits<int>::max();
  int last = -1;
};

std::vector<Lifetime> lifetimes(const RankProgram& program) {
  std::vector<Lifetime> lives(program.tiles.size());
  for (const Op& op : program.ops) {
    for (const View& view : op.views) {
      Lifetime& life = lives[view.tile];
      life.first = std::min(life.first, op.step);
      life.last = std::max(life.last, op.step);
    }
  }
  // Backward reads saved tiles after the program ends.
  for (const int tile : program.saved) lives[tile].last = std::numeric_limits<int>::max();
  return lives;
}

/// The slots of one tensor. Calls must come in order of steps.
class SlotPool {
 public:
  /// Takes the first slot whose tile is dead before `step` out of the pool; -1 if there is none.
  int free_before(int step) {
    for (; !busy_.empty() && busy_.top().first < step; busy_.pop()) free_.push(busy_.top().second);
    if (free_.empty()) return -1;
    const int slot = free_.top();
    free_.pop();
    return slot;
  }
  /// Puts a slot into the pool whose tile lives until step `until`.
  void take(int slot, int until) { busy_.push({until, slot}); }

 private:
  template <class T>
  using LeastFirst = std::priority_queue<T, std::vector<T>, std::greater<>>;

  LeastFirst<std::pair<int, int>> busy_;  ///< The last step of its tile, and the slot.
  LeastFirst<int> free_;
};

}  // namespace

ProgramBuilder::ProgramBuilder(const Problem& problem, const Blocks& blocks, Rank rank)
    : problem_(problem), blocks_(blocks) {
  program_.words = &attention_words();
  program_.rank = rank;
}

int ProgramBuilder::tile(Tensor tensor, bool partial, Heads heads, BlockIds blocks) {
  program_.tiles.push_back(
      {.tensor = tensor, .partial = partial, .heads = heads, .blocks = std::move(blocks)});
  return static_cast<int>(program_.tiles.size()) - 1;
}

/// A tile in an external slot of its own, listed in `role`: the inputs, outputs or saved tiles.
int ProgramBuilder::external(std::vector<int>& role, Tensor tensor, Heads heads, BlockIds blocks) {
  const int id = tile(tensor, false, heads, std::move(blocks));
  program_.tiles[id].slot = static_cast<int>(program_.slots.size());
  program_.slots.push_back(
      {.bytes = bytes_of(problem_, blocks_, program_.tiles[id]), .external = true});
  role.push_back(id);
  return id;
}

int ProgramBuilder::input(Tensor tensor, Heads heads, BlockIds blocks) {
  return external(program_.inputs, tensor, heads, std::move(blocks));
}

int ProgramBuilder::output(Tensor tensor, Heads heads, BlockIds blocks) {
  return external(program_.outputs, tensor, heads, std::move(blocks));
}

int ProgramBuilder::saved(Tensor tensor, Heads heads, BlockIds blocks) {
  return external(program_.saved, tensor, heads, std::move(blocks));
}

void ProgramBuilder::save(int tile) {
  program_.saved.push_back(tile);
}

View ProgramBuilder::whole(int tile) const {
  return {.tile = tile, .heads = program_.tiles[tile].heads, .blocks = program_.tiles[tile].blocks};
}

View ProgramBuilder::part(int tile, BlockIds blocks) const {
  return part(tile, program_.tiles[tile].heads, std::move(blocks));
}

View ProgramBuilder::part(int tile, Heads heads, BlockIds blocks) const {
  return {.tile = tile, .heads = heads, .blocks = std::move(blocks)};
}

void ProgramBuilder::send(int step, Lane lane, Rank peer, View view, Collective collective) {
  add_message(
      {.kind = OpKind::Send, .lane = lane, .step = step, .peer = peer, .collective = collective},
      std::move(view));
}

void ProgramBuilder::recv(int step, Lane lane, Rank peer, View view, Collective collective) {
  add_message(
      {.kind = OpKind::Recv, .lane = lane, .step = step, .peer = peer, .collective = collective},
      std::move(view));
}

/// Adds a message of one view, which `message` does not have yet.
void ProgramBuilder::add_message(Op message, View view) {
  if (is_empty(view)) return;
  program_.ops.push_back(std::move(message));
  program_.ops.back().views.push_back(std::move(view));
}

void ProgramBuilder::compute(int step, OpKind kind, Views views) {
  ARMILLARY_CHECK(views.size() == operands(kind).size());
  add({.kind = kind, .lane = kCompute, .step = step, .views = std::move(views)});
}

int ProgramBuilder::arriving_sum(Tensor tensor, Heads heads, BlockIds blocks) {
  const int id = tile(tensor, true, heads, std::move(blocks));
  program_.tiles[id].narrow = travels_narrow(problem_, tensor);
  return id;
}

void ProgramBuilder::send_sum(int step, Lane lane, Rank peer, View sum, Collective collective) {
  const Tensor tensor = program_.tiles[sum.tile].tensor;
  if (!travels_narrow(problem_, tensor)) {
    return send(step, lane, peer, std::move(sum), collective);
  }
  // The narrow copy is what leaves; rounding is the last op of the step before.
  const int narrow = arriving_sum(tensor, sum.heads, sum.blocks);
  send(step, lane, peer, whole(narrow), collective);
  narrowing_copies_.push_back({.kind = OpKind::Copy,
                               .lane = kCompute,
                               .step = step - 1,
                               .views = {whole(narrow), std::move(sum)}});
}

void ProgramBuilder::add(Op op) {
  if (std::any_of(op.views.begin(), op.views.end(), is_empty)) return;
  program_.ops.push_back(std::move(op));
}

RankProgram ProgramBuilder::finish() {
  for (Op& copy : narrowing_copies_) add(std::move(copy));
  sort_ops();
  drop_unused_tiles();
  place_tiles();
  give_saved_slots(problem_, blocks_, program_);
  return std::move(program_);
}

/// Sorts by step, within a step messages before compute ops, otherwise as they were added. There
/// are few steps for many ops, hence the counting sort: a row per step and kind of lane.
void ProgramBuilder::sort_ops() {
  // begins[row] becomes the place of the next op of that row.
  const auto row = [](const Op& op) {
    return 2 * static_cast<std::size_t>(op.step) + (op.lane == kCompute ? 1 : 0);
  };
  std::vector<std::size_t> begins;
  for (const Op& op : program_.ops) {
    if (begins.size() < row(op) + 2) begins.resize(row(op) + 2);
    ++begins[row(op) + 1];
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<int> order(program_.ops.size());
  for (int i = 0; i < static_cast<int>(order.size()); ++i) {
    order[begins[row(program_.ops[i])]++] = i;
  }
  // Ops are moved: their views may be on the heap.
  std::vector<Op> sorted;
  sorted.reserve(order.size());
  for (const int i : order) sorted.push_back(std::move(program_.ops[i]));
  program_.ops = std::move(sorted);
}

/// Removes tiles that pruning left without ops, and renumbers the others everywhere. Tiles of the
/// caller stay.
void ProgramBuilder::drop_unused_tiles() {
  const std::vector<Lifetime> lives = lifetimes(program_);
  std::vector<int> new_id(program_.tiles.size(), -1);
  int used = 0;
  for (std::size_t id = 0; id < new_id.size(); ++id) {
    if (program_.tiles[id].slot >= 0 || lives[id].last >= 0) new_id[id] = used++;
  }
  if (std::cmp_equal(used, new_id.size())) return;
  std::vector<Tile> tiles;
  tiles.reserve(used);
  for (std::size_t id = 0; id < new_id.size(); ++id) {
    if (new_id[id] >= 0) tiles.push_back(std::move(program_.tiles[id]));
  }
  program_.tiles = std::move(tiles);
  for (Op& op : program_.ops) {
    for (View& view : op.views) view.tile = new_id[view.tile];
  }
  // Inputs, outputs and saved tiles are lists of ids as well.
  for (std::vector<int>* role : {&program_.inputs, &program_.outputs, &program_.saved}) {
    for (int& id : *role) id = new_id[id];
  }
}

/// Greedy interval allocation. A slot is as large as the largest tile that it ever holds.
void ProgramBuilder::place_tiles() {
  const std::vector<Lifetime> lives = lifetimes(program_);
  std::vector<int> order;
  for (int id = 0; id < static_cast<int>(program_.tiles.size()); ++id) {
    if (program_.tiles[id].slot < 0) order.push_back(id);
  }
  // Stable, so that tiles of one step get their slots in the order in which they were made.
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return lives[a].first < lives[b].first; });
  const std::vector<std::int64_t> sizes = tile_bytes(problem_, blocks_, program_);
  std::map<Tensor, SlotPool> pools;
  for (const int id : order) {
    Tile& tile = program_.tiles[id];
    SlotPool& pool = pools[tile.tensor];
    tile.slot = pool.free_before(lives[id].first);
    if (tile.slot < 0) {
      tile.slot = static_cast<int>(program_.slots.size());
      program_.slots.push_back({});
    }
    pool.take(tile.slot, lives[id].last);
    std::int64_t& bytes = program_.slots[tile.slot].bytes;
    bytes = std::max(bytes, sizes[id]);
  }
}

}  // namespace armillary::plan
