// words.h: the vocabulary of a relayout: K and V, and the kinds of ops that move them.
//
// Blocks are parts of layers (shape.h), heads are KV heads.
#pragma once

#include <cstdint>

#include "armillary/plan/program/vocabulary.h"

namespace armillary::plan::relayout {

enum class RelayoutTensor : std::uint8_t { K, V };
TensorTag word_tag(RelayoutTensor);
inline constexpr RelayoutTensor kRelayoutTensors[] = {RelayoutTensor::K, RelayoutTensor::V};

/// The kinds of ops, with their operands.
enum class RelayoutOp : std::uint8_t {
  Send,  ///< K and V of one block to their new owner, one message
  Recv,
  Keep,  ///< to | from: K or V of a block whose owner stays
};
KindTag word_tag(RelayoutOp);

struct KeepOperand {
  static constexpr std::size_t kTo = 0, kFrom = 1;
};

const Vocabulary& relayout_words();

}  // namespace armillary::plan::relayout
