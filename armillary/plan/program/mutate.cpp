// Enumerates all small changes of a plan as numbers, and applies one of them to a plan. Enumeration
// goes op by op through one rank; changes of the dtype of messages need both ends and are listed by
// add_messages().
#include "armillary/plan/program/mutate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

/// An index of the plan as the type that containers take.
std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

template <class Values>
bool contains(const Values& values, typename Values::value_type value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// Lists the mutations of one rank's program.
class Enumeration {
 public:
  Enumeration(const World& world, const RankProgram& program, std::vector<Mutation>& mutations)
      : world_(world), words_(*program.words), program_(program), mutations_(mutations) {}

  void add_all() {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      // The op as a whole, and its message.
      add(MutationKind::Dropped, i, {});
      add(MutationKind::Doubled, i, {});
      add_swaps(i);
      if (op.is_comm()) add_peers(i);
      if (words_[op.kind].joint) add_groups(i);
      if (op.is_comm() && op.views.size() == 1) add(MutationKind::OtherZeroCopy, i, {});
      // Its views, alone and in groups that must agree.
      for (const std::uint32_t operands : operand_groups(op)) add_views(i, operands);
      for (std::size_t v = 0; v < op.views.size(); ++v) add_tiles(i, v);
      // Its flags and its step.
      for (int side = 0; side < static_cast<int>(kMostSides); ++side) {
        const bool begins = (words_[op.kind].begins >> side & 1) != 0;
        if (begins) add(MutationKind::OtherStart, i, {.to = side});
      }
      add(MutationKind::OtherBatch, i, {.to = op.step - 1});
      add(MutationKind::OtherBatch, i, {.to = op.step + 1});
    }
    for (std::size_t t = 0; t < program_.tiles.size(); ++t) add_slots(t);
    add_roles();
  }

 private:
  /// Adds a mutation of one op; `mutation` has the fields that its kind uses.
  void add(MutationKind kind, std::size_t op, Mutation mutation) {
    mutation.kind = kind;
    mutation.rank = program_.rank;
    mutation.op = static_cast<int>(op);
    mutations_.push_back(mutation);
  }

  /// Exchanges with the next op and, if that is of another lane, with the next op of the same lane.
  void add_swaps(std::size_t i) {
    const std::vector<Op>& ops = program_.ops;
    if (i + 1 == ops.size()) return;
    add(MutationKind::Swapped, i, {.to = static_cast<int>(i + 1)});
    if (ops[i + 1].lane == ops[i].lane) return;
    for (std::size_t j = i + 2; j < ops.size(); ++j) {
      if (ops[j].lane != ops[i].lane) continue;
      add(MutationKind::Swapped, i, {.to = static_cast<int>(j)});
      return;
    }
  }

  /// All other peers, also the rank itself; in a world of 1, a rank that does not exist.
  void add_peers(std::size_t i) {
    for (Rank peer = 0; peer < world_.size; ++peer) {
      if (peer != program_.ops[i].peer) add(MutationKind::OtherPeer, i, {.to = peer});
    }
    if (world_.size == 1) add(MutationKind::OtherPeer, i, {.to = 1});
  }

  /// All other groups of the rank.
  void add_groups(std::size_t i) {
    for (int group = 0; group < static_cast<int>(program_.groups.size()); ++group) {
      if (group != program_.ops[i].peer) add(MutationKind::OtherPeer, i, {.to = group});
    }
  }

  /// Sets of operands as bits: each operand alone, and all operands of each side.
  std::vector<std::uint32_t> operand_groups(const Op& op) const {
    std::vector<std::uint32_t> groups;
    groups.reserve(op.views.size());
    for (std::size_t v = 0; v < op.views.size(); ++v) groups.push_back(1U << v);
    for (std::size_t side = 0; side < words_.sides.size(); ++side) {
      std::uint32_t group = 0;
      for (std::size_t v = 0; v < op.views.size(); ++v) {
        if (words_[tile_of(op.views[v]).tensor].side == side) group |= 1U << v;
      }
      if (!contains(groups, group) && group != 0) groups.push_back(group);
    }
    return groups;
  }

  /// Changes of the blocks and heads of a group of operands, which show the same as the first of
  /// them.
  void add_views(std::size_t i, std::uint32_t operands) {
    std::size_t first = 0;
    while ((operands >> first & 1) == 0) ++first;
    const View& view = program_.ops[i].views[first];
    for (const int block : view.blocks) {
      if (view.blocks.size() > 1) {
        add(MutationKind::FewerBlocks, i, {.operands = operands, .block = block});
      }
      add_other_blocks(i, operands, view, block);
    }
    if (view.heads.count() < 2) return;
    add(MutationKind::FewerHeads, i, {.operands = operands, .to = 0});
    add(MutationKind::FewerHeads, i, {.operands = operands, .to = 1});
  }

  /// Replaces `block` by every other block of the tile, and by the block after it.
  void add_other_blocks(std::size_t i, std::uint32_t operands, const View& view, int block) {
    for (const int other : tile_of(view).blocks) {
      if (contains(view.blocks, other)) continue;
      add(MutationKind::OtherBlock, i, {.operands = operands, .block = block, .to = other});
    }
    const int outside = block + 1;  // Often not a block of the tile, or no block at all.
    if (contains(tile_of(view).blocks, outside)) return;
    add(MutationKind::OtherBlock, i, {.operands = operands, .block = block, .to = outside});
  }

  /// Every other tile of the same tensor in place of the operand's.
  void add_tiles(std::size_t i, std::size_t operand) {
    const int tile = program_.ops[i].views[operand].tile;
    for (std::size_t other = 0; other < program_.tiles.size(); ++other) {
      if (static_cast<int>(other) == tile) continue;
      if (program_.tiles[other].tensor != program_.tiles[at(tile)].tensor) continue;
      add(MutationKind::OtherTile, i, {.operands = 1U << operand, .to = static_cast<int>(other)});
    }
  }

  /// Every other slot for a tile.
  void add_slots(std::size_t tile) {
    for (std::size_t slot = 0; slot < program_.slots.size(); ++slot) {
      if (static_cast<int>(slot) == program_.tiles[tile].slot) continue;
      mutations_.push_back({.kind = MutationKind::SlotReused,
                            .rank = program_.rank,
                            .tile = static_cast<int>(tile),
                            .to = static_cast<int>(slot)});
    }
  }

  /// Changes of what belongs to the caller, and of the order of saved tiles.
  void add_roles() {
    for (int slot = 0; slot < static_cast<int>(program_.slots.size()); ++slot) {
      mutations_.push_back(
          {.kind = MutationKind::OtherExternal, .rank = program_.rank, .to = slot});
    }
    for (int place = 0; place + 1 < static_cast<int>(program_.saved.size()); ++place) {
      mutations_.push_back(
          {.kind = MutationKind::OtherSaved, .rank = program_.rank, .tile = place});
    }
  }

  const Tile& tile_of(const View& view) const { return program_.tiles[at(view.tile)]; }

  const World& world_;
  const Vocabulary& words_;
  const RankProgram& program_;
  std::vector<Mutation>& mutations_;
};

