// measures.cpp: sizes from prefix sums of the tokens of blocks, made once for each side.
#include "armillary/plan/program/measures.h"

#include <utility>

#include "armillary/core/checked.h"

namespace armillary::plan {

Measures::Measures(const Vocabulary& words, std::int64_t batch, std::vector<TensorMeasure> tensors,
                   const std::vector<std::vector<std::int64_t>>& tokens)
    : batch_(batch), tensors_(std::move(tensors)) {
  for (const TensorWord& tensor : words.tensors) side_of_.push_back(tensor.side);
  for (const std::vector<std::int64_t>& side : tokens) {
    std::vector<std::int64_t>& sums = before_.emplace_back(1, 0);
    for (const std::int64_t of_block : side) sums.push_back(sums.back() + of_block);
  }
}

// A run of ids is the difference of two prefix sums.
std::int64_t Measures::tokens(TensorId tensor, const BlockIds& ids) const {
  const std::vector<std::int64_t>& sums = before(tensor);
  std::int64_t total = 0;
  for (const IdRun& run : ids.runs()) total += sums[run.last + 1] - sums[run.first];
  return total;
}

std::int64_t Measures::bytes(const Tile& tile) const {
  return checked_product("plan: bytes of a tile",
                         {batch_, tokens(tile.tensor, tile.blocks), tile.heads.count(),
                          (*this)[tile.tensor].dim, bytes_of(dtype(tile))});
}

std::int64_t Measures::bytes(const RankProgram& program, const View& view) const {
  const Tile& tile = program.tiles[view.tile];
  // A view is a part of its tile, whose bytes fit, so this product needs no check.
  return batch_ * tokens(tile.tensor, view.blocks) * view.heads.count() * (*this)[tile.tensor].dim *
         bytes_of(dtype(tile));
}

std::int64_t Measures::bytes(const RankProgram& program, const Op& message) const {
  std::int64_t total = 0;
  for (const View& view : message.views) total += bytes(program, view);
  return total;
}

}  // namespace armillary::plan
