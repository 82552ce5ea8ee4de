// pairs.h: bf16 multiplied as such, two terms at once (vdpbf16ps), and packed for it.
//
// A word holds two bf16 in place of a float, so blocks, panels and steps are those of floats at
// half the terms. Of a sum over D or E they are neighbours of a row, of a sum over rows those of
// rows 2 i and 2 i + 1. What is computed (weights, their gradients) is fp32, and rounded to bf16
// once, as a factor of the next product; products and sums are fp32.
#pragma once

#include "armillary/kernel/cpu/micro.h"
#include "armillary/kernel/cpu/pack.h"

#if defined(ARMILLARY_PAIRS)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Words of two bf16, as Product.
struct PairProduct {
  static constexpr int kTerms = 2;
  static ARMILLARY_INLINE Float of(Float a, Float b, Float c) { return dot(a, b, c); }
  static ARMILLARY_INLINE float at(const float* values, int rows, int row, int column) {
    std::uint32_t word = 0;
    __builtin_memcpy(&word, values + in_columns(rows / 2, row / 2, column), sizeof word);
    word = row % 2 == 0 ? word << 16 : word & 0xffff0000u;
    float value = 0;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }
};

ARMILLARY_INLINE const Bf16* row_of(const Rows& rows, std::int64_t row) {
  return static_cast<const Bf16*>(rows.data) + row * rows.stride;
}

inline bool finite(const Rows& rows) {
  constexpr std::uint16_t kMagnitude = 0x7fff;
  constexpr std::uint16_t kInfinite = 0x7f80;
  std::uint16_t most = 0;
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const Bf16* const x = row_of(rows, r);
    for (int i = 0; i < rows.width; ++i) {
      const auto magnitude = static_cast<std::uint16_t>(x[i].bits & kMagnitude);
      most = magnitude > most ? magnitude : most;
    }
  }
  return most < kInfinite;
}

/// Elements [begin, end) of a row to bf16 in place: the k-th float becomes the k-th half word. Both
/// ends are those of steps of a Span.
ARMILLARY_INLINE void round_row(float* row, int begin, int end) {
  auto* const halves = reinterpret_cast<Bf16*>(row);
  for (int k = begin; k < end; k += 2 * kWidth) {
    store_rounded(halves + k, load(row + k), load(row + k + kWidth));
  }
}

/// Columns of words; not scaled.
inline bool pack_query_pairs(const Rows& rows, float /*scale*/, int padded, float* packed) {
  constexpr int kColumns = 2 * kPanel;
  for (int begin = 0; begin < rows.width; begin += kColumns, packed += padded * kPanel) {
    const int columns = rows.width - begin < kColumns ? rows.width - begin : kColumns;
    if (columns < kColumns || rows.count < padded) {
      __builtin_memset(packed, 0, sizeof(float) * static_cast<std::size_t>(padded) * kPanel);
    }
    for (int r = 0; r < rows.count; ++r) {
      if (begin == 0) ask_for(rows, r + kAhead);
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
      if (begin == 0) {
        ask_for(rows, r + kAhead);
        ask_for(rows, r + 1 + kAhead);
      }
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

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
