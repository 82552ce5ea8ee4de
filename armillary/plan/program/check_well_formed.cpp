// Rule `well_formed`, rank by rank on all cores. Tiles and slots come first: indices, ranges,
// sizes. Then each op: its number of operands, its views, and for a message the peer, for a compute
// op the types of its operands, their shapes, and memory that must not be shared.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/plan/program/check.h"
#include "armillary/plan/program/hazards.h"
#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::plan {
namespace {

/// Checks the program of one rank.
class WellFormedChecker {
 public:
  WellFormedChecker(const World& world, const RankProgram& program, const OpRule& rule,
                    Diagnostics& diagnostics)
      : world_(world),
        words_(*program.words),
        measures_(world.measures),
        program_(program),
        rule_(rule),
        diagnostics_(diagnostics) {}

  void check() {
    check_slots();
    check_groups();
    for (int id = 0; id < static_cast<int>(program_.tiles.size()); ++id) check_tile(id);
    for (const auto* roles : {&program_.inputs, &program_.outputs, &program_.saved}) {
      for (const int id : *roles) {
        if (id < 0 || id >= static_cast<int>(program_.tiles.size())) {
          diagnostics_.add(program_.rank, -1, "well_formed", "no tile {}", id);
        }
      }
    }
    if (!diagnostics_.empty()) return;
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) check_op(i);
  }

 private:
  /// Slots have sizes that can be added up.
  void check_slots() {
    std::int64_t total = 0;
    for (std::size_t s = 0; s < program_.slots.size(); ++s) {
      const std::int64_t bytes = program_.slots[s].bytes;
      if (bytes < 0 || __builtin_add_overflow(total, bytes, &total)) {
        diagnostics_.add(program_.rank, -1, "well_formed", "slot {} has {}", s,
                         count_of(bytes, "byte"));
        return;
      }
    }
  }

  /// The ranks of a group ascend below the world, and the rank is one of them.
  void check_groups() {
    for (std::size_t g = 0; g < program_.groups.size(); ++g) {
      const std::vector<Rank>& group = program_.groups[g];
      const bool ascends = std::ranges::adjacent_find(group, std::greater_equal<>()) == group.end();
      const bool inside = ascends && !group.empty() && group.front() >= 0 &&
                          group.back() < world_.size &&
                          std::ranges::binary_search(group, program_.rank);
      if (inside) continue;
      diagnostics_.add(program_.rank, -1, "well_formed",
                       "group {} is of ranks {}; ranks that ascend below {}, this one among them, "
                       "are required",
                       g, fmt::format("{}", fmt::join(group, ",")), world_.size);
    }
  }

  /// The tile's heads and blocks exist, it has a slot large enough, and its flags fit its tensor.
  /// The tests are in this order because each relies on those before it.
  void check_tile(int id) {
    const Tile& tile = program_.tiles[id];
    if (tile.tensor.number() >= words_.tensors.size()) {
      diagnostics_.add(program_.rank, -1, "well_formed", "tile {} is of tensor {} of {}", id,
                       tile.tensor.number(), words_.tensors.size());
      return;
    }
    const int heads = measures_[tile.tensor].heads;
    const int blocks = measures_.blocks(tile.tensor);
    if (tile.heads.begin < 0 || tile.heads.begin > tile.heads.end || tile.heads.end > heads) {
      diagnostics_.add(program_.rank, -1, "well_formed", "tile {} has heads {}-{} of {}", id,
                       tile.heads.begin, tile.heads.end, heads);
    } else if (!ascend_below(tile.blocks, blocks)) {
      diagnostics_.add(program_.rank, -1, "well_formed",
                       "tile {} lists blocks that do not ascend below {}", id, blocks);
    } else if (tile.slot < 0 || tile.slot >= static_cast<int>(program_.slots.size())) {
      diagnostics_.add(program_.rank, -1, "well_formed", "tile {} lies in slot {} of {}", id,
                       tile.slot, program_.slots.size());
    } else if (tile.partial && !words_[tile.tensor].sums) {
      diagnostics_.add(program_.rank, -1, "well_formed", "tile {}: {} cannot be partial", id,
                       words_[tile.tensor].name);
    } else if (tile.narrow && !(tile.partial && measures_[tile.tensor].travels_narrow)) {
      diagnostics_.add(program_.rank, -1, "well_formed", "tile {}: {} cannot be narrow", id,
                       words_[tile.tensor].name);
    } else if (measures_.bytes(tile) > program_.slots[tile.slot].bytes) {
      diagnostics_.add(program_.rank, -1, "well_formed",
                       "tile {} of {} does not fit its slot of {}", id,
                       count_of(measures_.bytes(tile), "byte"), program_.slots[tile.slot].bytes);
    }
  }

