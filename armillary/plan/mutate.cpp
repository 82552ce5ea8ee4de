#include "armillary/plan/mutate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

template <class Values>
bool contains(const Values& values, typename Values::value_type value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

class Enumeration {
 public:
  Enumeration(const Plan& plan, const RankProgram& program, std::vector<Mutation>& found)
      : plan_(plan), program_(program), found_(found) {}

  void add_all() {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      add(Slip::Dropped, i, {});
      add(Slip::Doubled, i, {});
      add_swaps(i);
      if (op.is_comm()) add_peers(i);
      if (op.is_comm() && op.views.size() == 1) add(Slip::OtherLoan, i, {});
      for (const std::uint32_t operands : operand_groups(op)) add_views(i, operands);
      for (std::size_t v = 0; v < op.views.size(); ++v) add_tiles(i, v);
      if (op.kind == OpKind::Attend || op.kind == OpKind::AttendGrad) {
        add(Slip::OtherStart, i, {.to = 0});
      }
      if (op.kind == OpKind::AttendGrad) add(Slip::OtherStart, i, {.to = 1});
      add(Slip::OtherBatch, i, {.to = op.step - 1});
      add(Slip::OtherBatch, i, {.to = op.step + 1});
    }
    for (std::size_t t = 0; t < program_.tiles.size(); ++t) add_slots(t);
  }

 private:
  void add(Slip slip, std::size_t op, Mutation mutation) {
    mutation.slip = slip;
    mutation.rank = program_.rank;
    mutation.op = static_cast<int>(op);
    found_.push_back(mutation);
  }

  void add_swaps(std::size_t i) {
    const std::vector<Op>& ops = program_.ops;
    if (i + 1 == ops.size()) return;
    add(Slip::Swapped, i, {.to = static_cast<int>(i + 1)});
    if (ops[i + 1].lane == ops[i].lane) return;
    for (std::size_t j = i + 2; j < ops.size(); ++j) {
      if (ops[j].lane != ops[i].lane) continue;
      add(Slip::Swapped, i, {.to = static_cast<int>(j)});
      return;
    }
  }

  void add_peers(std::size_t i) {
    for (Rank peer = 0; peer < plan_.problem.world; ++peer) {
      if (peer != program_.ops[i].peer) add(Slip::OtherPeer, i, {.to = peer});
    }
    if (plan_.problem.world == 1) add(Slip::OtherPeer, i, {.to = 1});
  }

  /// Each operand alone, and all those of one kind of block that show the same.
  std::vector<std::uint32_t> operand_groups(const Op& op) const {
    std::vector<std::uint32_t> groups;
    for (std::size_t v = 0; v < op.views.size(); ++v) groups.push_back(1U << v);
    for (const bool kv : {false, true}) {
      std::uint32_t group = 0;
      for (std::size_t v = 0; v < op.views.size(); ++v) {
        if (is_kv(tile_of(op.views[v]).tensor) == kv) group |= 1U << v;
      }
      if (!contains(groups, group) && group != 0) groups.push_back(group);
    }
    return groups;
  }

  void add_views(std::size_t i, std::uint32_t operands) {
    std::size_t first = 0;
    while ((operands >> first & 1) == 0) ++first;
    const View& view = program_.ops[i].views[first];
    for (const int block : view.blocks) {
      if (view.blocks.size() > 1) {
        add(Slip::FewerBlocks, i, {.operands = operands, .block = block});
      }
      add_other_blocks(i, operands, view, block);
    }
    if (view.heads.count() < 2) return;
    add(Slip::FewerHeads, i, {.operands = operands, .to = 0});
    add(Slip::FewerHeads, i, {.operands = operands, .to = 1});
  }

  void add_other_blocks(std::size_t i, std::uint32_t operands, const View& view, int block) {
    for (const int other : tile_of(view).blocks) {
      if (contains(view.blocks, other)) continue;
      add(Slip::OtherBlock, i, {.operands = operands, .block = block, .to = other});
    }
    const int outside = block + 1;  // Often a block that the tile does not have, or none at all.
    if (contains(tile_of(view).blocks, outside)) return;
    add(Slip::OtherBlock, i, {.operands = operands, .block = block, .to = outside});
  }

  void add_tiles(std::size_t i, std::size_t operand) {
    const int tile = program_.ops[i].views[operand].tile;
    for (std::size_t other = 0; other < program_.tiles.size(); ++other) {
      if (static_cast<int>(other) == tile) continue;
      if (program_.tiles[other].tensor != program_.tiles[at(tile)].tensor) continue;
      add(Slip::OtherTile, i, {.operands = 1U << operand, .to = static_cast<int>(other)});
    }
  }

  void add_slots(std::size_t tile) {
    for (std::size_t slot = 0; slot < program_.slots.size(); ++slot) {
      if (static_cast<int>(slot) == program_.tiles[tile].slot) continue;
      found_.push_back({.slip = Slip::SlotReused,
                        .rank = program_.rank,
                        .tile = static_cast<int>(tile),
                        .to = static_cast<int>(slot)});
    }
  }

  const Tile& tile_of(const View& view) const { return program_.tiles[at(view.tile)]; }

  const Plan& plan_;
  const RankProgram& program_;
  std::vector<Mutation>& found_;
};

