// forward_bf16_dot-inl.h: the forward tile with the bf16 dot product.
//
// Phases are those of forward_tile-inl.h with words of two bf16. In the usual case a weight is
// rounded to bf16 as it is computed; with features of the score, non-finite values or a scale that
// is not positive, weights are computed as fp32 and rounded in a pass of their own.
#pragma once

#include "armillary/kernel/cpu/bf16_dot-inl.h"
#include "armillary/kernel/cpu/forward_tile-inl.h"

#if defined(ARMILLARY_BF16_DOT)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Makes bf16 weights of scores that still lack `scale`, which is above 0. Weights replace their
/// scores as words; sums are those of weights before rounding.
struct RoundedWeights {
  float scale = 1;
  ARMILLARY_INLINE float operator()(float* row, int first, int last, float base) const {
    // Above it, rounding base log2(e) would err by more than bf16 can tell.
    constexpr float kLargestBase = 0x1p10f;
    if (!(__builtin_fabsf(base) < kLargestBase)) return weigh_first(row, first, last, base);
    // Whole panels, then pairs of vectors.
    Float sums[kVecs];
    for (Float& lane : sums) lane = all(0.0f);
    int k = first;
    for (; k + kPanel <= last; k += kPanel) weigh_some<kVecs>(row, k, base, sums);
    for (; k < last; k += KeySpan::kStep) weigh_some<2>(row, k, base, sums);
    for (int v = 1; v < kVecs; ++v) sums[0] = add(sums[0], sums[v]);
    return sum(sums[0]);
  }

 private:
  /// N vectors of weights from key `k` on, an even number.
  template <int N>
  ARMILLARY_INLINE void weigh_some(float* row, int k, float base, Float* sums) const {
    constexpr float kLog2E = 1.44269504f;
    auto* const halves = reinterpret_cast<Bf16*>(row);
    Float weights[N];
    for (int v = 0; v < N; ++v) {
      weights[v] = fma(load(row + k + v * kWidth), all(scale * kLog2E), all(-base * kLog2E));
    }
    exp2_to_round(weights);
    for (int v = 0; v < N; ++v) sums[v] = add(sums[v], weights[v]);
    for (int v = 0; v < N; v += 2) {
      store_rounded(halves + k + v * kWidth, weights[v], weights[v + 1]);
    }
  }

  /// The same for a large base: scores are scaled first, so that they are rounded as the base was.
  float weigh_first(float* row, int first, int last, float base) const {
    for (int k = first; k < last; k += kWidth) store(row + k, mul(load(row + k), all(scale)));
    const float total = weigh_row(row + first, last - first, base);
    round_row(row, first, last);
    return total;
  }
};

/// GemmOps::forward for words of two bf16.
inline void forward_bf16_dot(const ForwardTile& t) {
  const bool at_once = t.score.plain() && !t.pairs.nonfinite && t.scale > 0;
  for_each_group(t, [&](const Group& group, HiddenKeys& hidden) ARMILLARY_LAMBDA {
    score_group<Bf16Product>(t, group, at_once ? 1 : t.scale);
    if (at_once) {
      softmax(t, group, hidden, RoundedWeights{t.scale});
    } else {
      softmax(t, group, hidden, FloatWeights());
      if (t.pairs.nonfinite) return add_exactly<Bf16Product>(t, group);
      for (int row = 0; row < kRows; ++row) {
        round_row(t.scores + row * kForwardLd, group.span.first(), group.span.last());
      }
    }
    add_values<Bf16Product>(t, group);
  });
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