  /// Everything about one op. Later checks index views and tiles, so the first ones return early.
  void check_op(int i) {
    const Op& op = program_.ops[i];
    if (op.kind.number() >= words_.kinds.size()) {
      diagnostics_.add(program_.rank, i, "well_formed", "kind {} of {}", op.kind.number(),
                       words_.kinds.size());
      return;
    }
    const KindWord& word = words_[op.kind];
    if (!words_.takes(op.kind, op.views.size())) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} with {} operands; it takes {}{}",
                       word.name, op.views.size(), word.operands.size(),
                       op.is_comm() ? " or more" : "");
      return;
    }
    for (std::size_t side = 0; side < kMostSides; ++side) {
      if (!op.init[side] || (word.begins >> side & 1) != 0) continue;
      diagnostics_.add(program_.rank, i, "well_formed", "{} has no sums of {} that it could begin",
                       word.name, side < words_.sides.size() ? words_.sides[side].plural : "?");
      return;
    }
    if (op.step < 0) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} in step {}; steps count from 0",
                       words_[op.kind].name, op.step);
    }
    for (const View& view : op.views) {
      if (!check_view(i, view)) return;
    }
    op.is_comm() ? check_comm(i) : check_compute(i);
    if (rule_ && diagnostics_.empty()) rule_(program_, i, diagnostics_);
  }

  /// The view is not empty and lies in its tile.
  bool check_view(int i, const View& view) {
    if (view.tile < 0 || view.tile >= static_cast<int>(program_.tiles.size())) {
      diagnostics_.add(program_.rank, i, "well_formed", "no tile {}", view.tile);
      return false;
    }
    const Tile& tile = program_.tiles[view.tile];
    const int blocks = measures_.blocks(tile.tensor);
    const bool is_inside = view.blocks == tile.blocks || (ascend_below(view.blocks, blocks) &&
                                                          includes(tile.blocks, view.blocks));
    const bool inside = tile.heads.contains(view.heads) && view.heads.begin < view.heads.end &&
                        !view.blocks.empty() && is_inside;
    if (!inside) {
      diagnostics_.add(program_.rank, i, "well_formed",
                       "the view {} is empty or not inside its tile", describe(program_, view));
    }
    return inside;
  }

  /// A message has a lane and a peer.
  void check_comm(int i) {
    const Op& op = program_.ops[i];
    if (op.lane <= kCompute) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} on the compute lane",
                       words_[op.kind].name);
    }
    if (op.peer < 0 || op.peer >= world_.size || op.peer == program_.rank) {
      diagnostics_.add(program_.rank, i, "well_formed",
                       "{} with peer {}; peers are the other ranks below {}", words_[op.kind].name,
                       op.peer, world_.size);
    }
    if (op.kind == kRecv) {
      for (std::size_t v = 0; v < op.views.size(); ++v) check_alias(i, v);
    }
  }

  /// A joint op has a lane and a group.
  void check_joint(int i) {
    const Op& op = program_.ops[i];
    if (op.lane <= kCompute) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} on the compute lane",
                       words_[op.kind].name);
    }
    if (op.peer < 0 || op.peer >= static_cast<int>(program_.groups.size())) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} in group {} of {}",
                       words_[op.kind].name, op.peer, program_.groups.size());
    }
  }

  const Tile& tile(const View& view) const { return program_.tiles[view.tile]; }

  /// A compute op is on its lane, a copy is not, and its operands fit the op and each other.
  void check_compute(int i) {
    const Op& op = program_.ops[i];
    if (words_[op.kind].joint) {
      check_joint(i);
    } else if (words_[op.kind].beside) {
      if (op.lane <= kCompute) {
        diagnostics_.add(program_.rank, i, "well_formed", "{} on the compute lane",
                         words_[op.kind].name);
      }
    } else if (op.lane != kCompute) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} on comm lane {}", words_[op.kind].name,
                       op.lane);
    }
    // Tensors of the operands. A result that may be narrow is whole, as a final tile, or a part of
    // it, rounded to travel.
    const std::span<const Operand> required = words_[op.kind].operands;
    for (std::size_t v = 0; v < required.size(); ++v) {
      const Operand& operand = required[v];
      if (!operand.tensor) continue;
      const Tile& input = tile(op.views[v]);
      const bool rounded = operand.may_be_narrow && input.narrow;
      if (input.tensor != *operand.tensor || input.partial != (operand.partial || rounded)) {
        diagnostics_.add(program_.rank, i, "well_formed", "operand {} is {}{}; it must be {}{}",
                         operand.name, input.partial ? "partial " : "", words_[input.tensor].name,
                         operand.partial ? "partial " : "", words_[*operand.tensor].name);
        return;
      }
    }
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (!tile(op.views[v]).narrow || required[v].may_be_narrow) continue;
      diagnostics_.add(program_.rank, i, "well_formed",
                       "operand {} is narrow; it must be in the accumulator", required[v].name);
      return;
    }
    // Shapes and shared memory.
    check_shapes(i);
    for (std::size_t a = 0; a < op.views.size(); ++a) check_alias(i, a);
  }

  /// Operands of one side show the same blocks and heads. Those that take any tensor are of one.
  void check_shapes(int i) {
    const Op& op = program_.ops[i];
    const KindWord& word = words_[op.kind];
    for (std::size_t v = 0; v < op.views.size() && !word.reshapes; ++v) {
      std::size_t first = 0;
      while (side_of(word.operands[first]) != side_of(word.operands[v])) ++first;
      const View& view = op.views[v];
      const View& model = op.views[first];
      if (view.blocks != model.blocks || view.heads != model.heads) {
        diagnostics_.add(program_.rank, i, "well_formed", "{} and {} differ in blocks or heads",
                         describe(program_, model), describe(program_, view));
        return;
      }
    }
    if (word.same_tensor && tile(op.views.front()).tensor != tile(op.views.back()).tensor) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} of {} and {}", word.name,
                       describe(program_, op.views.front()), describe(program_, op.views.back()));
    }
  }

  /// The side that an operand is declared on.
  std::size_t side_of(const Operand& operand) const {
    return operand.tensor ? words_[*operand.tensor].side : 0;
  }

  bool is_whole(const View& view) const { return plan::is_whole(tile(view), view); }

  /// True if operand `a` may be written in the memory of operand `b`, because the op then moves
  /// nothing: a copy, or the end of a sum, between whole tiles of one dtype.
  bool in_place(const Op& op, std::size_t a, std::size_t b) const {
    if (op.is_comm()) return false;
    const std::span<const Operand> operands = words_[op.kind].operands;
    return operands[a].moved_from == operands[b].name && is_whole(op.views[a]) &&
           is_whole(op.views[b]) &&
           measures_.dtype(tile(op.views[a])) == measures_.dtype(tile(op.views[b]));
  }

  /// A written operand shares no slot with another operand of the op: otherwise the op would read
  /// values that it is overwriting.
  void check_alias(int i, std::size_t a) {
    const Op& op = program_.ops[i];
    if (!words_.writes(op, a)) return;
    const int slot = tile(op.views[a]).slot;
    for (std::size_t b = 0; b < op.views.size(); ++b) {
      const bool apart = tile(op.views[b]).slot != slot || same_tile_apart(op, a, b);
      if (a == b || apart || in_place(op, a, b)) continue;
      diagnostics_.add(program_.rank, i, "well_formed", "operands {} and {} share slot {}",
                       words_.operand_name(op.kind, a), words_.operand_name(op.kind, b), slot);
      return;
    }
  }

  /// True for a message that shows two different parts of one tile.
  bool same_tile_apart(const Op& op, std::size_t a, std::size_t b) const {
    return op.is_comm() && op.views[a].tile == op.views[b].tile &&
           !overlap(op.views[a], op.views[b]);
  }

  const World& world_;
  const Vocabulary& words_;
  const Measures& measures_;
  const RankProgram& program_;
  const OpRule& rule_;
  Diagnostics& diagnostics_;
};

}  // namespace

