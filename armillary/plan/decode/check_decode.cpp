// check_decode.cpp: a part is written by one attend or one receive, and its block says whose keys
// it is over: the machine proves that both ends of a message show the same block. So it is enough
// to follow which tiles are there, and how far each sum has come.
#include "armillary/plan/decode/check_decode.h"

#include <algorithm>
#include <set>

#include "armillary/core/error.h"
#include "armillary/plan/program/check.h"

namespace armillary::plan::decode {
namespace {

int layer_of_tile(const DecodeShape& shape, const Tile& tile) {
  const int block = tile.blocks.front();
  return tile.tensor == DecodeTensor::Sum ? block : layer_of_part(shape, block);
}

/// Rule `layer` for one op.
void check_layer(const DecodeShape& shape, const RankProgram& program, int i,
                 Diagnostics& diagnostics) {
  const Op& op = program.ops[i];
  for (const View& view : op.views) {
    const Tile& tile = program.tiles[view.tile];
    const bool is_one =
        is_whole(tile, view) && view.blocks.size() == 1 && view.heads == Heads{0, shape.heads};
    if (is_one && layer_of_tile(shape, tile) == op.step) continue;
    diagnostics.add(program.rank, i, "layer",
                    "shows {} in step {}; a whole tile of one block of layer {} is required",
                    describe(program, view), op.step, op.step);
    return;
  }
}

/// Rule `caller` for one rank.
void check_caller(const DecodeShape& shape, const RankProgram& program, Diagnostics& diagnostics) {
  const bool has_roles = program.inputs.empty() && program.saved.empty() &&
                         static_cast<int>(program.outputs.size()) == shape.layers;
  bool are_sums = has_roles;
  std::set<int> slots;
  for (int layer = 0; layer < shape.layers && are_sums; ++layer) {
    const Tile& tile = program.tiles[program.outputs[static_cast<std::size_t>(layer)]];
    are_sums = tile.tensor == DecodeTensor::Sum && tile.blocks == BlockIds{layer} &&
               program.slots[tile.slot].external && slots.insert(tile.slot).second;
  }
  if (!are_sums) {
    diagnostics.add(program.rank, -1, "caller", "the outputs are not the sums of {} layers",
                    shape.layers);
  }
  const auto is_callers = [&](const Tile& tile) { return program.slots[tile.slot].external; };
  if (std::ranges::count_if(program.tiles, is_callers) != shape.layers) {
    diagnostics.add(program.rank, -1, "caller", "a tile that is no output is the caller's");
  }
}

/// The parts and sums of all ranks while the programs run.
class DecodeMeaning {
 public:
  DecodeMeaning(const World& world, const DecodeShape& shape, Diagnostics& diagnostics)
      : world_(world), shape_(shape), diagnostics_(diagnostics) {
    for (const RankProgram& program : world.ranks) {
      resident_.emplace_back(program.slots.size(), -1);
      written_.emplace_back(program.tiles.size(), false);
      merged_.emplace_back(static_cast<std::size_t>(shape.layers), 0);
      attended_.emplace_back(static_cast<std::size_t>(shape.layers), false);
    }
  }

  void run(const Action& at) {
    const Op& op = world_.ranks[at.rank].ops[at.op];
    if (at.is_message()) {
      const Op& send = world_.ranks[at.from].ops[at.send];
      for (std::size_t v = 0; v < op.views.size(); ++v) {
        read(at, at.from, send.views[v].tile);
        write(at, op.views[v].tile);
      }
    } else if (op.kind == DecodeOp::Attend) {
      attend(at, op.views.front().tile);
    } else {
      merge(at, op);
    }
  }

  void check_end() {
    for (const RankProgram& program : world_.ranks) {
      for (int layer = 0; layer < shape_.layers; ++layer) {
        const int count = merged_[program.rank][static_cast<std::size_t>(layer)];
        if (count == shape_.world) continue;
        diagnostics_.add(program.rank, -1, "complete",
                         "the sum of layer {} has the parts of {} of {}", layer, count,
                         shape_.world);
      }
    }
  }

 private:
  const Tile& tile_of(Rank rank, int tile) const { return world_.ranks[rank].tiles[tile]; }

