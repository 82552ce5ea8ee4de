// forward_pairs.h: the forward tile in pairs of bf16.
#pragma once

#include "armillary/kernel/cpu/forward_tile.h"
#include "armillary/kernel/cpu/pairs.h"

#if defined(ARMILLARY_PAIRS)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

inline void round_weights(const ForwardTile& t, const Span* spans) {
  const int padded = (t.pairs.q_rows + kRows - 1) / kRows * kRows;
  for (int row = 0; row < padded; ++row) {
    const Span& span = spans[row / kRows];
    round_row(t.scores + row * kForwardLd, span.first(), span.last());
  }
}

inline void forward_pairs(const ForwardTile& t) {
  Span spans[kForwardGroups];
  find_spans(t.pairs, spans);
  multiply_panels<PairProduct, kForwardLd>(t.pairs, spans, {t.q, t.k, t.head_dim, t.scale},
                                           t.scores);
  softmax(t, spans);
  if (t.pairs.wild) return add_exactly<PairProduct>(t);
  round_weights(t, spans);
  add_values<PairProduct>(t, spans);
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
