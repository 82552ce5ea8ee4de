// amx_pack.h: rows of bf16 as tiles, and tiles of sums as rows.
//
// Letters: X elements of a row, in tens of 32; tiles of 1 KiB one after the other.
//
//   rows        [rows / 16][X / 32]      A: 16 rows of 32 elements        keys for S and dP
//   words       [rows / 32][X / 32][2]   B: 16 pairs of X, of 16 rows     Q and dO for S and dP
//   columns     [rows / 32][X / 16]      A: 16 of X, of 32 rows           V forward, K for dQ
//   row pairs   [rows / 32][X / 16]      B: 16 pairs of rows, of 16 of X  Q and dO for dK and dV
//   queries' sums  [rows / 32][X / 16][2]      16 of X, of 16 rows        out and dQ
//   keys' sums     [rows / 32][X / 32][2][2]   16 rows, of 16 of X        dK and dV
#pragma once

#include "armillary/kernel/cpu/amx.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

ARMILLARY_INLINE int to_pairs(int x) {
  return (x + kPair - 1) / kPair * kPair;
}

/// Elements [first, first + 32) of a row as 16 words; those that it lacks are 0.
ARMILLARY_INLINE Float words_at(const Rows& rows, std::int64_t row, int first) {
  if (row >= rows.count || first >= rows.width) return all(0.0f);
  const Bf16* const x = row_of(rows, row) + first;
  Float words;
  if (rows.width - first >= kPair) {
    __builtin_memcpy(&words, x, sizeof words);
    return words;
  }
  Bf16 part[kPair] = {};
  for (int i = 0; i < rows.width - first; ++i) part[i] = x[i];
  __builtin_memcpy(&words, part, sizeof words);
  return words;
}

/// Elements [first, first + 16) of rows `row` and `row` + 1 as words of two.
ARMILLARY_INLINE Float row_words_at(const Rows& rows, std::int64_t row, int first) {
  if (row + 1 < rows.count && rows.width - first >= kSide) {
    return words_of(row_of(rows, row) + first, row_of(rows, row + 1) + first);
  }
  Bf16 part[2][kSide] = {};
  for (int r = 0; r < 2 && row + r < rows.count; ++r) {
    const int count = rows.width - first < kSide ? rows.width - first : kSide;
    for (int i = 0; i < count; ++i) part[r][i] = row_of(rows, row + r)[first + i];
  }
  return words_of(part[0], part[1]);
}

/// Rows are asked for into the second cache, which has more lines under way than the first.
constexpr int kFarAhead = 64;
ARMILLARY_INLINE void ask_for_far(const Rows& rows, std::int64_t row) {
  if (row + kFarAhead >= rows.count) return;
  const Bf16* const x = row_of(rows, row + kFarAhead);
  for (int i = 0; i < rows.width; i += kPair) __builtin_prefetch(x + i, 0, 2);
}

inline bool pack_tile_rows(const Rows& rows, float* packed) {
  FiniteWords finite;
  for (std::int64_t first = 0; first < rows.count; first += kSide) {
    // Rows are packed in twos of tiles.
    for (int begin = 0; begin < rows.width; begin += kPair) {
      for (int r = 0; r < kSide; ++r, packed += kWidth) {
        if (begin == 0) ask_for_far(rows, first + r);
        const Float words = words_at(rows, first + r, begin);
        finite.see(words);
        store(packed, words);
      }
    }
  }
  if ((rows.count + kSide - 1) / kSide % 2 != 0) {
    const int tiles = to_pairs(rows.width) / kPair;
    for (int i = 0; i < tiles * kTileFloats; i += kWidth) store(packed + i, all(0.0f));
  }
  return finite.yes();
}

inline bool pack_tile_words(const Rows& rows, float /*scale*/, int padded, float* packed) {
  FiniteWords finite;
  for (int first = 0; first < padded; first += kPair) {
    for (int begin = 0; begin < rows.width; begin += kPair) {
      for (int half = 0; half < kPair; half += kSide, packed += kTileFloats) {
        Float tile[kSide];
        for (int r = 0; r < kSide; ++r) {
          if (begin == 0) ask_for_far(rows, first + half + r);
          tile[r] = words_at(rows, first + half + r, begin);
          finite.see(tile[r]);
        }
        transpose16(tile);
        for (int r = 0; r < kSide; ++r) store(packed + r * kWidth, tile[r]);
      }
    }
  }
  return finite.yes();
}

