// merge_rows.h: the merge of two partials, row by row: as fast as memory.
#pragma once

#include "armillary/kernel/cpu/math.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// What the rows of both sides weigh, and the log-sum-exp of their sum.
///
///   e = exp(-|a - b|)    1 / (1 + e) for the larger one, e / (1 + e) for the other
///
/// Exactly 1 and 0 where one side is -inf; equal sides, -inf too, weigh one half.
inline void weigh_sides(const float* a, const float* b, float* weight_a, float* weight_b,
                        float* lse) {
  const Float x = load(a);
  const Float y = load(b);
  Float lead = sub(x, y);
  float leads[kWidth];
  store(leads, lead);
  for (int i = 0; i < kWidth; ++i) {
    if (a[i] == b[i]) leads[i] = 0;  // -inf - -inf is NaN
  }
  lead = load(leads);
  const Float e = exp(sub(all(0.0f), abs(lead)));
  const Float larger = div(all(1.0f), add(all(1.0f), e));
  const Float smaller = mul(e, larger);
  store(weight_a, if_less(lead, all(0.0f), smaller, larger));
  store(weight_b, if_less(lead, all(0.0f), larger, smaller));
  store(lse, add(if_less(x, y, y, x), log1p(e)));
}

inline void merge_row(float* out, const float* other, float weight, float other_weight, int width) {
  int i = 0;
  for (; i + kWidth <= width; i += kWidth) {
    store(out + i, fma(load(other + i), all(other_weight), mul(load(out + i), all(weight))));
  }
  for (; i < width; ++i) out[i] = out[i] * weight + other[i] * other_weight;
}

inline void merge(const MergeRows& rows, int width) {
  constexpr int kCount = MergeRows::kCount;
  float a[kCount] = {};
  float b[kCount] = {};
  float weight_a[kCount];
  float weight_b[kCount];
  float lse[kCount];
  for (int i = 0; i < rows.count; ++i) {
    a[i] = *rows.lse[i];
    b[i] = *rows.other_lse[i];
  }
  for (int i = 0; i < rows.count; i += kWidth) {
    weigh_sides(a + i, b + i, weight_a + i, weight_b + i, lse + i);
  }
  for (int i = 0; i < rows.count; ++i) {
    *rows.lse[i] = lse[i];
    merge_row(rows.out[i], rows.other_out[i], weight_a[i], weight_b[i], width);
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
