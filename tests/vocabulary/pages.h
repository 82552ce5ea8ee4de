// pages.h: a vocabulary of three kinds of ops, its programs and its proof: the whole of what the
// machine of plan/program/ must be told about something that is not attention.
//
// The pages of a table are dealt over ranks, page p to rank p % world; every rank gathers all.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "armillary/plan/program/check.h"
#include "armillary/plan/program/measures.h"

namespace armillary::pages {
enum class PageKind : std::uint8_t { Send, Recv, Put };
plan::KindTag word_tag(PageKind);

inline constexpr plan::Operand kPutOperands[] = {{.name = "to", .access = plan::Access::Write},
                                                 {.name = "from"}};
inline constexpr plan::KindWord kKinds[] = {
    plan::kSendWord, plan::kRecvWord,
    plan::kind_word({.name = "put", .operands = kPutOperands, .same_tensor = true})};
inline constexpr plan::TensorWord kTensors[] = {{.name = "page"}};
inline constexpr plan::SideWord kSides[] = {{.name = "page", .plural = "pages"}};
inline constexpr std::string_view kPasses[] = {"gather"};
inline constexpr plan::Vocabulary kWords{
    .name = "pages", .kinds = kKinds, .tensors = kTensors, .sides = kSides, .passes = kPasses};

struct Table {
  int world = 1;
  int pages = 1;    ///< At least one for each rank.
  int columns = 1;  ///< A column has one number for each row.
  std::int64_t rows = 1;
};

inline plan::Measures measures_of(const Table& table) {
  return {
      kWords, 1, {{.heads = table.columns}}, {std::vector<std::int64_t>(table.pages, table.rows)}};
}

inline std::vector<int> owned(const Table& table, plan::Rank rank) {
  std::vector<int> pages;
  for (int page = rank; page < table.pages; page += table.world) pages.push_back(page);
  return pages;
}

/// The program of a rank: tile 0 is its part of the table, tile 1 the whole, tile 1 + s arrives in
/// step s. Two slots take turns.
inline plan::RankProgram gather(const Table& table, plan::Rank rank) {
  const plan::Heads columns{0, table.columns};
  const plan::Measures measures = measures_of(table);
  plan::RankProgram program{.words = &kWords, .rank = rank, .inputs = {0}, .outputs = {1}};
  const auto add = [&](const std::vector<int>& pages, int slot, bool external) {
    program.tiles.push_back({.heads = columns, .blocks = pages, .slot = slot});
    if (slot >= static_cast<int>(program.slots.size())) program.slots.resize(slot + 1);
    plan::Slot& of = program.slots[slot];
    of.bytes = std::max(of.bytes, measures.bytes(program.tiles.back()));
    of.external = external;
  };
  const auto whole = [&](int tile) {
    return plan::View{tile, columns, program.tiles[tile].blocks};
  };
  std::vector<int> all(table.pages);
  for (int page = 0; page < table.pages; ++page) all[page] = page;
  add(owned(table, rank), 0, true);
  add(all, 1, true);
  const auto put = [&](int step, int from) {
    program.ops.push_back({.kind = PageKind::Put,
                           .step = step,
                           .views = {{1, columns, program.tiles[from].blocks}, whole(from)}});
  };
  put(0, 0);
  for (int s = 1; s < table.world; ++s) {
    const plan::Rank to = (rank + s) % table.world;
    const plan::Rank from = (rank - s + table.world) % table.world;
    add(owned(table, from), 2 + s % 2, false);
    const auto message = [&](PageKind kind, plan::Rank peer, int tile) {
      program.ops.push_back({.kind = kind,
                             .lane = 1,
                             .step = s,
                             .peer = peer,
                             .collective = plan::Collective::AllGather,
                             .zero_copy = true,
                             .views = {whole(tile)}});
    };
    message(PageKind::Send, to, 0);
    message(PageKind::Recv, from, 1 + s);
    put(s, 1 + s);
  }
  return program;
}

/// Proves that every rank has every number of the table at the end, and gathered it once.
inline std::vector<plan::Diagnostic> prove(const Table& table, const plan::World& world) {
  plan::Diagnostics diagnostics(1);
  const auto actions = plan::check(world, diagnostics);
  if (!actions) return diagnostics.take();
  // The numbers that each slot holds, as (page, column), of the tile that is in it.
  using Numbers = std::set<std::pair<int, int>>;
  const auto shown = [](const auto& view) {
    Numbers numbers;
    for (const int page : view.blocks) {
      for (int c = view.heads.begin; c < view.heads.end; ++c) numbers.emplace(page, c);
    }
    return numbers;
  };
  std::vector<std::vector<std::pair<int, Numbers>>> slots(world.size);
  for (const plan::RankProgram& program : world.ranks) {
    slots[program.rank].resize(program.slots.size(), {-1, {}});
    for (std::size_t t = 0; t < program.tiles.size(); ++t) {
      const bool callers = program.slots[program.tiles[t].slot].external;
      if (callers != (t < 2)) diagnostics.add(program.rank, -1, "caller", "slot of tile {}", t);
    }
    const bool input = program.tiles[0].blocks == plan::BlockIds(owned(table, program.rank)) &&
                       program.tiles[0].slot != program.tiles[1].slot;
    if (!input) diagnostics.add(program.rank, -1, "caller", "tile 0 is not the rank's own part");
    slots[program.rank][program.tiles[0].slot] = {0, shown(program.tiles[0])};
  }
  const auto move = [&](const plan::Action& at, plan::Rank from, const plan::View& source,
                        const plan::View& target, bool once) {
    auto& [tile, numbers] = slots[at.rank][world.ranks[at.rank].tiles[target.tile].slot];
    const auto& [resident, there] = slots[from][world.ranks[from].tiles[source.tile].slot];
    if (std::exchange(tile, target.tile) != target.tile) numbers.clear();
    for (const auto& number : shown(source)) {
      if (resident != source.tile || there.count(number) == 0) {
        diagnostics.add(at.rank, at.op, "undefined", "page {} is not there", number.first);
      }
      if (!numbers.insert(number).second && once) {
        diagnostics.add(at.rank, at.op, "twice", "page {} was there", number.first);
      }
    }
  };
  for (const plan::Action& at : *actions) {
    if (!diagnostics.empty()) return diagnostics.take();
    const plan::Op& op = world.ranks[at.rank].ops[at.op];
    if (at.is_message()) {
      move(at, at.from, world.ranks[at.from].ops[at.send].views[0], op.views[0], false);
    } else {
      move(at, at.rank, op.views[1], op.views[0], op.views[0].tile == 1);
    }
  }
  for (plan::Rank rank = 0; rank < world.size; ++rank) {
    const plan::RankProgram& program = world.ranks[rank];
    const auto& [tile, numbers] = slots[rank][program.tiles[1].slot];
    const bool whole = static_cast<int>(numbers.size()) == table.pages * table.columns;
    if (tile != 1 || !whole) diagnostics.add(rank, -1, "complete", "pages are missing");
  }
  return diagnostics.take();
}
}  // namespace armillary::pages
