// micro.h: the product that all the time goes into: 6 rows by W columns, kept in registers.
#pragma once

#include "armillary/kernel/cpu/simd.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Six rows of `V` vectors.
template <int V>
using Block = Float[kRows][V];

template <int V>
ARMILLARY_INLINE void clear(Block<V>& c) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) c[r][v] = all(0.0f);
  }
}

/// Element (row, column) of packed columns of so many rows.
ARMILLARY_INLINE int in_columns(int rows, int row, int column) {
  return (column / kPanel * rows + row) * kPanel + column % kPanel;
}

/// Words that are floats: one term each. Words of two are PairProduct (pairs.h).
struct Product {
  static constexpr int kTerms = 1;  ///< Terms of a word.
  /// What a word adds.
  static ARMILLARY_INLINE Float of(Float a, Float b, Float c) { return fma(a, b, c); }
  /// Element (row, column) of packed values of so many rows.
  static ARMILLARY_INLINE float at(const float* values, int rows, int row, int column) {
    return values[in_columns(rows, row, column)];
  }
};

/// c += A B over `count` words: word (r, i) of A at a[r * row_step + i * word_step], row i of B,
/// of a panel, at b + i * W.
template <class Op, int V, int kRowStep, int kWordStep>
ARMILLARY_INLINE void multiply_add(Block<V>& c, const float* a, const float* b, int count) {
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
ARMILLARY_INLINE void multiply_columns(Block<V>& c, const float* a, int a_rows, const float* b,
                                       int width) {
  for (; width > kPanel; width -= kPanel) {
    multiply_add<Op, V, kPanel, 1>(c, a, b, kPanel);
    a += static_cast<std::ptrdiff_t>(a_rows) * kPanel;
    b += kPanel * kPanel;
  }
  multiply_add<Op, V, kPanel, 1>(c, a, b, width);
}

template <int V>
ARMILLARY_INLINE void multiply_by(Block<V>& c, float factor) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) c[r][v] = mul(c[r][v], all(factor));
  }
}

template <int V>
ARMILLARY_INLINE void get(Block<V>& c, const float* x, int row_step) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) c[r][v] = load(x + r * row_step + v * kWidth);
  }
}

template <int V>
ARMILLARY_INLINE void put(const Block<V>& c, float* out, int row_step) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(out + r * row_step + v * kWidth, c[r][v]);
  }
}

template <int V>
ARMILLARY_INLINE void add_to(const Block<V>& c, float* out, int row_step) {
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

/// Calls f(Vecs<V>()) with the vectors that the first `columns` of a panel take.
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
