// amx_pack-inl.h: packing for AMX: rows of a tensor to tiles of bf16, and accumulators to rows.
//
// X is the number of elements of a row, padded to a multiple of 32. P is the number of parts of an
// element: 1 for bf16, 3 for floats. Tiles of 1 KiB follow one another in these orders:
//
//   rows        [rows / 32][P][2][X / 32]   A: 16 rows of 32 elements        K and V for S and dP
//   words       [rows / 32][P][X / 32][2]   B: 16 words of X, of 16 rows     Q and dO for S and dP
//   columns     [rows / 32][P][X / 16]      A: 16 of X, of 32 rows           V forward, K for dQ
//   row words   [rows / 32][P][X / 16]      B: 16 words of rows, of 16 of X  Q and dO for dK and dV
//   queries' sums  [rows / 32][X / 16][2]      16 of X, of 16 rows        out and dQ
//   keys' sums     [rows / 32][X / 32][2][2]   16 rows, of 16 of X        dK and dV
//
// Queries are columns of accumulators and keys are rows, so accumulators of queries are transposed
// when they are packed or written.
#pragma once

#include "armillary/kernel/cpu/amx-inl.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// x rounded up to a multiple of 32.
ARMILLARY_INLINE int to_double_side(int x) {
  return (x + kDoubleSide - 1) / kDoubleSide * kDoubleSide;
}

template <class E>
ARMILLARY_INLINE const E* elements_of(const Rows& rows, std::int64_t row) {
  return static_cast<const E*>(rows.data) + row * rows.stride;
}

/// `count` elements, at most 16, as floats, then zeros.
template <class E>
ARMILLARY_INLINE Float floats_at(const E* x, int count) {
  if (count <= 0) return all(0.0f);
  return quiet(count < kSide ? load_part(x, count) : load(x));
}

/// Splits two vectors into parts; `join(a, b)` takes the upper halves of what remains. Inputs
/// (`kInput`) are rounded, so that parts have either sign and the products that are left out have
/// no bias; of an input that is not finite, the other parts are 0. Computed factors are cut off
/// instead, which is faster.
template <int kParts, bool kInput, class Join>
ARMILLARY_INLINE void split(Float a, Float b, Float (&parts)[kParts], const Join& join) {
#pragma GCC unroll 4
  for (int i = 0; i < kParts; ++i) {
    if constexpr (kInput) {
      const Float x = half_up(a);
      const Float y = half_up(b);
      parts[i] = join(x, y);
      a = number_or_0(sub(a, upper_of(x)));
      b = number_or_0(sub(b, upper_of(y)));
    } else {
      parts[i] = join(a, b);
      a = sub(a, upper_of(a));
      b = sub(b, upper_of(b));
    }
  }
}
template <bool kInput = false, int kParts>
ARMILLARY_INLINE void split_words(Float even, Float odd, Float (&parts)[kParts]) {
  split<kParts, kInput>(even, odd, parts,
                        [](Float a, Float b) ARMILLARY_LAMBDA { return upper_words(a, b); });
}
template <bool kInput = false, int kParts>
ARMILLARY_INLINE void split_halves(Float a, Float b, Float (&parts)[kParts]) {
  split<kParts, kInput>(a, b, parts,
                        [](Float x, Float y) ARMILLARY_LAMBDA { return upper_halves(x, y); });
}

/// Reads elements of rows as words of two bf16, one word for each part, and checks that they are
/// finite.
template <class E>
struct WordsOf {
  static constexpr int kParts = kFloatParts;

  Finite finite;

