// amx-inl.h: AMX tile registers, the few vector operations that only their users need, and packing
// of rows to tiles. Two implementations: instructions, and the emulated set, whose registers are
// thread-local memory, for tests on CPUs without AMX.
//
// Roles of the tiles: 0 to 3 hold accumulators of 16 x 16 floats; 4 and 5 hold rows of 32 bf16 of
// the left factor A; 6 and 7 hold words of two bf16 of the right factor B. One step computes
//
//   tile 0 += A4 B6    tile 1 += A4 B7    tile 2 += A5 B6    tile 3 += A5 B7
//
// Floats are multiplied as sums of three parts: x = x0 + x1 + x2, each a bf16 with the next 8 bits
// of x, so the split is exact. x y = x0 y0 + (x0 y1 + x1 y0) + (x0 y2 + x1 y1 + x2 y0) leaves out
// at most 2^-22 of x y. The tile unit flushes subnormals to 0, so parts below 2^-100 are lost.
// Packed rows come in units of 32; within a unit, all tiles of one part precede those of the next.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#pragma once

#include "armillary/kernel/cpu/bf16_dot-inl.h"
#include "armillary/kernel/cpu/tile_registers.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kSide = 16;                     ///< rows of a tile, and words of a row
constexpr int kTileFloats = kSide * kSide;    ///< 1 KiB
constexpr int kTileHalves = 2 * kTileFloats;  ///< bf16 of a tile
constexpr int kDoubleSide = 2 * kSide;  ///< rows and columns of 2 x 2 tiles, the unit of packing
constexpr int kFloatParts = 3;          ///< bf16 parts that add up to a float

#if defined(ARMILLARY_EMULATED)

// Emulation. The comments of functions here hold for the instructions below as well.
inline thread_local Float g_tiles[8][kSide];

struct TileRegisters {};
template <int kTile>
ARMILLARY_INLINE void tile_load(const void* from) {
  __builtin_memcpy(g_tiles[kTile], from, sizeof g_tiles[kTile]);
}
template <int kTile>
ARMILLARY_INLINE void tile_stream(const void* from) {
  tile_load<kTile>(from);
}
template <int kTile>
ARMILLARY_INLINE void tile_store(float* to) {
  __builtin_memcpy(to, g_tiles[kTile], sizeof g_tiles[kTile]);
}
template <int kTile>
ARMILLARY_INLINE void tile_zero() {
  for (Float& row : g_tiles[kTile]) row = all(0.0f);
}
// Emulated kernels are compiled for few seconds of the compiler; half of their tests' time is spent
// here.
#if defined(__clang__)
#define ARMILLARY_OPTIMISED
#else
#define ARMILLARY_OPTIMISED __attribute__((optimize("O3"), noinline))
#endif
ARMILLARY_OPTIMISED inline void add_products(Float* sum, const Float* a, const Float* b) {
  for (int r = 0; r < kSide; ++r) {
    for (int i = 0; i < kSide; ++i) sum[r] = dot(all(a[r][i]), b[i], sum[r]);
  }
}
template <int kSum, int kA, int kB>
inline void tile_dot() {
  add_products(g_tiles[kSum], g_tiles[kA], g_tiles[kB]);
}

/// x without its lower 16 bits.
ARMILLARY_INLINE Float upper_of(Float x) {
  return (Float)((Int)x & static_cast<std::int32_t>(0xffff0000u));
}
/// Words of the upper halves of two rows: `even` in the lower half, `odd` in the upper half.
ARMILLARY_INLINE Float upper_words(Float even, Float odd) {
  Float words;
  std::uint32_t low[kWidth];
  std::uint32_t high[kWidth];
  __builtin_memcpy(low, &even, sizeof low);
  __builtin_memcpy(high, &odd, sizeof high);
  for (int i = 0; i < kWidth; ++i) high[i] = (high[i] & 0xffff0000u) | low[i] >> 16;
  __builtin_memcpy(&words, high, sizeof words);
  return words;
}
/// The upper half of each element, one after the other: those of `a`, then those of `b`.
ARMILLARY_INLINE Float upper_halves(Float a, Float b) {
  std::uint32_t from[2 * kWidth];
  std::uint16_t halves[2 * kWidth];
  __builtin_memcpy(from, &a, sizeof a);
  __builtin_memcpy(from + kWidth, &b, sizeof b);
  for (int i = 0; i < 2 * kWidth; ++i) halves[i] = static_cast<std::uint16_t>(from[i] >> 16);
  Float words;
  __builtin_memcpy(&words, halves, sizeof words);
  return words;
}
/// Adds half a unit of the upper 16 bits, unless that would give Inf: cutting off the lower bits
/// then rounds to nearest. NaN must have passed through quiet().
ARMILLARY_INLINE Float half_up(Float x) {
  for (int i = 0; i < kWidth; ++i) {
    const float size = __builtin_fabsf(x[i]);
    if (size < 0x1.fep127f) x[i] = ((Float)((Int)x + 0x8000))[i];
  }
  return x;
}
/// x, with a quiet NaN in place of any NaN.
ARMILLARY_INLINE Float quiet(Float x) {
  for (int i = 0; i < kWidth; ++i) x[i] = x[i] != x[i] ? __builtin_nanf("") : x[i];
  return x;
}
/// x, with 0 in place of NaN.
ARMILLARY_INLINE Float number_or_0(Float x) {
  for (int i = 0; i < kWidth; ++i) x[i] = x[i] != x[i] ? 0 : x[i];
  return x;
}

