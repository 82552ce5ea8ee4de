// pairs.h: the forward tile where bf16 is multiplied as such, two terms at once (vdpbf16ps).
//
// A word holds two bf16 in place of a float, so blocks, panels and steps are those of floats at
// half the terms: neighbours along D in Q and K, keys 2 i and 2 i + 1 in the weights and V. Weights
// are rounded to bf16 once they have been summed; sums and products are fp32.
#pragma once

#include "armillary/kernel/cpu/forward_tile.h"

#if defined(ARMILLARY_PAIRS)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

struct PairProduct {
  static ARMILLARY_INLINE Float of(Float a, Float b, Float c) { return dot(a, b, c); }
};

ARMILLARY_INLINE const Bf16* row_of(const Rows& rows, std::int64_t row) {
  return static_cast<const Bf16*>(rows.data) + row * rows.stride;
}

inline bool finite(const Rows& rows) {
  constexpr unsigned kExponent = 0x7f80;
  unsigned wild = 0;
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const Bf16* const x = row_of(rows, r);
    for (int i = 0; i < rows.width; ++i) wild |= (x[i].bits & kExponent) == kExponent ? 1u : 0u;
  }
  return wild == 0;
}

/// Columns of words; not scaled.
inline bool pack_query_pairs(const Rows& rows, float /*scale*/, int padded, float* packed) {
  constexpr int kColumns = 2 * kPanel;
  for (int begin = 0; begin < rows.width; begin += kColumns, packed += padded * kPanel) {
    const int columns = rows.width - begin < kColumns ? rows.width - begin : kColumns;
    __builtin_memset(packed, 0, sizeof(float) * static_cast<std::size_t>(padded) * kPanel);
    for (int r = 0; r < rows.count; ++r) {
      __builtin_memcpy(packed + r * kPanel, row_of(rows, r) + begin,
                       sizeof(Bf16) * static_cast<std::size_t>(columns));
    }
  }
  return finite(rows);
}

/// Transposed words.
inline bool pack_key_pairs(const Rows& rows, float* packed) {
  pack_transposed_of<float>(
      {.data = rows.data, .stride = rows.stride / 2, .count = rows.count, .width = rows.width / 2},
      packed);
  return finite(rows);
}

/// Columns of words of two rows each: [E / W][padded / 2][W].
inline bool pack_value_pairs(const Rows& rows, float /*scale*/, int padded, float* packed) {
  static constexpr Bf16 kZeros[kPanel] = {};
  auto* words = reinterpret_cast<std::uint32_t*>(packed);
  for (int begin = 0; begin < rows.width; begin += kPanel) {
    const int columns = rows.width - begin < kPanel ? rows.width - begin : kPanel;
    for (int r = 0; r < padded; r += 2, words += kPanel) {
      const Bf16* const even = r < rows.count ? row_of(rows, r) + begin : kZeros;
      const Bf16* const odd = r + 1 < rows.count ? row_of(rows, r + 1) + begin : kZeros;
      for (int c = 0; c < columns; ++c) {
        words[c] = even[c].bits | static_cast<std::uint32_t>(odd[c].bits) << 16;
      }
      for (int c = columns; c < kPanel; ++c) words[c] = 0;
    }
  }
  return finite(rows);
}

/// scores = scale Q K^T
inline void multiply_pairs(const ForwardTile& t, const Span* spans) {
  const int groups = (t.pairs.q_rows + kRows - 1) / kRows;
  const int width = t.head_dim / 2;
  for (int panel = 0; panel < t.pairs.k_rows; panel += kPanel) {
    for (int g = 0; g < groups; ++g) {
      if (!spans[g].touches(panel)) continue;
      Block<kVecs> c;
      clear<kVecs>(c);
      multiply_columns<PairProduct, kVecs>(c, t.q + g * kRows * kPanel, groups * kRows,
                                           t.k + static_cast<std::ptrdiff_t>(panel) * width, width);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) c[r][v] = mul(c[r][v], all(t.scale));
      }
      put<kVecs>(c, t.scores + g * kRows * kForwardLd + panel, kForwardLd);
    }
  }
}

/// Weights of a row to bf16 in place: key k moves to the k-th half word.
inline void round_weights(const ForwardTile& t, const Span* spans) {
  const int padded = (t.pairs.q_rows + kRows - 1) / kRows * kRows;
  for (int row = 0; row < padded; ++row) {
    float* const weights = t.scores + row * kForwardLd;
    auto* const halves = reinterpret_cast<Bf16*>(weights);
    const Span& span = spans[row / kRows];
    for (int k = span.first(); k < span.last(); k += kWidth) {
      store_rounded(halves + k, load(weights + k));
    }
  }
}

inline void add_value_pairs(const ForwardTile& t, const Span* spans) {
  const int groups = (t.pairs.q_rows + kRows - 1) / kRows;
  const int v_words = (t.pairs.k_rows + kPanel - 1) / kPanel * kPanel / 2;
  for (int begin = 0; begin < t.value_dim; begin += kPanel) {
    const float* const v = t.v + static_cast<std::ptrdiff_t>(begin) * v_words;
    float* const out = t.out + begin * groups * kRows;
    with_vecs(t.value_dim - begin, [&](auto vecs) ARMILLARY_LAMBDA {
      constexpr int kCount = decltype(vecs)::kCount;
      for (int g = 0; g < groups; ++g) {
        if (spans[g].empty()) continue;
        const int first = spans[g].first() / 2;
        float* const to = out + g * kRows * kPanel;
        Block<kCount> c;
        get<kCount>(c, to, kPanel);
        multiply_add<PairProduct, kCount, kForwardLd, 1>(
            c, t.scores + g * kRows * kForwardLd + first, v + first * kPanel,
            (spans[g].end + 1) / 2 - first);
        put<kCount>(c, to, kPanel);
      }
    });
  }
}

/// out += weights V without touching hidden pairs; the weights are floats still.
inline void add_value_pairs_exactly(const ForwardTile& t) {
  const int v_words = (t.pairs.k_rows + kPanel - 1) / kPanel * kPanel / 2;
  const auto* const words = reinterpret_cast<const Bf16*>(t.v);
  add_exactly(t, [&](int k, int e) ARMILLARY_LAMBDA {
    const int word = (e / kPanel * v_words + k / 2) * kPanel + e % kPanel;
    const std::uint32_t bits = static_cast<std::uint32_t>(words[2 * word + k % 2].bits) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  });
}

inline void forward_pairs(const ForwardTile& t) {
  Span spans[kForwardGroups];
  find_spans(t.pairs, spans);
  multiply_pairs(t, spans);
  softmax(t, spans);
  if (t.pairs.wild) return add_value_pairs_exactly(t);
  round_weights(t, spans);
  add_value_pairs(t, spans);
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
