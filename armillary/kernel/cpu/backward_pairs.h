// backward_pairs.h: the gradient of a tile in pairs of bf16.
//
//   S, dP     words of two neighbours along D and E
//   dV, dK    words of two queries 2 i and 2 i + 1, for each key: P, dS, dO, Q
//   dQ        words of two keys 2 i and 2 i + 1, for each query: dS, K
//
// dS is a factor of both dK and dQ, and so is kept in either order. dq, dk and dv are never
// rounded.
#pragma once

#include "armillary/kernel/cpu/backward_tile.h"
#include "armillary/kernel/cpu/pairs.h"

#if defined(ARMILLARY_PAIRS)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

static_assert(kRows % 2 == 0 && kBackwardQ % 2 == 0);  // both rows of a word see the same span

/// P and dS to bf16. Of rows 2 i and 2 i + 1, the scratch of P then holds words of two queries,
/// those of P and below them those of dS; that of dS holds both rows of dS in words of two keys.
inline void round_pairs(const BackwardTile& t, const Span* spans) {
  const int padded = to_rows(t.pairs.q_rows);
  for (int row = 0; row < padded; row += 2) {
    const Span& span = spans[row / kRows];
    float* const p = t.weights + row * kBackwardLd;
    float* const ds = t.dscores + row * kBackwardLd;
    for (int k = span.first(); k < span.last(); k += kWidth) {
      store_words(p + k, load(p + k), load(p + kBackwardLd + k));
      store_words(p + kBackwardLd + k, load(ds + k), load(ds + kBackwardLd + k));
    }
    round_row(ds, span.first(), span.last());
    round_row(ds + kBackwardLd, span.first(), span.last());
  }
}

inline void backward_pairs(const BackwardTile& t) {
  Span spans[kBackwardGroups];
  find_spans(t.pairs, spans);
  find_weights<PairProduct>(t, spans);
  if (t.pairs.wild) return add_exactly<PairProduct>(t);
  round_pairs(t, spans);
  add_transposed<PairProduct>(t.pairs, spans, t.weights, t.dout_values, t.value_dim, t.dv);
  add_transposed<PairProduct>(t.pairs, spans, t.weights + kBackwardLd, t.q_values, t.head_dim,
                              t.dk);
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
