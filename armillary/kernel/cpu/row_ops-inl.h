// row_ops-inl.h: merge, add and delta, row by row, limited by memory and not by arithmetic.
//
// A chunk of up to 64 rows is given by address. merge first computes the weights of all rows of the
// chunk, in vectors of rows, and then combines the rows.
#pragma once

#include "armillary/kernel/cpu/math-inl.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Weights of both sides of kWidth rows, and the log-sum-exp of their sum. a and b are
/// log-sum-exps.
///
///   e = exp(-|a - b|)    1 / (1 + e) for the larger one, e / (1 + e) for the other
///
/// Weights are exactly 1 and 0 where one side is -inf; equal sides, also both -inf, weigh one half.
inline void weigh_sides(const float* a, const float* b, float* weight_a, float* weight_b,
                        float* lse) {
  const Float x = load(a);
  const Float y = load(b);
  Float lead = sub(x, y);
  float leads[kWidth];
  store(leads, lead);
  for (int i = 0; i < kWidth; ++i) {
    if (a[i] == b[i]) leads[i] = 0;  // -inf - -inf would be NaN
  }
  lead = load(leads);
  const Float e = exp(sub(all(0.0f), abs(lead)));
  const Float larger = div(all(1.0f), add(all(1.0f), e));
  const Float smaller = mul(e, larger);
  store(weight_a, if_less(lead, all(0.0f), smaller, larger));
  store(weight_b, if_less(lead, all(0.0f), larger, smaller));
  store(lse, add(if_less(x, y, y, x), log1p(e)));
}

/// out = weight out + other_weight other
template <class E>
void merge_row(float* out, const E* other, float weight, float other_weight, int width) {
  int i = 0;
  for (; i + kWidth <= width; i += kWidth) {
    store(out + i, fma(load(other + i), all(other_weight), mul(load(out + i), all(weight))));
  }
  if (i == width) return;
  float last[kWidth];
  store(last, fma(load_part(other + i, width - i), all(other_weight),
                  mul(load_part(out + i, width - i), all(weight))));
  for (int j = i; j < width; ++j) out[j] = last[j - i];
}

/// IsaKernels::merge for a side `other` of dtype E.
template <class E>
void merge_of(const MergeRows& rows, int width) {
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
    merge_row(rows.out[i], static_cast<const E*>(rows.other_out[i]), weight_a[i], weight_b[i],
              width);
  }
}

/// IsaKernels::add for a part of dtype E.
template <class E>
void add_of(const AddRows& rows, int width) {
  for (int r = 0; r < rows.count; ++r) {
    float* const sum = rows.sum[r];
    const E* const part = static_cast<const E*>(rows.part[r]);
    int i = 0;
    for (; i + kWidth <= width; i += kWidth) store(sum + i, add(load(sum + i), load(part + i)));
    if (i == width) continue;
    float last[kWidth];
    store(last, add(load_part(sum + i, width - i), load_part(part + i, width - i)));
    for (int j = i; j < width; ++j) sum[j] = last[j - i];
  }
}

/// IsaKernels::delta for dout and out of dtype E.
template <class E>
void delta_of(const DeltaRows& rows, int width) {
  for (int r = 0; r < rows.count; ++r) {
    const E* const dout = static_cast<const E*>(rows.dout[r]);
    const E* const out = static_cast<const E*>(rows.out[r]);
    Float total = all(0.0f);
    int i = 0;
    for (; i + kWidth <= width; i += kWidth) total = fma(load(dout + i), load(out + i), total);
    if (i < width)
      total = fma(load_part(dout + i, width - i), load_part(out + i, width - i), total);
    *rows.delta[r] = sum(total);
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
