// decode_program.h: the exchange of partial results in a decode step, as programs of all ranks. All
// ranks have all queries, and each the keys of some tokens; each attends to its own, sends the
// result to all others, and merges those of all ranks in their order: the same bits everywhere.
//
//            rank 0                                   rank 1
//   step 0   attend(part0) part1<r1 part0>r1          attend(part1) part0<r0 part1>r0
//            merge(sum0 part0):init merge(sum0 part1) merge(sum0 part0):init merge(sum0 part1)
//
// Steps: layers. Sent: (P - 1) tokens heads (dim + 1) accumulator elements a layer and rank;
// nothing grows with the keys, so one plan serves any lengths. Buffers: a part of each rank, those
// of one layer after those of the other.
#pragma once

#include <vector>

#include "armillary/plan/decode/words.h"
#include "armillary/plan/program/measures.h"

namespace armillary::plan::decode {

/// New tokens of all sessions in a step, each with all heads on every rank.
struct DecodeShape {
  int world = 1;
  int layers = 1;
  std::int64_t tokens = 1;
  int heads = 1;
  int value_dim = 64;
  Dtype accumulator = Dtype::F32;
  bool operator==(const DecodeShape&) const = default;
};

/// @throws InvalidArgument for a size below 1.
void check_shape(const DecodeShape& shape);

/// Bytes that all ranks send in a step: the closed form.
std::int64_t moved_bytes(const DecodeShape& shape);

Measures decode_measures(const DecodeShape& shape);

/// The block of a part, and the layer and the rank of a block.
inline int part_block(const DecodeShape& shape, int layer, Rank rank) {
  return layer * shape.world + rank;
}
inline int layer_of_part(const DecodeShape& shape, int block) {
  return block / shape.world;
}
inline Rank rank_of_part(const DecodeShape& shape, int block) {
  return block % shape.world;
}

/// The program of one rank: slot r has the part of rank r, in all layers.
RankProgram rank_program(const DecodeShape& shape, const Measures& measures, Rank rank);

struct Decode {
  DecodeShape shape;
  Measures measures;
  std::vector<RankProgram> ranks;

  /// Refers to this object.
  World world() const { return {measures, ranks}; }
};

/// The programs of all ranks. @throws InvalidArgument as check_shape().
Decode build_decode(const DecodeShape& shape);

}  // namespace armillary::plan::decode