/// Adds a change of dtype for every partial tile that is sent. The n-th send of a lane from one
/// rank to another meets the n-th receive there.
void add_messages(const std::vector<RankProgram>& ranks, std::vector<Mutation>& items) {
  // Receives by (lane, sender, receiver), in program order.
  std::map<std::tuple<Lane, Rank, Rank>, std::vector<int>> received;
  for (const RankProgram& program : ranks) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      if (op.kind != kRecv) continue;
      received[{op.lane, op.peer, program.rank}].push_back(static_cast<int>(i));
    }
  }
  // Sends, counted per queue to find the receive of each.
  std::map<std::tuple<Lane, Rank, Rank>, std::size_t> counts;
  for (const RankProgram& program : ranks) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      if (op.kind != kSend) continue;
      const std::tuple queue(op.lane, program.rank, op.peer);
      const std::vector<int>& at_peer = received[queue];
      const std::size_t n = counts[queue]++;
      if (n >= at_peer.size() || !program.tiles[at(op.views.front().tile)].partial) continue;
      items.push_back({.kind = MutationKind::OtherDtype,
                       .rank = program.rank,
                       .op = static_cast<int>(i),
                       .to = at_peer[n]});
    }
  }
}

/// Applies a change of one of the operands' views.
void change_view(View& view, const Mutation& mutation) {
  std::vector<int> blocks(view.blocks.begin(), view.blocks.end());
  switch (mutation.kind) {
    case MutationKind::FewerBlocks:
      std::erase(blocks, mutation.block);
      view.blocks = blocks;
      break;
    case MutationKind::OtherBlock:
      std::replace(blocks.begin(), blocks.end(), mutation.block, mutation.to);
      std::sort(blocks.begin(), blocks.end());
      view.blocks = blocks;
      break;
    case MutationKind::FewerHeads:
      if (mutation.to == 0) ++view.heads.begin;
      if (mutation.to == 1) --view.heads.end;
      break;
    default:
      view.tile = mutation.to;
  }
}