/// Every sum that is sent. The n-th send of a lane from a rank to another meets its n-th receive.
void add_messages(const Plan& plan, std::vector<Mutation>& found) {
  std::map<std::tuple<Lane, Rank, Rank>, std::vector<int>> received;
  for (const RankProgram& program : plan.ranks) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      if (op.kind != OpKind::Recv) continue;
      received[{op.lane, op.peer, program.rank}].push_back(static_cast<int>(i));
    }
  }
  std::map<std::tuple<Lane, Rank, Rank>, std::size_t> sent;
  for (const RankProgram& program : plan.ranks) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      if (op.kind != OpKind::Send) continue;
      const std::tuple channel(op.lane, program.rank, op.peer);
      const std::vector<int>& at_peer = received[channel];
      const std::size_t n = sent[channel]++;
      if (n >= at_peer.size() || !program.tiles[at(op.views[0].tile)].partial) continue;
      found.push_back({.slip = Slip::OtherDtype,
                       .rank = program.rank,
                       .op = static_cast<int>(i),
                       .to = at_peer[n]});
    }
  }
}

void change_view(View& view, const Mutation& mutation) {
  std::vector<int> blocks(view.blocks.begin(), view.blocks.end());
  switch (mutation.slip) {
    case Slip::FewerBlocks:
      std::erase(blocks, mutation.block);
      view.blocks = blocks;
      break;
    case Slip::OtherBlock:
      std::replace(blocks.begin(), blocks.end(), mutation.block, mutation.to);
      std::sort(blocks.begin(), blocks.end());
      view.blocks = blocks;
      break;
    case Slip::FewerHeads:
      if (mutation.to == 0) ++view.heads.begin;
      if (mutation.to == 1) --view.heads.end;
      break;
    default:
      view.tile = mutation.to;
  }
}

void make_room(const Plan& plan, RankProgram& program, const Tile& tile) {
  Slot& slot = program.slots[at(tile.slot)];
  slot.bytes = std::max(slot.bytes, bytes_of(plan.problem, plan.blocks, tile));
}

void change_slot(const Plan& plan, RankProgram& program, const Mutation& mutation) {
  Tile& tile = program.tiles[at(mutation.tile)];
  tile.slot = mutation.to;
  make_room(plan, program, tile);
}

void change_dtype(const Plan& plan, RankProgram& program, int op) {
  Tile& tile = program.tiles[at(program.ops[at(op)].views[0].tile)];
  tile.narrow = !tile.narrow;
  make_room(plan, program, tile);
}

std::string operand_names(const Mutation& mutation) {
  std::string text;
  for (int i = 0; mutation.operands >> i != 0; ++i) {
    if ((mutation.operands >> i & 1) != 0) text += fmt::format("{}{}", text.empty() ? "" : ",", i);
  }
  return text;
}

}  // namespace

