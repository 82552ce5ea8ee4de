// mutants.cpp: a transfer is found in the programs by its layer and ranks: there is one message of
// a layer between two ranks, and a rank keeps one part of a layer.
#include "armillary/plan/relayout/mutants.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "armillary/core/error.h"

namespace armillary::plan::relayout {
namespace {

/// The first op of a rank's end of a transfer; a copy has a second one behind it, of V.
int op_of(const RankProgram& program, const Transfer& transfer) {
  const auto is_end = [&](const Op& op) {
    if (op.step != transfer.layer) return false;
    if (transfer.from == transfer.to) return op.kind == RelayoutOp::Keep;
    const bool gives = program.rank == transfer.from;
    return op.kind == (gives ? RelayoutOp::Send : RelayoutOp::Recv) &&
           op.peer == (gives ? transfer.to : transfer.from);
  };
  const auto op = std::ranges::find_if(program.ops, is_end);
  ARMILLARY_CHECK(op != program.ops.end());
  return static_cast<int>(op - program.ops.begin());
}

/// The tile of the same tensor and role that has a block; -1: none.
int tile_with(const RankProgram& program, int tile, int block) {
  const bool is_input = std::ranges::count(program.inputs, tile) > 0;
  for (const int other : is_input ? program.inputs : program.outputs) {
    const Tile& there = program.tiles[other];
    if (there.tensor == program.tiles[tile].tensor && includes(there.blocks, BlockIds{block})) {
      return other;
    }
  }
  return -1;
}

class RelayoutMutants {
 public:
  RelayoutMutants(const Relayout& relayout, const std::function<void(const RelayoutMutant&)>& visit)
      : relayout_(relayout), visit_(visit) {}

  void visit_all() {
    for (const Transfer& transfer : relayout_.tables.transfers()) {
      at_ends(RelayoutMutation::MoveLeftOut, transfer, [](RankProgram& program, int op) {
        program.ops.erase(program.ops.begin() + op);
        return true;
      });
      at_ends(RelayoutMutation::MoveTwice, transfer, [](RankProgram& program, int op) {
        const Op again = program.ops[op];
        program.ops.insert(program.ops.begin() + op, again);
        return true;
      });
      at_ends(RelayoutMutation::HeadLeftOut, transfer, [](RankProgram& program, int op) {
        for (View& view : program.ops[op].views) --view.heads.end;
        return program.ops[op].views.front().heads.count() > 0;
      });
      at_ends(RelayoutMutation::OtherLayer, transfer,
              [&](RankProgram& program, int op) { return show_next_layer(program, op); });
      at_ends(RelayoutMutation::MoveEarly, transfer,
              [](RankProgram& program, int op) { return --program.ops[op].step >= 0; });
      if (transfer.from == transfer.to) continue;
      at_ends(RelayoutMutation::ValuesLeftOut, transfer, [](RankProgram& program, int op) {
        program.ops[op].views.pop_back();
        return true;
      });
    }
  }

 private:
  /// Changes an op. False: there is no such mutant.
  using Change = std::function<bool(RankProgram& program, int op)>;

  /// Changes both ends of a transfer.
  void at_ends(RelayoutMutation mutation, const Transfer& transfer, const Change& change) {
    RelayoutMutant mutant{mutation, transfer, relayout_.ranks};
    const auto change_at = [&](Rank rank) {
      return change(mutant.ranks[rank], op_of(relayout_.ranks[rank], transfer));
    };
    bool is_there = change_at(transfer.to);
    if (transfer.from != transfer.to) is_there = change_at(transfer.from) && is_there;
    if (is_there) visit_(mutant);
  }

  bool show_next_layer(RankProgram& program, int op) const {
    const int parts = static_cast<int>(relayout_.tables.parts().size());
    for (View& view : program.ops[op].views) {
      const int block = view.blocks.front() + parts;
      const int tile = tile_with(program, view.tile, block);
      if (tile < 0) return false;
      view.tile = tile;
      view.blocks = BlockIds{block};
    }
    return true;
  }

  const Relayout& relayout_;
  const std::function<void(const RelayoutMutant&)>& visit_;
};

}  // namespace

std::string_view to_string(RelayoutMutation mutation) {
  constexpr std::array<std::string_view, 6> kNames{"move left out",   "move twice",
                                                   "values left out", "head left out",
                                                   "other layer",     "move early"};
  return kNames.at(static_cast<std::size_t>(mutation));
}

std::string to_string(const RelayoutMutant& mutant) {
  const Transfer& transfer = mutant.transfer;
  return fmt::format("{}: layer {}, part {} of rank {} for rank {}", to_string(mutant.mutation),
                     transfer.layer, transfer.part, transfer.from, transfer.to);
}

void for_each_mutant(const Relayout& relayout,
                     const std::function<void(const RelayoutMutant& mutant)>& visit) {
  RelayoutMutants(relayout, visit).visit_all();
}

}  // namespace armillary::plan::relayout