/// Makes the slot of a tile large enough, so that the size alone does not give the mutant away.
void make_room(const Measures& measures, RankProgram& program, const Tile& tile) {
  Slot& slot = program.slots[at(tile.slot)];
  slot.bytes = std::max(slot.bytes, measures.bytes(tile));
}

void change_slot(const Measures& measures, RankProgram& program, const Mutation& mutation) {
  Tile& tile = program.tiles[at(mutation.tile)];
  tile.slot = mutation.to;
  make_room(measures, program, tile);
}

/// Flips `narrow` for the tile of a message's first view.
void change_dtype(const Measures& measures, RankProgram& program, int op) {
  const View& first = program.ops[at(op)].views.front();
  Tile& tile = program.tiles[at(first.tile)];
  tile.narrow = !tile.narrow;
  make_room(measures, program, tile);
}

/// The changed operands by number: `0,3,4`.
std::string operand_names(const Mutation& mutation) {
  std::string text;
  for (int i = 0; mutation.operands >> i != 0; ++i) {
    if ((mutation.operands >> i & 1) != 0) text += fmt::format("{}{}", text.empty() ? "" : ",", i);
  }
  return text;
}

}  // namespace

std::string_view to_string(MutationKind kind) {
  switch (kind) {
    case MutationKind::Dropped:
      return "dropped";
    case MutationKind::Doubled:
      return "doubled";
    case MutationKind::Swapped:
      return "swapped";
    case MutationKind::OtherPeer:
      return "other peer";
    case MutationKind::FewerBlocks:
      return "fewer blocks";
    case MutationKind::OtherBlock:
      return "other block";
    case MutationKind::FewerHeads:
      return "fewer heads";
    case MutationKind::OtherTile:
      return "other tile";
    case MutationKind::SlotReused:
      return "slot reused";
    case MutationKind::OtherExternal:
      return "other external";
    case MutationKind::OtherSaved:
      return "other saved";
    case MutationKind::OtherBatch:
      return "other batch";
    case MutationKind::OtherStart:
      return "other start";
    case MutationKind::OtherZeroCopy:
      return "other zero copy";
    case MutationKind::OtherDtype:
      return "other dtype";
  }
  ARMILLARY_CHECK(false);
}

std::vector<Mutation> mutations(const World& world) {
  std::vector<Mutation> mutations;
  for (const RankProgram& program : world.ranks) Enumeration(world, program, mutations).add_all();
  add_messages(world.ranks, mutations);
  return mutations;
}

std::vector<Rank> changed_ranks(const std::vector<RankProgram>& ranks, const Mutation& mutation) {
  if (mutation.kind != MutationKind::OtherDtype) return {mutation.rank};
  return {mutation.rank, ranks[at(mutation.rank)].ops[at(mutation.op)].peer};
}