  /// Elements [first, first + 32) of a row, times `scale`; missing ones are 0.
  ARMILLARY_INLINE void of_row(const Rows& rows, std::int64_t row, int first,
                               Float (&words)[kParts], float scale = 1) {
    const bool none = row >= rows.count;
    const E* const x = elements_of<E>(rows, none ? 0 : row) + first;
    const int count = none ? 0 : rows.width - first;
    const Float a = mul(floats_at(x, count), all(scale));
    const Float b = mul(floats_at(x + kSide, count - kSide), all(scale));
    finite.see(a);
    finite.see(b);
    split_halves<true>(a, b, words);
  }
  /// Elements [first, first + 16) of rows `row` and `row` + 1, interleaved.
  ARMILLARY_INLINE void of_two_rows(const Rows& rows, std::int64_t row, int first,
                                    Float (&words)[kParts]) {
    const auto at = [&](std::int64_t r) ARMILLARY_LAMBDA {
      const bool none = r >= rows.count;
      return floats_at(elements_of<E>(rows, none ? 0 : r) + first, none ? 0 : rows.width - first);
    };
    const Float even = at(row);
    const Float odd = at(row + 1);
    finite.see(even);
    finite.see(odd);
    split_words<true>(even, odd, words);
  }
};

/// bf16 needs no splitting, and is not scaled.
template <>
struct WordsOf<Bf16> {
  static constexpr int kParts = 1;

  FiniteWords finite;

  ARMILLARY_INLINE void of_row(const Rows& rows, std::int64_t row, int first, Float (&words)[1],
                               float /*scale*/ = 1) {
    words[0] = all(0.0f);
    if (row >= rows.count || first >= rows.width) return;
    const Bf16* const x = elements_of<Bf16>(rows, row) + first;
    if (rows.width - first >= kDoubleSide) {
      __builtin_memcpy(words, x, sizeof words);
    } else {
      Bf16 part[kDoubleSide] = {};
      for (int i = 0; i < rows.width - first; ++i) part[i] = x[i];
      __builtin_memcpy(words, part, sizeof words);
    }
    finite.see(words[0]);
  }
  ARMILLARY_INLINE void of_two_rows(const Rows& rows, std::int64_t row, int first,
                                    Float (&words)[1]) {
    if (row + 1 < rows.count && rows.width - first >= kSide) {
      words[0] =
          words_of(elements_of<Bf16>(rows, row) + first, elements_of<Bf16>(rows, row + 1) + first);
    } else {
      Bf16 part[2][kSide] = {};
      for (int r = 0; r < 2 && row + r < rows.count; ++r) {
        const int count = rows.width - first < kSide ? rows.width - first : kSide;
        for (int i = 0; i < count; ++i) part[r][i] = elements_of<Bf16>(rows, row + r)[first + i];
      }
      words[0] = words_of(part[0], part[1]);
    }
    finite.see(words[0]);
  }
};

/// Prefetches rows 64 ahead into the second cache level, which can have more loads in flight than
/// the first.
constexpr int kFarAhead = 64;
template <class E>
ARMILLARY_INLINE void prefetch_far(const Rows& rows, std::int64_t row) {
  constexpr int kLine = 64 / sizeof(E);
  if (row + kFarAhead >= rows.count) return;
  const E* const x = elements_of<E>(rows, row + kFarAhead);
  for (int i = 0; i < rows.width; i += kLine) __builtin_prefetch(x + i, 0, 2);
}

/// Stores one vector of each part; parts are `part` floats apart.
template <int kParts>
ARMILLARY_INLINE void store_parts(float* to, int part, const Float (&words)[kParts]) {
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) store(to + p * part, words[p]);
}
/// Splits two rows of computed floats, and stores the words of each part.
template <int kParts>
ARMILLARY_INLINE void store_word_parts(float* to, int part, Float even, Float odd) {
  Float words[kParts];
  split_words(even, odd, words);
  store_parts(to, part, words);
}

/// One tile of words for each part, collected row by row and stored transposed.
template <int kParts>
struct PartTiles {
  Float rows[kParts][kSide];

  ARMILLARY_INLINE void put(int row, const Float (&words)[kParts]) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) rows[p][row] = words[p];
  }
  ARMILLARY_INLINE void store_transposed(float* to, int part) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      transpose16(rows[p]);
      for (int r = 0; r < kSide; ++r) store(to + p * part + r * kWidth, rows[p][r]);
    }
  }
};

