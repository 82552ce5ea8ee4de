// backward_bf16_dot-inl.h: the gradient of a tile with the bf16 dot product.
//
//   S, dP     words of two neighbours along D and E
//   dV, dK    words of queries 2 i and 2 i + 1, for each key: P, dS, dO, Q
//   dQ        words of keys 2 i and 2 i + 1, for each query: dS, K
//
// dS is a factor of both dK and dQ, and so is kept in both orders. dq, dk and dv are never rounded.
#pragma once

#include "armillary/kernel/cpu/backward_tile-inl.h"
#include "armillary/kernel/cpu/bf16_dot-inl.h"

#if defined(ARMILLARY_BF16_DOT)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

static_assert(kRows % 2 == 0 && kBackwardQ % 2 == 0);  // both rows of a word see the same span

/// Rounds P and dS to bf16, in place. Afterwards rows 2 i and 2 i + 1 of the scratch of P hold
/// words of two queries, of P and of dS; the same rows of the scratch of dS hold words of two keys,
/// of dS.
inline void round_weights(const BackwardTile& t, const KeySpan* spans) {
  const int padded = to_rows(t.pairs.q_rows);
  for (int row = 0; row < padded; row += 2) {
    const KeySpan& span = spans[row / kRows];
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

/// GemmOps::backward for words of two bf16.
inline void backward_bf16_dot(const BackwardTile& t) {
  KeySpan spans[kBackwardGroups];
  find_spans(t.pairs, spans);
  find_weights<Bf16Product>(t, spans);
  if (t.pairs.nonfinite) return add_exactly<Bf16Product>(t);
  round_weights(t, spans);
  add_transposed<Bf16Product>(t.pairs, spans, {t.weights, t.dout_values, t.value_dim, t.dv});
  add_transposed<Bf16Product>(t.pairs, spans,
                              {t.weights + kBackwardLd, t.q_values, t.head_dim, t.dk});
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
