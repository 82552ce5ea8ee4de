// micro-inl.h: the GEMM microkernel of vectors: 6 rows by up to W columns of accumulators, kept in
// registers.
//
// One step loads a row of B, broadcasts one word of each of six rows of A, and adds their products.
// Most of the time of a kernel goes into multiply_add().
#pragma once

#include "armillary/kernel/cpu/simd-inl.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Six rows of `V` vectors, in registers.
template <int V>
using Accumulators = Float[kRows][V];

template <int V>
ARMILLARY_INLINE void clear(Accumulators<V>& c) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) c[r][v] = all(0.0f);
  }
}

/// Offset of element (row, column) in packed columns of `rows` rows.
ARMILLARY_INLINE int in_columns(int rows, int row, int column) {
  return (column / kPanel * rows + row) * kPanel + column % kPanel;
}

/// Multiplies words of one term, which are floats. bf16_dot-inl.h has the same for words of two
/// bf16.
struct Product {
  static constexpr int kTerms = 1;  ///< terms of a word
  /// c plus the products of the words a and b.
  static ARMILLARY_INLINE Float of(Float a, Float b, Float c) { return fma(a, b, c); }
  /// Element (row, column) of packed values of `rows` rows.
  static ARMILLARY_INLINE float at(const float* values, int rows, int row, int column) {
    return values[in_columns(rows, row, column)];
  }
};

/// c += A B over `count` words. Word (r, i) of A is at a[r * kRowStep + i * kWordStep]; row i of B,
/// in a panel, is at b + i * W. Only the first V vectors of the panel are used.
template <class Op, int V, int kRowStep, int kWordStep>
ARMILLARY_INLINE void multiply_add(Accumulators<V>& c, const float* a, const float* b, int count) {
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    Float row[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) row[v] = load(b + v * kWidth);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Float x = all(a[r * kRowStep]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) c[r][v] = Op::of(x, row[v], c[r][v]);
    }
    a += kWordStep;
    b += kPanel;
  }
}

/// The same with A in packed columns of `a_rows` rows, over `width` words.
template <class Op, int V>
ARMILLARY_INLINE void multiply_columns(Accumulators<V>& c, const float* a, int a_rows,
                                       const float* b, int width) {
  for (; width > kPanel; width -= kPanel) {
    multiply_add<Op, V, kPanel, 1>(c, a, b, kPanel);
    a += static_cast<std::ptrdiff_t>(a_rows) * kPanel;
    b += kPanel * kPanel;
  }
  multiply_add<Op, V, kPanel, 1>(c, a, b, width);
}

template <int V>
ARMILLARY_INLINE void multiply_by(Accumulators<V>& c, float factor) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) c[r][v] = mul(c[r][v], all(factor));
  }
}

/// Stores accumulators to rows that are `row_step` floats apart.
template <int V>
ARMILLARY_INLINE void put(const Accumulators<V>& c, float* out, int row_step) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(out + r * row_step + v * kWidth, c[r][v]);
  }
}

/// Adds accumulators to such rows in memory.
template <int V>
ARMILLARY_INLINE void add_to(const Accumulators<V>& c, float* out, int row_step) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      float* const x = out + r * row_step + v * kWidth;
      store(x, add(load(x), c[r][v]));
    }
  }
}

template <int V>
struct Vecs {
  static constexpr int kCount = V;
};

/// Calls f(Vecs<V>()) with the V vectors that the first `columns` of a panel take, so that narrow
/// panels waste no work.
template <class F>
ARMILLARY_INLINE void with_vecs(int columns, F f) {
  if constexpr (kVecs == 4) {
    if (columns > 3 * kWidth) return f(Vecs<4>());
    if (columns > 2 * kWidth) return f(Vecs<3>());
  }
  if (columns > kWidth) return f(Vecs<2>());
  f(Vecs<1>());
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
