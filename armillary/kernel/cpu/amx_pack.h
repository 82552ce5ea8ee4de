// amx_pack.h: rows as tiles of bf16, and tiles of sums as rows.
//
// Letters: X elements of a row, in tens of 32; P parts of an element: 1 of bf16, 3 of floats; tiles
// of 1 KiB one after the other.
//
//   rows        [rows / 32][P][2][X / 32]   A: 16 rows of 32 elements        keys for S and dP
//   words       [rows / 32][P][X / 32][2]   B: 16 pairs of X, of 16 rows     Q and dO for S and dP
//   columns     [rows / 32][P][X / 16]      A: 16 of X, of 32 rows           V forward, K for dQ
//   row pairs   [rows / 32][P][X / 16]      B: 16 pairs of rows, of 16 of X  Q and dO for dK and dV
//   queries' sums  [rows / 32][X / 16][2]      16 of X, of 16 rows        out and dQ
//   keys' sums     [rows / 32][X / 32][2][2]   16 rows, of 16 of X        dK and dV
#pragma once

#include "armillary/kernel/cpu/amx.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

ARMILLARY_INLINE int to_pairs(int x) {
  return (x + kPair - 1) / kPair * kPair;
}

template <class E>
ARMILLARY_INLINE const E* elements_of(const Rows& rows, std::int64_t row) {
  return static_cast<const E*>(rows.data) + row * rows.stride;
}

/// `count` elements, at most 16, as floats; then zeros.
template <class E>
ARMILLARY_INLINE Float floats_at(const E* x, int count) {
  if (count <= 0) return all(0.0f);
  return quiet(count < kSide ? load_part(x, count) : load(x));
}

/// Parts of two vectors: `join(a, b)` of what is left of them. Inputs (`kInput`) are rounded to
/// parts of either sign, so that what products leave out has no sign of its own, and those that are
/// not finite have one part. What is computed is cut off, which is faster.
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

/// Elements of rows as words of two bf16, a word for each part.
template <class E>
struct WordsOf {
  static constexpr int kParts = kFloatParts;

  Finite finite;

  /// Elements [first, first + 32) of a row; those that it lacks are 0.
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
  /// Elements [first, first + 16) of rows `row` and `row` + 1.
  ARMILLARY_INLINE void of_row_pair(const Rows& rows, std::int64_t row, int first,
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

template <>
struct WordsOf<Bf16> {
  static constexpr int kParts = 1;

  FiniteWords finite;

  ARMILLARY_INLINE void of_row(const Rows& rows, std::int64_t row, int first, Float (&words)[1],
                               float /*scale*/ = 1) {
    words[0] = all(0.0f);
    if (row >= rows.count || first >= rows.width) return;
    const Bf16* const x = elements_of<Bf16>(rows, row) + first;
    if (rows.width - first >= kPair) {
      __builtin_memcpy(words, x, sizeof words);
    } else {
      Bf16 part[kPair] = {};
      for (int i = 0; i < rows.width - first; ++i) part[i] = x[i];
      __builtin_memcpy(words, part, sizeof words);
    }
    finite.see(words[0]);
  }
  ARMILLARY_INLINE void of_row_pair(const Rows& rows, std::int64_t row, int first,
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

/// Rows are asked for into the second cache, which has more lines under way than the first.
constexpr int kFarAhead = 64;
template <class E>
ARMILLARY_INLINE void ask_for_far(const Rows& rows, std::int64_t row) {
  constexpr int kLine = 64 / sizeof(E);
  if (row + kFarAhead >= rows.count) return;
  const E* const x = elements_of<E>(rows, row + kFarAhead);
  for (int i = 0; i < rows.width; i += kLine) __builtin_prefetch(x + i, 0, 2);
}

template <int kParts>
ARMILLARY_INLINE void store_parts(float* to, int part, const Float (&words)[kParts]) {
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) store(to + p * part, words[p]);
}
/// Parts of two rows as words, `part` floats apart.
template <int kParts>
ARMILLARY_INLINE void store_word_parts(float* to, int part, Float even, Float odd) {
  Float words[kParts];
  split_words(even, odd, words);
  store_parts(to, part, words);
}

/// A tile of words for each part, and where it is stored: parts are `part` floats apart.
template <int kParts>
struct PartTiles {
  Float rows[kParts][kSide];

  ARMILLARY_INLINE void put(int row, const Float (&words)[kParts]) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) rows[p][row] = words[p];
  }
  ARMILLARY_INLINE void store_turned(float* to, int part) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      transpose16(rows[p]);
      for (int r = 0; r < kSide; ++r) store(to + p * part + r * kWidth, rows[p][r]);
    }
  }
};