void mutate(const Measures& measures, std::vector<RankProgram>& ranks, const Mutation& mutation) {
  // Changes that concern no op or two ranks come first; all others change one op.
  RankProgram& program = ranks[at(mutation.rank)];
  if (mutation.kind == MutationKind::SlotReused) return change_slot(measures, program, mutation);
  if (mutation.kind == MutationKind::OtherExternal) {
    bool& external = program.slots[at(mutation.to)].external;
    external = !external;
    return;
  }
  if (mutation.kind == MutationKind::OtherSaved) {
    std::swap(program.saved[at(mutation.tile)], program.saved[at(mutation.tile + 1)]);
    return;
  }
  const auto op = program.ops.begin() + mutation.op;
  if (mutation.kind == MutationKind::OtherDtype) {
    change_dtype(measures, program, mutation.op);
    change_dtype(measures, ranks[at(op->peer)], mutation.to);
    return;
  }
  switch (mutation.kind) {
    case MutationKind::Dropped:
      program.ops.erase(op);
      break;
    case MutationKind::Doubled:
      program.ops.insert(op, Op(*op));
      break;
    case MutationKind::Swapped:
      std::swap(*op, program.ops[at(mutation.to)]);
      break;
    case MutationKind::OtherPeer:
      op->peer = mutation.to;
      break;
    case MutationKind::OtherBatch:
      op->step = mutation.to;
      break;
    case MutationKind::OtherZeroCopy:
      op->zero_copy = !op->zero_copy;
      break;
    case MutationKind::OtherStart: {
      bool& init = op->init[at(mutation.to)];
      init = !init;
      break;
    }
    default:
      for (std::size_t v = 0; v < op->views.size(); ++v) {
        if ((mutation.operands >> v & 1) != 0) change_view(op->views[v], mutation);
      }
  }
}

std::string to_string(const Mutation& mutation, const Vocabulary& words) {
  if (mutation.kind == MutationKind::SlotReused) {
    return fmt::format("rank {} tile {}: slot {} reused", mutation.rank, mutation.tile,
                       mutation.to);
  }
  if (mutation.kind == MutationKind::OtherExternal) {
    return fmt::format("rank {} slot {}: other external", mutation.rank, mutation.to);
  }
  if (mutation.kind == MutationKind::OtherSaved) {
    return fmt::format("rank {} saved {}: swapped with the next", mutation.rank, mutation.tile);
  }
  // The place and the kind; then the fields that the kind uses.
  std::string text =
      fmt::format("rank {} op {}: {}", mutation.rank, mutation.op, to_string(mutation.kind));
  const std::string operands = operand_names(mutation);
  switch (mutation.kind) {
    case MutationKind::Dropped:
    case MutationKind::Doubled:
    case MutationKind::OtherZeroCopy:
      return text;
    case MutationKind::Swapped:
      return fmt::format("{} with op {}", text, mutation.to);
    case MutationKind::FewerBlocks:
      return fmt::format("{}, operands {}: without block {}", text, operands, mutation.block);
    case MutationKind::OtherBlock:
      return fmt::format("{}, operands {}: block {} in place of {}", text, operands, mutation.to,
                         mutation.block);
    case MutationKind::FewerHeads:
      return fmt::format("{}, operands {}: without the {} head", text, operands,
                         mutation.to == 0 ? "first" : "last");
    case MutationKind::OtherTile:
      return fmt::format("{}, operand {}: tile {}", text, operands, mutation.to);
    case MutationKind::OtherDtype:
      return fmt::format("{}, received by op {}", text, mutation.to);
    case MutationKind::OtherStart:
      return fmt::format("{} of the sums of {}", text, words.sides[at(mutation.to)].plural);
    default:
      return fmt::format("{} {}", text, mutation.to);
  }
}

}  // namespace armillary::plan
