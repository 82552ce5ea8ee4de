// check_relayout.cpp: the machine proves that both ends of a message and of a copy show the same
// cells, so values keep their meaning; what is left is to count the cells that arrive.
#include "armillary/plan/relayout/check_relayout.h"

#include <algorithm>
#include <optional>
#include <set>

#include "armillary/core/error.h"
#include "armillary/plan/program/check.h"
#include "armillary/plan/relayout/relayout_program.h"

namespace armillary::plan::relayout {
namespace {

/// Rule `layer` for one op.
void check_layer(const RelayoutTables& tables, const RankProgram& program, int i,
                 Diagnostics& diagnostics) {
  const Op& op = program.ops[i];
  for (const View& view : op.views) {
    for (const int block : {view.blocks.front(), view.blocks.back()}) {
      if (tables.layer_of(block) == op.step) continue;
      diagnostics.add(program.rank, i, "layer", "moves {} in step {}; step {} is required",
                      describe(program, view), op.step, tables.layer_of(block));
      return;
    }
  }
}

bool has_tiles(const RankProgram& program, const std::vector<int>& ids,
               const std::vector<Tile>& required) {
  return std::ranges::equal(ids, required, [&](int id, const Tile& tile) {
    const Tile& there = program.tiles[id];
    return there.tensor == tile.tensor && there.heads == tile.heads &&
           there.blocks == tile.blocks && program.slots[there.slot].external;
  });
}

/// Rule `caller` for one rank.
void check_caller(const RelayoutTables& tables, const RankProgram& program,
                  Diagnostics& diagnostics) {
  const Rank rank = program.rank;
  if (!has_tiles(program, program.inputs, tables.source_tiles(rank))) {
    diagnostics.add(rank, -1, "caller", "the inputs are not those of the old layout");
  }
  if (!has_tiles(program, program.outputs, tables.target_tiles(rank))) {
    diagnostics.add(rank, -1, "caller", "the outputs are not those of the new layout");
  }
  std::set<int> slots;
  for (const Tile& tile : program.tiles) slots.insert(tile.slot);
  const std::size_t required = program.inputs.size() + program.outputs.size();
  if (program.tiles.size() != required || slots.size() != required || !program.saved.empty()) {
    diagnostics.add(rank, -1, "caller", "{} tiles lie in {} slots; {} in as many are required",
                    program.tiles.size(), slots.size(), required);
  }
}

/// The cells that have arrived: of each tile its blocks times its heads.
class ArrivedCells {
 public:
  ArrivedCells(const World& world, Diagnostics& diagnostics)
      : world_(world), diagnostics_(diagnostics) {
    for (const RankProgram& program : world.ranks) {
      std::vector<TileCells>& tiles = tiles_.emplace_back();
      for (const Tile& tile : program.tiles) {
        tiles.push_back({.there = std::vector<bool>(tile.blocks.size() *
                                                    static_cast<std::size_t>(tile.heads.count()))});
      }
      for (const int input : program.inputs) {
        tiles[input].is_old = true;
        tiles[input].there.flip();
      }
    }
  }

  void run(const Action& at) {
    const Op& op = world_.ranks[at.rank].ops[at.op];
    if (!at.is_message()) {
      return move(at, at.rank, op.views[KeepOperand::kFrom], op.views[KeepOperand::kTo]);
    }
    const Op& send = world_.ranks[at.from].ops[at.send];
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      move(at, at.from, send.views[v], op.views[v]);
    }
  }

  void check_end() {
    for (const RankProgram& program : world_.ranks) {
      for (const int output : program.outputs) {
        const std::vector<bool>& there = tiles_[program.rank][output].there;
        const auto missing = std::find(there.begin(), there.end(), false);
        if (missing == there.end()) continue;
        const Tile& tile = program.tiles[output];
        const auto place = static_cast<std::size_t>(missing - there.begin());
        const auto heads = static_cast<std::size_t>(tile.heads.count());
        diagnostics_.add(program.rank, -1, "complete", "head {} of block {} of {} has not arrived",
                         tile.heads.begin + static_cast<int>(place % heads),
                         block_at(tile, place / heads), (*program.words)[tile.tensor].name);
      }
    }
  }