inline bool pack_tile_columns(const Rows& rows, float /*scale*/, int padded, float* packed) {
  FiniteWords finite;
  const int width = to_pairs(rows.width);
  for (int first = 0; first < padded; first += kPair) {
    for (int begin = 0; begin < width; begin += kSide, packed += kTileFloats) {
      Float tile[kSide];
      for (int i = 0; i < kSide; ++i) {
        if (begin == 0) ask_for_far(rows, first + 2 * i);
        if (begin == 0) ask_for_far(rows, first + 2 * i + 1);
        tile[i] = row_words_at(rows, first + 2 * i, begin);
        finite.see(tile[i]);
      }
      transpose16(tile);
      for (int r = 0; r < kSide; ++r) store(packed + r * kWidth, tile[r]);
    }
  }
  return finite.yes();
}

inline bool pack_tile_row_pairs(const Rows& rows, float /*scale*/, int padded, float* packed) {
  FiniteWords finite;
  const int width = to_pairs(rows.width);
  for (int first = 0; first < padded; first += kPair) {
    for (int begin = 0; begin < width; begin += kSide) {
      for (int i = 0; i < kSide; ++i, packed += kWidth) {
        const Float words = row_words_at(rows, first + 2 * i, begin);
        finite.see(words);
        store(packed, words);
      }
    }
  }
  return finite.yes();
}

/// Rows of fp32 as queries' sums.
inline bool pack_tile_sums(const Rows& rows, float /*scale*/, int padded, float* packed) {
  const int width = to_pairs(rows.width);
  for (int first = 0; first < padded; first += kPair) {
    for (int begin = 0; begin < width; begin += kSide) {
      for (int half = 0; half < kPair; half += kSide, packed += kTileFloats) {
        Float tile[kSide];
        for (int r = 0; r < kSide; ++r) {
          const std::int64_t row = first + half + r;
          const int columns = rows.width - begin;
          const float* const x = static_cast<const float*>(rows.data) + row * rows.stride + begin;
          const bool none = row >= rows.count || columns <= 0;
          tile[r] = none ? all(0.0f) : columns < kSide ? load_part(x, columns) : load(x);
        }
        transpose16(tile);
        for (int r = 0; r < kSide; ++r) store(packed + r * kWidth, tile[r]);
      }
    }
  }
  return true;
}

/// Calls visit(row, first column, columns, values) for 16 columns at most of each of `rows` rows of
/// queries' sums.
template <class Visit>
ARMILLARY_INLINE void for_each_row_of(const float* sums, int rows, int width, Visit visit) {
  const int padded_width = to_pairs(width);
  for (int first = 0; first < rows; first += kPair) {
    for (int begin = 0; begin < padded_width; begin += kSide) {
      for (int half = 0; half < kPair; half += kSide, sums += kTileFloats) {
        if (begin >= width || first + half >= rows) continue;
        Float tile[kSide];
        for (int r = 0; r < kSide; ++r) tile[r] = load(sums + r * kWidth);
        transpose16(tile);
        const int count = rows - first - half < kSide ? rows - first - half : kSide;
        const int columns = width - begin < kSide ? width - begin : kSide;
        for (int r = 0; r < count; ++r) visit(first + half + r, begin, columns, tile[r]);
      }
    }
  }
}

/// Where row r, columns [c, c + 16) of keys' sums are; c is a multiple of 16.
ARMILLARY_INLINE int in_key_sums(int width, int r, int c) {
  const int four = r / kPair * (to_pairs(width) / kPair) + c / kPair;
  return ((four * 2 + r / kSide % 2) * 2 + c / kSide % 2) * kTileFloats + r % kSide * kWidth;
}

template <class E>
void write_key_sums(const float* sums, int /*padded*/, int rows, int width, float factor, void* to,
                    std::int64_t stride) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < width; c += kSide) {
      const Float x = mul(load(sums + in_key_sums(width, r, c)), all(factor));
      store_all(static_cast<E*>(to) + r * stride + c, width - c < kSide ? width - c : kSide,
                [&](int) ARMILLARY_LAMBDA { return x; });
    }
  }
}

inline void add_key_sums(const float* sums, int /*padded*/, int rows, int width, float factor,
                         float* grad, std::int64_t stride) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < width; c += kSide) {
      const float* const from = sums + in_key_sums(width, r, c);
      float* const to = grad + r * stride + c;
      const int count = width - c < kSide ? width - c : kSide;
      const Float before = count < kSide ? load_part(to, count) : load(to);
      const Float x = fma(load(from), all(factor), before);
      store_all(to, count, [&](int) ARMILLARY_LAMBDA { return x; });
    }
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
