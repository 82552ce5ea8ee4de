// bf16_dot-inl.h: bf16 multiplied without widening, two terms at once (vdpbf16ps), and its packing.
//
// A word of two bf16 takes the place of a float, so panels, groups and loops are those of floats at
// half the number of terms. In a sum over D or E the two terms are neighbours of a row; in a sum
// over rows they come from rows 2 i and 2 i + 1. Computed factors (weights and their gradients) are
// fp32, and rounded to bf16 once, as a factor of the next product; products and sums are fp32.
#pragma once

#include "armillary/kernel/cpu/micro-inl.h"
#include "armillary/kernel/cpu/pack-inl.h"

#if defined(ARMILLARY_BF16_DOT)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Multiplies words of two bf16; the counterpart of Product.
struct Bf16Product {
  static constexpr int kTerms = 2;
  static ARMILLARY_INLINE Float of(Float a, Float b, Float c) { return dot(a, b, c); }
  static ARMILLARY_INLINE float at(const float* values, int rows, int row, int column) {
    // Rows 2 i and 2 i + 1 share words: the even row has the lower half.
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

/// Whether all elements are finite: the largest magnitude, as an integer, is below that of Inf.
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

/// Rounds elements [begin, end) of a row to bf16 in place: float k becomes half word k of the row.
/// Both ends are multiples of KeySpan::kStep.
ARMILLARY_INLINE void round_row(float* row, int begin, int end) {
  auto* const halves = reinterpret_cast<Bf16*>(row);
  for (int k = begin; k < end; k += 2 * kWidth) {
    store_rounded(halves + k, load(row + k), load(row + k + kWidth));
  }
}

/// Rows as columns of words, copied and not scaled.
inline bool pack_query_words(const Rows& rows, float /*scale*/, int padded, float* packed) {
  constexpr int kColumns = 2 * kPanel;
  for (int begin = 0; begin < rows.width; begin += kColumns, packed += padded * kPanel) {
    const int columns = rows.width - begin < kColumns ? rows.width - begin : kColumns;
    if (columns < kColumns || rows.count < padded) {
      __builtin_memset(packed, 0, sizeof(float) * static_cast<std::size_t>(padded) * kPanel);
    }
    for (int r = 0; r < rows.count; ++r) {
      if (begin == 0) prefetch_row(rows, r + kAhead);
      __builtin_memcpy(packed + r * kPanel, row_of(rows, r) + begin,
                       sizeof(Bf16) * static_cast<std::size_t>(columns));
    }
  }
  return finite(rows);
}

/// Rows as transposed words, two elements at once: the width must be even.
inline bool pack_key_words(const Rows& rows, float* packed) {
  pack_transposed_of<float>(
      {.data = rows.data, .stride = rows.stride / 2, .count = rows.count, .width = rows.width / 2},
      packed);
  return finite(rows);
}

/// Rows as columns of words that hold two rows each: [E / W][padded / 2][W].
inline bool pack_value_words(const Rows& rows, float /*scale*/, int padded, float* packed) {
  static constexpr Bf16 kZeros[kPanel] = {};
  auto* words = reinterpret_cast<std::uint32_t*>(packed);
  for (int begin = 0; begin < rows.width; begin += kPanel) {
    const int columns = rows.width - begin < kPanel ? rows.width - begin : kPanel;
    for (int r = 0; r < padded; r += 2, words += kPanel) {
      if (begin == 0) {
        prefetch_row(rows, r + kAhead);
        prefetch_row(rows, r + 1 + kAhead);
      }
      // Interleave rows r and r + 1; a missing row is zero.
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