std::string describe(const RankProgram& program, const View& view) {
  const bool known = view.tile >= 0 && view.tile < static_cast<int>(program.tiles.size());
  return fmt::format("{}{}{}{{{}}} heads {}-{}",
                     known && program.tiles[view.tile].narrow ? "narrow " : "",
                     known && program.tiles[view.tile].partial ? "partial " : "",
                     known ? (*program.words)[program.tiles[view.tile].tensor].name : "?",
                     fmt::join(view.blocks, ","), view.heads.begin, view.heads.end);
}

std::string describe(const RankProgram& program, const Op& message) {
  std::string text;
  for (const View& view : message.views) {
    if (!text.empty()) text += " with ";
    text += describe(program, view);
  }
  return text;
}

// One list of diagnostics per rank, appended in the order of the ranks.
void check_well_formed(const World& world, Diagnostics& diagnostics, const OpRule& rule,
                       std::span<const Rank> places) {
  const int count = static_cast<int>(world.ranks.size());
  const int required = places.empty() ? world.size : static_cast<int>(places.size());
  if (count != required) {
    diagnostics.add(-1, -1, "well_formed", "{} programs for a world of {}", count, required);
  }
  std::vector<Diagnostics> of_rank(count, Diagnostics(diagnostics.limit()));
  parallel_for_ranks(count, [&](int place) {
    const RankProgram& program = world.ranks[place];
    const Rank rank = static_cast<std::size_t>(place) < places.size() ? places[place] : place;
    if (program.rank != rank) {
      of_rank[place].add(place, -1, "well_formed", "the program at place {} says it is rank {}",
                         place, program.rank);
    }
    WellFormedChecker(world, program, rule, of_rank[place]).check();
  });
  for (const Diagnostics& faults : of_rank) diagnostics.add(faults);
}

}  // namespace armillary::plan