/// Layout "rows": 32 rows at a time, two tiles high.
template <class E>
bool pack_tile_rows_of(const Rows& rows, float* packed) {
  WordsOf<E> source;
  constexpr int kParts = WordsOf<E>::kParts;
  const int part = to_double_side(rows.width) / kDoubleSide * 2 * kTileFloats;
  for (std::int64_t first = 0; first < rows.count; first += kDoubleSide, packed += kParts * part) {
    float* to = packed;
    for (int half = 0; half < kDoubleSide; half += kSide) {
      for (int begin = 0; begin < rows.width; begin += kDoubleSide) {
        for (int r = 0; r < kSide; ++r, to += kWidth) {
          if (begin == 0) prefetch_far<E>(rows, first + half + r);
          Float words[kParts];
          source.of_row(rows, first + half + r, begin, words);
          store_parts(to, part, words);
        }
      }
    }
  }
  return source.finite.yes();
}

/// Layout "words": tiles of 16 rows, transposed word by word.
template <class E>
bool pack_tile_words_of(const Rows& rows, float scale, int padded, float* packed) {
  WordsOf<E> source;
  constexpr int kParts = WordsOf<E>::kParts;
  const int part = to_double_side(rows.width) / kDoubleSide * 2 * kTileFloats;
  for (int first = 0; first < padded; first += kDoubleSide, packed += kParts * part) {
    float* to = packed;
    for (int begin = 0; begin < rows.width; begin += kDoubleSide) {
      for (int half = 0; half < kDoubleSide; half += kSide, to += kTileFloats) {
        PartTiles<kParts> tiles;
        for (int r = 0; r < kSide; ++r) {
          if (begin == 0) prefetch_far<E>(rows, first + half + r);
          Float words[kParts];
          source.of_row(rows, first + half + r, begin, words, scale);
          tiles.put(r, words);
        }
        tiles.store_transposed(to, part);
      }
    }
  }
  return source.finite.yes();
}

/// Layout "columns": words of two rows, transposed.
template <class E>
bool pack_tile_columns_of(const Rows& rows, int padded, float* packed) {
  WordsOf<E> source;
  constexpr int kParts = WordsOf<E>::kParts;
  const int width = to_double_side(rows.width);
  const int part = width / kSide * kTileFloats;
  for (int first = 0; first < padded; first += kDoubleSide, packed += kParts * part) {
    float* to = packed;
    for (int begin = 0; begin < width; begin += kSide, to += kTileFloats) {
      PartTiles<kParts> tiles;
      for (int i = 0; i < kSide; ++i) {
        if (begin == 0) prefetch_far<E>(rows, first + 2 * i);
        if (begin == 0) prefetch_far<E>(rows, first + 2 * i + 1);
        Float words[kParts];
        source.of_two_rows(rows, first + 2 * i, begin, words);
        tiles.put(i, words);
      }
      tiles.store_transposed(to, part);
    }
  }
  return source.finite.yes();
}

/// Layout "row words": words of two rows as they are.
template <class E>
bool pack_tile_row_words_of(const Rows& rows, int padded, float* packed) {
  WordsOf<E> source;
  constexpr int kParts = WordsOf<E>::kParts;
  const int width = to_double_side(rows.width);
  const int part = width / kSide * kTileFloats;
  for (int first = 0; first < padded; first += kDoubleSide, packed += kParts * part) {
    float* to = packed;
    for (int begin = 0; begin < width; begin += kSide) {
      for (int i = 0; i < kSide; ++i, to += kWidth) {
        Float words[kParts];
        source.of_two_rows(rows, first + 2 * i, begin, words);
        store_parts(to, part, words);
      }
    }
  }
  return source.finite.yes();
}