 private:
  struct TileCells {
    std::vector<bool> there;  ///< Block after block, all heads of each.
    bool is_old = false;      ///< It is of the old layout.
  };

  static int block_at(const Tile& tile, std::size_t place) {
    auto block = tile.blocks.begin();
    for (std::size_t i = 0; i < place; ++i) ++block;
    return *block;
  }

  /// The place of the first head of a block of a view in the cells of its tile.
  static std::size_t place_of_block(const Tile& tile, const View& view, int block) {
    std::size_t place = 0;
    for (const int of_tile : tile.blocks) {
      if (of_tile == block) break;
      ++place;
    }
    return place * static_cast<std::size_t>(tile.heads.count()) +
           static_cast<std::size_t>(view.heads.begin - tile.heads.begin);
  }

  /// Moves the cells of a view of rank `from` to one of the rank of the action.
  void move(const Action& at, Rank from, const View& source, const View& target) {
    const Tile& source_tile = world_.ranks[from].tiles[source.tile];
    const Tile& target_tile = world_.ranks[at.rank].tiles[target.tile];
    const std::vector<bool>& values = tiles_[from][source.tile].there;
    TileCells& gets = tiles_[at.rank][target.tile];
    if (gets.is_old) {
      diagnostics_.add(at.rank, at.op, "old", "writes {}, which is of the old layout",
                       describe(world_.ranks[at.rank], target));
      return;
    }
    for (const int block : target.blocks) {
      const std::size_t here = place_of_block(target_tile, target, block);
      const std::size_t there = place_of_block(source_tile, source, block);
      for (std::size_t head = 0; head < static_cast<std::size_t>(target.heads.count()); ++head) {
        if (!values[there + head]) {
          diagnostics_.add(at.rank, at.op, "undefined", "{} of rank {} was not written before",
                           describe(world_.ranks[from], source), from);
          return;
        }
        if (gets.there[here + head]) {
          diagnostics_.add(at.rank, at.op, "twice", "{} arrives twice",
                           describe(world_.ranks[at.rank], target));
          return;
        }
        gets.there[here + head] = true;
      }
    }
  }

  const World& world_;
  Diagnostics& diagnostics_;
  std::vector<std::vector<TileCells>> tiles_;  ///< By rank and tile.
};

}  // namespace

std::vector<Diagnostic> check_relayout(const World& world, const RelayoutShape& shape, int limit) {
  ARMILLARY_CHECK(limit >= 1);
  const RelayoutTables tables(shape);
  Diagnostics diagnostics(limit);
  if (static_cast<int>(world.ranks.size()) != shape.world) {
    diagnostics.add(-1, -1, "caller", "{} programs for a world of {}", world.ranks.size(),
                    shape.world);
  }
  for (const RankProgram& program : world.ranks) {
    if (program.words == &relayout_words()) continue;
    diagnostics.add(program.rank, -1, "caller", "the program is not in the words of a relayout");
  }
  if (!diagnostics.empty()) return diagnostics.take();
  // Structure.
  const auto actions =
      check(world, diagnostics, [&](const RankProgram& program, int op, Diagnostics& faults) {
        check_layer(tables, program, op, faults);
      });
  if (!actions) return diagnostics.take();
  for (const RankProgram& program : world.ranks) check_caller(tables, program, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  // Meaning.
  ArrivedCells cells(world, diagnostics);
  for (const Action& action : *actions) {
    cells.run(action);
    if (!diagnostics.empty()) return diagnostics.take();
  }
  cells.check_end();
  const std::int64_t bytes = sent_bytes(world);
  if (diagnostics.empty() && bytes != tables.moved_bytes()) {
    diagnostics.add(-1, -1, "bytes", "{} bytes are sent; {} is required", bytes,
                    tables.moved_bytes());
  }
  return diagnostics.take();
}

}  // namespace armillary::plan::relayout