/// x - floor(x); 0 for an infinite x.
ARMILLARY_INLINE Float fraction(Float x) {
  Float y = x;
  for (int i = 0; i < kWidth; ++i) {
    y[i] = __builtin_isinf(x[i]) ? 0 : x[i] - __builtin_floorf(x[i]);
  }
  return y;
}
/// p 2^floor(x)
ARMILLARY_INLINE Float times_power(Float p, Float x) {
  for (int i = 0; i < kWidth; ++i) p[i] *= __builtin_exp2f(__builtin_floorf(x[i]));
  return p;
}
/// Words of two rows of bf16: `even` in the lower half, `odd` in the upper half.
ARMILLARY_INLINE Float words_of(const Bf16* even, const Bf16* odd) {
  std::uint32_t words[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    words[i] = even[i].bits | static_cast<std::uint32_t>(odd[i].bits) << 16;
  }
  Float a;
  __builtin_memcpy(&a, words, sizeof a);
  return a;
}
/// As store_words, for numbers that are not negative; ties are rounded up.
ARMILLARY_INLINE void store_weights(float* x, Float even, Float odd) {
  store_words(x, even, odd);
}
/// Words of two rows, rounded as store(Bf16*) does: correct for subnormals and NaN too.
ARMILLARY_INLINE Float rounded_words(Float even, Float odd) {
  Float words;
  store_words(reinterpret_cast<float*>(&words), even, odd);
  return words;
}
/// Inspects words of two bf16; yes() as long as all of them are finite.
class FiniteWords {
 public:
  ARMILLARY_INLINE void see(Float words) {
    std::uint32_t bits[kWidth];
    __builtin_memcpy(bits, &words, sizeof bits);
    for (const std::uint32_t x : bits) {
      finite_ &= (x & 0x7f800000u) != 0x7f800000u && (x & 0x7f80u) != 0x7f80u;
    }
  }
  bool yes() const { return finite_; }

 private:
  bool finite_ = true;
};
/// x where bit `bit` of `visible` is set, otherwise `hidden`.
ARMILLARY_INLINE Float if_visible(const std::uint32_t* visible, int bit, Float x, Float hidden) {
  for (int i = 0; i < kWidth; ++i) x[i] = (visible[i] >> bit & 1) != 0 ? x[i] : hidden[i];
  return x;
}
/// Whether a lane is above `limit`, or equals `value`.
ARMILLARY_INLINE bool any_above(Float x, float limit) {
  bool any = false;
  for (int i = 0; i < kWidth; ++i) any |= x[i] > limit;
  return any;
}
ARMILLARY_INLINE bool any_equal(Float x, float value) {
  bool any = false;
  for (int i = 0; i < kWidth; ++i) any |= x[i] == value;
  return any;
}
/// Transposes 16 x 16 words in place.
inline void transpose16(Float (&rows)[kSide]) {
  for (int r = 0; r < kSide; ++r) {
    for (int c = 0; c < r; ++c) {
      const float x = rows[r][c];
      rows[r][c] = rows[c][r];
      rows[c][r] = x;
    }
  }
}

#else

// Instructions. All tiles have 16 rows of 64 bytes. Volatile assembly keeps its order among itself
// and, in g++, relative to vector code: the order of the source is that of the instructions, which
// decides what overlaps.
template <int kTile>
ARMILLARY_INLINE void tile_load(const void* from) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(64L), "i"(kTile) : "memory");
}
/// A load that bypasses the first cache level, for data that comes from the second and is used
/// once.
template <int kTile>
ARMILLARY_INLINE void tile_stream(const void* from) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(64L), "i"(kTile) : "memory");
}
template <int kTile>
ARMILLARY_INLINE void tile_store(float* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(64L), "i"(kTile) : "memory");
}
template <int kTile>
ARMILLARY_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kSum, int kA, int kB>
ARMILLARY_INLINE void tile_dot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