/// Calls pack(E{}) for the dtype of the rows: bf16 in one part, the others in three.
template <int kParts, class Pack>
ARMILLARY_INLINE bool pack_any(const Rows& rows, const Pack& pack) {
  if constexpr (kParts == 1) {
    return pack(Bf16{});
  } else {
    return rows.element == Element::Float32 ? pack(float{}) : pack(Fp16{});
  }
}

/// GemmOps::pack_keys.
template <int kParts>
bool pack_tile_rows(const Rows& rows, float* packed) {
  return pack_any<kParts>(rows, [&]<class E>(E) { return pack_tile_rows_of<E>(rows, packed); });
}
/// GemmOps::pack_queries; bf16 is not scaled.
template <int kParts>
bool pack_tile_words(const Rows& rows, float scale, int padded, float* packed) {
  return pack_any<kParts>(
      rows, [&]<class E>(E) { return pack_tile_words_of<E>(rows, scale, padded, packed); });
}
/// GemmOps::pack_values; never scaled.
template <int kParts>
bool pack_tile_columns(const Rows& rows, float /*scale*/, int padded, float* packed) {
  return pack_any<kParts>(
      rows, [&]<class E>(E) { return pack_tile_columns_of<E>(rows, padded, packed); });
}
/// GemmOps::pack_query_values; never scaled.
template <int kParts>
bool pack_tile_row_words(const Rows& rows, float /*scale*/, int padded, float* packed) {
  return pack_any<kParts>(
      rows, [&]<class E>(E) { return pack_tile_row_words_of<E>(rows, padded, packed); });
}

/// GemmOps::pack_sums: rows of fp32 as accumulators of queries.
inline bool pack_tile_sums(const Rows& rows, float /*scale*/, int padded, float* packed) {
  const int width = to_double_side(rows.width);
  for (int first = 0; first < padded; first += kDoubleSide) {
    for (int begin = 0; begin < width; begin += kSide) {
      for (int half = 0; half < kDoubleSide; half += kSide, packed += kTileFloats) {
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

/// Calls visit(row, first column, columns, values) for up to 16 columns at a time of each of `rows`
/// rows of accumulators of queries.
template <class Visit>
ARMILLARY_INLINE void for_each_row_of(const float* sums, int rows, int width, Visit visit) {
  const int padded_width = to_double_side(width);
  for (int first = 0; first < rows; first += kDoubleSide) {
    for (int begin = 0; begin < padded_width; begin += kSide) {
      for (int half = 0; half < kDoubleSide; half += kSide, sums += kTileFloats) {
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

/// Offset of row r, columns [c, c + 16) of accumulators of keys; c is a multiple of 16.
ARMILLARY_INLINE int in_key_sums(int width, int r, int c) {
  const int four = r / kDoubleSide * (to_double_side(width) / kDoubleSide) + c / kDoubleSide;
  return ((four * 2 + r / kSide % 2) * 2 + c / kSide % 2) * kTileFloats + r % kSide * kWidth;
}

/// GemmOps::write_sums: rows of E = factor * accumulators of keys.
template <class E>
void write_key_sums(const PackedSums& sums, void* to, std::int64_t stride) {
  const float* const data = sums.data;
  const int width = sums.width;
  const float factor = sums.factor;
  for (int r = 0, rows = sums.rows; r < rows; ++r) {
    for (int c = 0; c < width; c += kSide) {
      const Float x = mul(load(data + in_key_sums(width, r, c)), all(factor));
      store_all(static_cast<E*>(to) + r * stride + c, width - c < kSide ? width - c : kSide,
                [&](int) ARMILLARY_LAMBDA { return x; });
    }
  }
}

/// GemmOps::add_sums: rows of `grad` += factor * accumulators of keys.
inline void add_key_sums(const PackedSums& sums, float* grad, std::int64_t stride) {
  const float* const data = sums.data;
  const int width = sums.width;
  const float factor = sums.factor;
  for (int r = 0, rows = sums.rows; r < rows; ++r) {
    for (int c = 0; c < width; c += kSide) {
      const float* const from = data + in_key_sums(width, r, c);
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
