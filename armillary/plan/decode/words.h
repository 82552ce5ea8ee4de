// words.h: the vocabulary of the exchange in a decode step: partial results of attention, and the
// kinds of ops that make, move and merge them.
//
// Blocks of part are (layer, rank that has the keys), blocks of sum are layers; heads are query
// heads. A part is out and lse, side by side: dim E + 1.
#pragma once

#include <cstdint>

#include "armillary/plan/program/vocabulary.h"

namespace armillary::plan::decode {

enum class DecodeTensor : std::uint8_t { Part, Sum };
TensorTag word_tag(DecodeTensor);

/// The sides: indices into Vocabulary::sides and Op::init.
inline constexpr std::size_t kPartSide = 0;
inline constexpr std::size_t kSumSide = 1;

/// The kinds of ops, with their operands. A bar stands behind those that an op only reads; u: it
/// updates them.
enum class DecodeOp : std::uint8_t {
  Send,
  Recv,
  Attend,  ///< | part: all queries over the keys of this rank
  Merge,   ///< part | u sum: in the order of ranks; the first begins the sum
};
KindTag word_tag(DecodeOp);

struct MergeSumOperand {
  static constexpr std::size_t kSum = 0, kPart = 1;
};

const Vocabulary& decode_words();

}  // namespace armillary::plan::decode
