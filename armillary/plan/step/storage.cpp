// Tiles at rest and their bytes. Each tensor is sharded from one stage of ZeRO on: state from 1,
// gradients from 2, weights from 3.
#include "armillary/plan/step/storage.h"

#include <algorithm>
#include <utility>

#include "armillary/plan/step/words.h"

namespace armillary::plan::step {
namespace {

/// Bytes of a weight at rest.
std::int64_t weight_bytes(const StepTables& tables, int unit) {
  const ValueBytes& bytes = tables.shape().bytes;
  return tables.zero(unit) == 3 ? bytes.master : bytes.weight;
}

/// Bytes of two moments, and of a master that has memory of its own.
std::int64_t state_bytes(const StepTables& tables, int unit) {
  const ValueBytes& bytes = tables.shape().bytes;
  const bool has_master = tables.zero(unit) < 3 && bytes.weight != bytes.master;
  return (has_master ? 3 : 2) * std::int64_t{bytes.master};
}

Heads shards_from(int first_stage, const StepTables& tables, int unit, Rank rank) {
  return tables.zero(unit) >= first_stage ? tables.own_shard(unit, rank) : tables.all_shards(unit);
}

/// The unit of a tile of weights, gradients or state.
int unit_of(const StepTables& tables, const Tile& tile) {
  return tables.parts()[tile.blocks.front()].unit;
}

/// Weights and states of all units.
std::vector<Tile> parameter_tiles(const StepTables& tables, Rank rank) {
  std::vector<Tile> tiles;
  for (int unit = 0; unit < tables.units(); ++unit) {
    const BlockIds& parts = tables.parts_of(unit);
    if (parts.empty()) continue;
    tiles.push_back({.tensor = StepTensor::Weight,
                     .heads = weight_shards(tables, unit, rank),
                     .blocks = parts});
    tiles.push_back(
        {.tensor = StepTensor::State, .heads = state_shards(tables, unit, rank), .blocks = parts});
  }
  return tiles;
}

}  // namespace

Heads weight_shards(const StepTables& tables, int unit, Rank rank) {
  return shards_from(3, tables, unit, rank);
}

Heads grad_shards(const StepTables& tables, int unit, Rank rank) {
  return shards_from(2, tables, unit, rank);
}

Heads state_shards(const StepTables& tables, int unit, Rank rank) {
  return shards_from(1, tables, unit, rank);
}

std::vector<Tile> input_tiles(const StepTables& tables, Rank rank) {
  std::vector<Tile> tiles = parameter_tiles(tables, rank);
  for (int m = 0; m < tables.shape().microbatches; ++m) {
    tiles.push_back({.tensor = StepTensor::X, .heads = {m, m + 1}, .blocks = {0}});
  }
  return tiles;
}

std::vector<Tile> output_tiles(const StepTables& tables, Rank rank) {
  std::vector<Tile> tiles = parameter_tiles(tables, rank);
  tiles.push_back({.tensor = StepTensor::Loss, .heads = {0, 1}, .blocks = {0}});
  tiles.push_back({.tensor = StepTensor::Norm, .heads = {0, 1}, .blocks = {0}});
  return tiles;
}

bool is_transient(const StepTables& tables, Rank rank, const Tile& tile) {
  if (tile.tensor == StepTensor::Buffer) return true;
  if (tile.tensor == StepTensor::Weight) {
    return tile.heads != weight_shards(tables, unit_of(tables, tile), rank);
  }
  return tile.tensor == StepTensor::Grad &&
         tile.heads != grad_shards(tables, unit_of(tables, tile), rank);
}

std::int64_t bytes_of(const StepTables& tables, Rank rank, const Tile& tile) {
  std::int64_t bytes = tables.shape().bytes.master;
  if (tile.tensor == StepTensor::State || tile.tensor == StepTensor::Buffer) {
    bytes = state_bytes(tables, unit_of(tables, tile));
  } else if (tile.tensor == StepTensor::Weight) {
    const bool rests = !is_transient(tables, rank, tile);
    bytes = rests ? weight_bytes(tables, unit_of(tables, tile)) : tables.shape().bytes.weight;
  } else if (!(tile.tensor == StepTensor::Grad)) {
    return 0;
  }
  std::int64_t total = 0;
  for (const int part : tile.blocks) total += bytes * tables.values(part, rank, tile.heads);
  return total;
}

StepBytes bytes_of(const StepTables& tables, const RankProgram& program) {
  StepBytes bytes;
  for (const Tile& tile : program.tiles) {
    if (is_transient(tables, program.rank, tile)) continue;
    const bool on_host = tile.tensor == StepTensor::State && tables.shape().state_on_host;
    (on_host ? bytes.host : bytes.rest) += bytes_of(tables, program.rank, tile);
  }
  std::vector<bool> is_there(program.tiles.size());
  std::vector<std::int64_t> addends(program.tiles.size());  // By whole gradient.
  std::int64_t now = bytes.peak = bytes.rest;
  for (const Op& op : program.ops) {
    if (op.kind == StepOp::ReduceScatter && !op.init[kUnitSide]) {
      std::int64_t& addend = addends[op.views[ReduceScatterOperand::kAll].tile];
      addend =
          bytes_of(tables, program.rank, program.tiles[op.views[ReduceScatterOperand::kMine].tile]);
      now += addend;
      bytes.peak = std::max(bytes.peak, now);
    }
    if (op.kind == StepOp::Move) {
      // The buffer of a move back is free.
      const int from = op.views[MoveOperand::kFrom].tile;
      if (is_there[from]) now -= bytes_of(tables, program.rank, program.tiles[from]);
      is_there[from] = false;
    }
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      const int id = op.views[v].tile;
      const Tile& tile = program.tiles[id];
      if (!program.words->writes(op, v) || !is_transient(tables, program.rank, tile)) continue;
      const bool stays = !(op.kind == StepOp::Release);
      if (is_there[id] == stays) continue;
      is_there[id] = stays;
      now += (stays ? 1 : -1) * bytes_of(tables, program.rank, tile);
      if (!stays) now -= std::exchange(addends[id], 0);
      bytes.peak = std::max(bytes.peak, now);
    }
  }
  return bytes;
}

std::int64_t resting_bytes(const StepTables& tables, Rank rank) {
  std::int64_t total = 0;
  for (int part = 0; part < static_cast<int>(tables.parts().size()); ++part) {
    const int unit = tables.parts()[part].unit;
    total +=
        weight_bytes(tables, unit) * tables.values(part, rank, weight_shards(tables, unit, rank)) +
        tables.shape().bytes.master * tables.values(part, rank, grad_shards(tables, unit, rank)) +
        state_bytes(tables, unit) * tables.values(part, rank, state_shards(tables, unit, rank));
  }
  return total;
}

std::int64_t host_bytes(const StepTables& tables, Rank rank) {
  std::int64_t total = 0;
  if (!tables.shape().state_on_host) return total;
  for (int part = 0; part < static_cast<int>(tables.parts().size()); ++part) {
    const int unit = tables.parts()[part].unit;
    total +=
        state_bytes(tables, unit) * tables.values(part, rank, state_shards(tables, unit, rank));
  }
  return total;
}

}  // namespace armillary::plan::step
