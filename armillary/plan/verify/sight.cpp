// Operations on sets of block classes, word by word.
#include "armillary/plan/verify/sight.h"

#include <bit>

namespace armillary::plan::verifier {

int first_missing(const Bits& required, const Bits& bits) {
  for (std::size_t w = 0; w < required.size(); ++w) {
    const std::uint64_t lacks = required[w] & ~bits[w];
    if (lacks != 0) return static_cast<int>(64 * w) + std::countr_zero(lacks);
  }
  return -1;
}

Bits bits_of(const BlockIds& blocks, const Classes& classes) {
  Bits bits(words_for(classes.count()));
  for (const IdRun& run : blocks.runs()) {
    const ClassRange range = classes.within(run);
    for (int c = range.begin; c < range.end; ++c) put(bits, c);
  }
  return bits;
}

}  // namespace armillary::plan::verifier
