// Cells of tiles, and their terms: of a gradient (microbatch, user), of a border the units whose
// values went into it, of the loss microbatches, of the norm parts.
#include "armillary/plan/step/step_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace armillary::plan::step {

TypedTiles::TypedTiles(const StepTables& tables, const RankProgram& program)
    : program_(program), resident_(program.slots.size(), -1) {
  for (const Tile& tile : program.tiles) values_.emplace_back(2 * tile.blocks.size());
  for (const int id : program.inputs) {
    put(id);
    const Tile& tile = program.tiles[id];
    for (const TypedCell& cell : cells({id, tile.heads, tile.blocks})) {
      *cell.value = empty_value(tables, tile.tensor, cell.block);
    }
  }
}

TypedCells TypedTiles::cells(const View& view) {
  TypedCells cells;
  const BlockIds& blocks = program_.tiles[view.tile].blocks;
  for (const int block : view.blocks) {
    const auto place = std::find(blocks.begin(), blocks.end(), block);
    const auto at = 2 * static_cast<std::size_t>(std::distance(blocks.begin(), place));
    cells.push_back({block, true, &values_[view.tile][at]});
    if (view.heads.count() > 1) cells.push_back({block, false, &values_[view.tile][at + 1]});
  }
  return cells;
}

int TypedTiles::put(int tile) {
  const int before = std::exchange(resident_[slot_of(tile)], tile);
  if (before == tile || before < 0) return -1;
  const TensorId tensor = program_.tiles[before].tensor;
  const bool matters = step_words()[tensor].side == kUnitSide && holds_values(before);
  for (StepValue& value : values_[before]) value = {};
  return matters ? before : -1;
}

bool TypedTiles::holds_values(int tile) const {
  return std::ranges::any_of(values_[tile], &StepValue::is_there);
}

StepValue empty_value(const StepTables& tables, StepTensor tensor, int block) {
  std::size_t terms = 0;
  const auto microbatches = static_cast<std::size_t>(tables.shape().microbatches);
  switch (tensor) {
    case StepTensor::Grad:
      terms = microbatches * tables.users_of(tables.parts()[block].unit).size();
      break;
    case StepTensor::X:
      if (block > 0) terms = tables.used_by(block - 1).size();
      break;
    case StepTensor::Dx:
      if (block < tables.units()) terms = tables.used_by(block).size();
      break;
    case StepTensor::Loss:
      terms = microbatches;
      break;
    case StepTensor::Norm:
      terms = tables.parts().size();
      break;
    case StepTensor::Weight:
    case StepTensor::State:
    case StepTensor::Buffer:
      break;
  }
  return {.version = 0, .terms = std::vector<std::int8_t>(terms, -1)};
}

std::string term_name(const StepTables& tables, StepTensor tensor, int block, std::size_t term) {
  const auto unit_name = [&](int unit) { return tables.shape().units[unit].name; };
  switch (tensor) {
    case StepTensor::Grad: {
      const std::vector<int>& users = tables.users_of(tables.parts()[block].unit);
      return fmt::format("microbatch {} of {}", term / users.size(),
                         unit_name(users[term % users.size()]));
    }
    case StepTensor::X:
      return "values of " + unit_name(tables.used_by(block - 1)[term]);
    case StepTensor::Dx:
      return "values of " + unit_name(tables.used_by(block)[term]);
    case StepTensor::Loss:
      return fmt::format("microbatch {}", term);
    default:
      return "gradients of " + unit_name(tables.parts()[term].unit);
  }
}

std::string block_name(const StepTables& tables, const Tile& tile, int block) {
  std::string name(step_words()[tile.tensor].name);
  if (tile.tensor == StepTensor::Loss || tile.tensor == StepTensor::Norm) return name;
  if (step_words()[tile.tensor].side == kUnitSide) {
    return fmt::format("{} of {}", name, tables.shape().units[tables.parts()[block].unit].name);
  }
  return fmt::format("{}{} of microbatch {}", name, block, tile.heads.begin);
}

}  // namespace armillary::plan::step