ARMILLARY_INLINE Int upper_bits() {
  return _mm512_set1_epi32(static_cast<int>(0xffff0000u));
}
ARMILLARY_INLINE Float upper_of(Float x) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper_bits()));
}
ARMILLARY_INLINE Float upper_words(Float even, Float odd) {
  // (odd & 0xffff0000) | low
  const Int low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(_mm512_castps_si512(odd), low, upper_bits(), 0xec));
}
ARMILLARY_INLINE Float upper_halves(Float a, Float b) {
  const Int lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  // Halves 4 i + 1 and 4 i + 3 of both, as words.
  const Int order = _mm512_add_epi32(_mm512_slli_epi32(lanes, 2), _mm512_set1_epi32(1));
  const Int next = _mm512_slli_epi32(_mm512_add_epi32(order, _mm512_set1_epi32(2)), 16);
  return _mm512_castsi512_ps(_mm512_permutex2var_epi16(
      _mm512_castps_si512(a), _mm512_or_si512(order, next), _mm512_castps_si512(b)));
}
ARMILLARY_INLINE Float half_up(Float x) {
  const Int bits = _mm512_castps_si512(x);
  const __mmask16 small = _mm512_cmp_ps_mask(abs(x), all(0x1.fep127f), _CMP_LT_OQ);
  return _mm512_castsi512_ps(_mm512_mask_add_epi32(bits, small, bits, _mm512_set1_epi32(0x8000)));
}
ARMILLARY_INLINE Float quiet(Float x) {
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_blend_ps(nan, x, _mm512_set1_ps(__builtin_nanf("")));
}
ARMILLARY_INLINE Float number_or_0(Float x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
}
ARMILLARY_INLINE Float fraction(Float x) {
  return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
ARMILLARY_INLINE Float times_power(Float p, Float x) {
  return _mm512_scalef_ps(p, x);
}
ARMILLARY_INLINE Float words_of(const Bf16* even, const Bf16* odd) {
  const auto widened = [](const Bf16* x) ARMILLARY_LAMBDA {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  };
  return _mm512_castsi512_ps(_mm512_or_si512(widened(even), _mm512_slli_epi32(widened(odd), 16)));
}
ARMILLARY_INLINE Float rounded_words(Float even, Float odd) {
  const Int low = _mm512_srli_epi32(rounded_bits(even), 16);
  return _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaau, low, rounded_bits(odd)));
}
class FiniteWords {
 public:
  ARMILLARY_INLINE void see(Float words) {
    const Int magnitude = _mm512_and_si512(_mm512_castps_si512(words), _mm512_set1_epi16(0x7fff));
    most_ = _mm512_max_epu16(most_, magnitude);
  }
  bool yes() const { return _mm512_cmpge_epu16_mask(most_, _mm512_set1_epi16(0x7f80)) == 0; }

 private:
  Int most_ = _mm512_setzero_si512();
};
// Shifts and a logic operation only: shuffles would wait for the execution port that the tile unit
// occupies.
ARMILLARY_INLINE void store_weights(float* x, Float even, Float odd) {
  const Int half = _mm512_set1_epi32(0x8000);
  const Int low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
  const Int high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
  // (high & 0xffff0000) | low
  _mm512_storeu_si512(x, _mm512_ternarylogic_epi32(
                             high, low, _mm512_set1_epi32(static_cast<int>(0xffff0000u)), 0xec));
}
ARMILLARY_INLINE Float if_visible(const std::uint32_t* visible, int bit, Float x, Float hidden) {
  const __mmask16 sees =
      _mm512_test_epi32_mask(_mm512_loadu_si512(visible), _mm512_set1_epi32(1 << bit));
  return _mm512_mask_blend_ps(sees, hidden, x);
}
ARMILLARY_INLINE bool any_above(Float x, float limit) {
  return _mm512_cmp_ps_mask(x, all(limit), _CMP_GT_OQ) != 0;
}
ARMILLARY_INLINE bool any_equal(Float x, float value) {
  return _mm512_cmp_ps_mask(x, all(value), _CMP_EQ_OQ) != 0;
}
ARMILLARY_INLINE void transpose16(Float (&rows)[kSide]) {
  Float a[kSide];
#pragma GCC unroll 8
  for (int i = 0; i < kSide; i += 2) {  // neighbours of two rows
    a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kSide; i += 4) {  // columns 0 to 3 of each 128-bit lane, of four rows
    rows[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    rows[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    rows[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    rows[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // 128-bit lanes to rows
    const Float even01 = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88);
    const Float odd01 = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xdd);
    const Float even23 = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88);
    const Float odd23 = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xdd);
    a[i] = _mm512_shuffle_f32x4(even01, even23, 0x88);
    a[i + 4] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
    a[i + 8] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
    a[i + 12] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) rows[i] = a[i];
}

#endif

// Packing for AMX: rows of a tensor to tiles of bf16, and accumulators to rows.
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
