// step_values.h: what tiles hold while a step is run on types. Internal to check_step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/plan/step/words.h"

namespace armillary::plan::step {

/// The contents of a cell.
struct StepValue {
  /// -1: nothing. Weights, state and buffers: the number of updates. All others: 0.
  int version = -1;
  /// The parts of a sum: the axes along which each is still partial; -1: it is not there.
  std::vector<std::int8_t> terms;
  bool is_there() const { return version >= 0; }
  bool operator==(const StepValue&) const = default;
};

/// A cell of a view: the own shard of a block (of a border, all of it), or all other shards.
struct TypedCell {
  int block = 0;
  bool own = true;
  StepValue* value = nullptr;
};
using TypedCells = std::vector<TypedCell>;

/// The tiles of one rank.
class TypedTiles {
 public:
  TypedTiles(const StepTables& tables, const RankProgram& program);

  /// The cells that a view shows. Requires a view that passes the rule `shards`.
  TypedCells cells(const View& view);
  /// True if the tile is the one that is in its slot.
  bool has(int tile) const { return resident_[slot_of(tile)] == tile; }
  /// Puts the tile into its slot. Returns the tile that loses values which must not be lost; -1.
  int put(int tile);
  /// True if some cell of the tile has a value.
  bool holds_values(int tile) const;

 private:
  int slot_of(int tile) const { return program_.tiles[tile].slot; }

  const RankProgram& program_;
  std::vector<int> resident_;                   ///< By slot.
  std::vector<std::vector<StepValue>> values_;  ///< By tile, two for each block.
};

/// An empty sum of the terms that a block of a tensor has.
StepValue empty_value(const StepTables& tables, StepTensor tensor, int block);
/// A term in prose: `microbatch 1 of layer0`.
std::string term_name(const StepTables& tables, StepTensor tensor, int block, std::size_t term);
/// A block in prose: `grad of layer0`, `x2 of microbatch 1`.
std::string block_name(const StepTables& tables, const Tile& tile, int block);

}  // namespace armillary::plan::step