  void read(const Action& at, Rank rank, int tile) {
    if (written_[rank][tile] && resident_[rank][tile_of(rank, tile).slot] == tile) return;
    diagnostics_.add(at.rank, at.op, "undefined", "reads tile {} of rank {}, which is not there",
                     tile, rank);
  }

  void write(const Action& at, int tile) {
    if (written_[at.rank][tile]) {
      diagnostics_.add(at.rank, at.op, "twice", "writes tile {} again", tile);
    }
    written_[at.rank][tile] = true;
    resident_[at.rank][tile_of(at.rank, tile).slot] = tile;
  }

  void attend(const Action& at, int tile) {
    const int block = tile_of(at.rank, tile).blocks.front();
    const auto layer = static_cast<std::size_t>(layer_of_part(shape_, block));
    if (rank_of_part(shape_, block) != at.rank || attended_[at.rank][layer]) {
      diagnostics_.add(at.rank, at.op, "owner", "attends to the keys of rank {} in layer {}{}",
                       rank_of_part(shape_, block), layer,
                       attended_[at.rank][layer] ? " a second time" : "");
      return;
    }
    attended_[at.rank][layer] = true;
    write(at, tile);
  }

  void merge(const Action& at, const Op& op) {
    const int part = op.views[MergeSumOperand::kPart].tile;
    const int sum = op.views[MergeSumOperand::kSum].tile;
    read(at, at.rank, part);
    const int block = tile_of(at.rank, part).blocks.front();
    int& count = merged_[at.rank][static_cast<std::size_t>(layer_of_part(shape_, block))];
    const bool begins = op.init[kSumSide];
    if (rank_of_part(shape_, block) != count || begins != (count == 0)) {
      diagnostics_.add(at.rank, at.op, "sequence",
                       "{} the part of rank {}; that of rank {} is required{}",
                       begins ? "begins with" : "adds", rank_of_part(shape_, block), count,
                       count == 0 ? " to begin" : "");
      return;
    }
    ++count;
    if (begins) {
      write(at, sum);
    } else {
      read(at, at.rank, sum);
    }
  }

  const World& world_;
  const DecodeShape& shape_;
  Diagnostics& diagnostics_;
  std::vector<std::vector<int>> resident_;   ///< By rank and slot, the tile that is there.
  std::vector<std::vector<bool>> written_;   ///< By rank and tile.
  std::vector<std::vector<int>> merged_;     ///< By rank and layer, parts in the sum.
  std::vector<std::vector<bool>> attended_;  ///< By rank and layer.
};

}  // namespace

std::vector<Diagnostic> check_decode(const World& world, const DecodeShape& shape, int limit) {
  ARMILLARY_CHECK(limit >= 1);
  check_shape(shape);
  Diagnostics diagnostics(limit);
  if (static_cast<int>(world.ranks.size()) != shape.world) {
    diagnostics.add(-1, -1, "caller", "{} programs for a world of {}", world.ranks.size(),
                    shape.world);
  }
  for (const RankProgram& program : world.ranks) {
    if (program.words == &decode_words()) continue;
    diagnostics.add(program.rank, -1, "caller", "the program is not in the words of a decode step");
  }
  if (!diagnostics.empty()) return diagnostics.take();
  // Structure.
  const auto actions =
      check(world, diagnostics, [&](const RankProgram& program, int op, Diagnostics& faults) {
        check_layer(shape, program, op, faults);
      });
  if (!actions) return diagnostics.take();
  for (const RankProgram& program : world.ranks) check_caller(shape, program, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  // Meaning.
  DecodeMeaning meaning(world, shape, diagnostics);
  std::int64_t bytes = 0;
  for (const Action& action : *actions) {
    meaning.run(action);
    if (!diagnostics.empty()) return diagnostics.take();
    if (!action.is_message()) continue;
    const RankProgram& sender = world.ranks[action.from];
    bytes += world.measures.bytes(sender, sender.ops[action.send]);
  }
  meaning.check_end();
  if (diagnostics.empty() && bytes != moved_bytes(shape)) {
    diagnostics.add(-1, -1, "bytes", "{} bytes are sent; {} is required", bytes,
                    moved_bytes(shape));
  }
  return diagnostics.take();
}

}  // namespace armillary::plan::decode