template <class E>
bool pack_tile_rows_of(const Rows& rows, float* packed) {
  WordsOf<E> source;
  constexpr int kParts = WordsOf<E>::kParts;
  const int part = to_pairs(rows.width) / kPair * 2 * kTileFloats;
  for (std::int64_t first = 0; first < rows.count; first += kPair, packed += kParts * part) {
    float* to = packed;
    for (int half = 0; half < kPair; half += kSide) {
      for (int begin = 0; begin < rows.width; begin += kPair) {
        for (int r = 0; r < kSide; ++r, to += kWidth) {
          if (begin == 0) ask_for_far<E>(rows, first + half + r);
          Float words[kParts];
          source.of_row(rows, first + half + r, begin, words);
          store_parts(to, part, words);
        }
      }
    }
  }
  return source.finite.yes();
}

template <class E>
bool pack_tile_words_of(const Rows& rows, float scale, int padded, float* packed) {
  WordsOf<E> source;
  constexpr int kParts = WordsOf<E>::kParts;
  const int part = to_pairs(rows.width) / kPair * 2 * kTileFloats;
  for (int first = 0; first < padded; first += kPair, packed += kParts * part) {
    float* to = packed;
    for (int begin = 0; begin < rows.width; begin += kPair) {
      for (int half = 0; half < kPair; half += kSide, to += kTileFloats) {
        PartTiles<kParts> tiles;
        for (int r = 0; r < kSide; ++r) {
          if (begin == 0) ask_for_far<E>(rows, first + half + r);
          Float words[kParts];
          source.of_row(rows, first + half + r, begin, words, scale);
          tiles.put(r, words);
        }
        tiles.store_turned(to, part);
      }
    }
  }
  return source.finite.yes();
}

template <class E>
bool pack_tile_columns_of(const Rows& rows, int padded, float* packed) {
  WordsOf<E> source;
  constexpr int kParts = WordsOf<E>::kParts;
  const int width = to_pairs(rows.width);
  const int part = width / kSide * kTileFloats;
  for (int first = 0; first < padded; first += kPair, packed += kParts * part) {
    float* to = packed;
    for (int begin = 0; begin < width; begin += kSide, to += kTileFloats) {
      PartTiles<kParts> tiles;
      for (int i = 0; i < kSide; ++i) {
        if (begin == 0) ask_for_far<E>(rows, first + 2 * i);
        if (begin == 0) ask_for_far<E>(rows, first + 2 * i + 1);
        Float words[kParts];
        source.of_row_pair(rows, first + 2 * i, begin, words);
        tiles.put(i, words);
      }
      tiles.store_turned(to, part);
    }
  }
  return source.finite.yes();
}

template <class E>
bool pack_tile_row_pairs_of(const Rows& rows, int padded, float* packed) {
  WordsOf<E> source;
  constexpr int kParts = WordsOf<E>::kParts;
  const int width = to_pairs(rows.width);
  const int part = width / kSide * kTileFloats;
  for (int first = 0; first < padded; first += kPair, packed += kParts * part) {
    float* to = packed;
    for (int begin = 0; begin < width; begin += kSide) {
      for (int i = 0; i < kSide; ++i, to += kWidth) {
        Float words[kParts];
        source.of_row_pair(rows, first + 2 * i, begin, words);
        store_parts(to, part, words);
      }
    }
  }
  return source.finite.yes();
}

/// `pack` of the dtype of rows, called as pack(E{}): bf16 in one part, the others in three.
template <int kParts, class Pack>
ARMILLARY_INLINE bool pack_any(const Rows& rows, const Pack& pack) {
  if constexpr (kParts == 1) {
    return pack(Bf16{});
  } else {
    return rows.element == Element::Float32 ? pack(float{}) : pack(Fp16{});
  }
}

template <int kParts>
bool pack_tile_rows(const Rows& rows, float* packed) {
  return pack_any<kParts>(rows, [&]<class E>(E) { return pack_tile_rows_of<E>(rows, packed); });
}
/// Times the scale, but for bf16.
template <int kParts>
bool pack_tile_words(const Rows& rows, float scale, int padded, float* packed) {
  return pack_any<kParts>(
      rows, [&]<class E>(E) { return pack_tile_words_of<E>(rows, scale, padded, packed); });
}
template <int kParts>
bool pack_tile_columns(const Rows& rows, float /*scale*/, int padded, float* packed) {
  return pack_any<kParts>(
      rows, [&]<class E>(E) { return pack_tile_columns_of<E>(rows, padded, packed); });
}
template <int kParts>
bool pack_tile_row_pairs(const Rows& rows, float /*scale*/, int padded, float* packed) {
  return pack_any<kParts>(
      rows, [&]<class E>(E) { return pack_tile_row_pairs_of<E>(rows, padded, packed); });
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
