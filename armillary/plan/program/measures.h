// measures.h: the sizes of the tensors of a world, as numbers, for readers that know no tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/program/dtype.h"
#include "armillary/plan/program/vocabulary.h"

namespace armillary::plan {

/// The size of one tensor: per token, and of all its heads.
struct TensorMeasure {
  int heads = 1;
  std::int64_t dim = 1;            ///< Elements per token and head.
  Dtype dtype = Dtype::F32;        ///< Element type of final and narrow tiles.
  Dtype accumulator = Dtype::F32;  ///< Element type of other partial tiles.
  bool travels_narrow = false;     ///< Its partial tiles may be narrow.
  bool scalar = false;             ///< One number per token and head: tiles have no dim.
};

/// Sizes of all tensors of a vocabulary. Immutable.
class Measures {
 public:
  /// `tensors` by TensorId; `tokens` by side, the tokens of each block. All sizes include `batch`
  /// entries.
  Measures(const Vocabulary& words, std::int64_t batch, std::vector<TensorMeasure> tensors,
           const std::vector<std::vector<std::int64_t>>& tokens);

  const TensorMeasure& operator[](TensorId tensor) const { return tensors_[tensor.number()]; }
  std::int64_t batch() const { return batch_; }
  /// Blocks of the tensor's side.
  int blocks(TensorId tensor) const { return static_cast<int>(before(tensor).size()) - 1; }
  /// Tokens of the listed blocks. Cost: O(runs of the list).
  std::int64_t tokens(TensorId tensor, const BlockIds& ids) const;
  Dtype dtype(const Tile& tile) const {
    const TensorMeasure& measure = (*this)[tile.tensor];
    return tile.partial && !tile.narrow ? measure.accumulator : measure.dtype;
  }
  /// Bytes of a tile. @throws InvalidArgument if they do not fit into 63 bits.
  std::int64_t bytes(const Tile& tile) const;
  /// Bytes of the part of a tile that a view shows, or of all views of a message. Requires tiles
  /// whose bytes fit.
  std::int64_t bytes(const RankProgram& program, const View& view) const;
  std::int64_t bytes(const RankProgram& program, const Op& message) const;

 private:
  const std::vector<std::int64_t>& before(TensorId tensor) const {
    return before_[side_of_[tensor.number()]];
  }

  std::int64_t batch_;
  std::vector<TensorMeasure> tensors_;
  std::vector<std::size_t> side_of_;               ///< By tensor.
  std::vector<std::vector<std::int64_t>> before_;  ///< By side: tokens before each block, and all.
};

/// The programs of all ranks, or of some, with all that is needed to read them.
struct World {
  const Measures& measures;
  const std::vector<RankProgram>& ranks;
  int size = static_cast<int>(ranks.size());  ///< Ranks that there are; peers are below it.
};

}  // namespace armillary::plan