std::string_view to_string(Slip slip) {
  switch (slip) {
    case Slip::Dropped:
      return "dropped";
    case Slip::Doubled:
      return "doubled";
    case Slip::Swapped:
      return "swapped";
    case Slip::OtherPeer:
      return "other peer";
    case Slip::FewerBlocks:
      return "fewer blocks";
    case Slip::OtherBlock:
      return "other block";
    case Slip::FewerHeads:
      return "fewer heads";
    case Slip::OtherTile:
      return "other tile";
    case Slip::SlotReused:
      return "slot reused";
    case Slip::OtherBatch:
      return "other batch";
    case Slip::OtherStart:
      return "other start";
    case Slip::OtherLoan:
      return "other loan";
    case Slip::OtherDtype:
      return "other dtype";
  }
  ARMILLARY_CHECK(false);
}

std::vector<Mutation> mutations(const Plan& plan) {
  std::vector<Mutation> found;
  for (const RankProgram& program : plan.ranks) Enumeration(plan, program, found).add_all();
  add_messages(plan, found);
  return found;
}

std::vector<Rank> changed_ranks(const Plan& plan, const Mutation& mutation) {
  if (mutation.slip != Slip::OtherDtype) return {mutation.rank};
  return {mutation.rank, plan.ranks[at(mutation.rank)].ops[at(mutation.op)].peer};
}

void mutate(Plan& plan, const Mutation& mutation) {
  RankProgram& program = plan.ranks[at(mutation.rank)];
  if (mutation.slip == Slip::SlotReused) {
    change_slot(plan, program, mutation);
    return;
  }
  const auto op = program.ops.begin() + mutation.op;
  if (mutation.slip == Slip::OtherDtype) {
    change_dtype(plan, program, mutation.op);
    change_dtype(plan, plan.ranks[at(op->peer)], mutation.to);
    return;
  }
  switch (mutation.slip) {
    case Slip::Dropped:
      program.ops.erase(op);
      break;
    case Slip::Doubled:
      program.ops.insert(op, Op(*op));
      break;
    case Slip::Swapped:
      std::swap(*op, program.ops[at(mutation.to)]);
      break;
    case Slip::OtherPeer:
      op->peer = mutation.to;
      break;
    case Slip::OtherBatch:
      op->step = mutation.to;
      break;
    case Slip::OtherLoan:
      op->loan = !op->loan;
      break;
    case Slip::OtherStart: {
      bool& fresh = mutation.to == 0 ? op->fresh_q : op->fresh_kv;
      fresh = !fresh;
      break;
    }
    default:
      for (std::size_t v = 0; v < op->views.size(); ++v) {
        if ((mutation.operands >> v & 1) != 0) change_view(op->views[v], mutation);
      }
  }
}

Plan apply(const Plan& plan, const Mutation& mutation) {
  Plan mutant = plan;
  mutate(mutant, mutation);
  return mutant;
}

std::string to_string(const Mutation& mutation) {
  if (mutation.slip == Slip::SlotReused) {
    return fmt::format("rank {} tile {}: slot {} reused", mutation.rank, mutation.tile,
                       mutation.to);
  }
  std::string text =
      fmt::format("rank {} op {}: {}", mutation.rank, mutation.op, to_string(mutation.slip));
  const std::string operands = operand_names(mutation);
  switch (mutation.slip) {
    case Slip::Dropped:
    case Slip::Doubled:
    case Slip::OtherLoan:
      return text;
    case Slip::Swapped:
      return fmt::format("{} with op {}", text, mutation.to);
    case Slip::FewerBlocks:
      return fmt::format("{}, operands {}: without block {}", text, operands, mutation.block);
    case Slip::OtherBlock:
      return fmt::format("{}, operands {}: block {} in place of {}", text, operands, mutation.to,
                         mutation.block);
    case Slip::FewerHeads:
      return fmt::format("{}, operands {}: without the {} head", text, operands,
                         mutation.to == 0 ? "first" : "last");
    case Slip::OtherTile:
      return fmt::format("{}, operand {}: tile {}", text, operands, mutation.to);
    case Slip::OtherDtype:
      return fmt::format("{}, received by op {}", text, mutation.to);
    case Slip::OtherStart:
      return fmt::format("{} of the sums of {}", text, mutation.to == 0 ? "queries" : "keys");
    default:
      return fmt::format("{} {}", text, mutation.to);
  }
}

}  // namespace armillary::plan
