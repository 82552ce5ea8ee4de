// amx-inl.h: AMX tile registers, and the few vector operations that only their users need. Two
// implementations: instructions, and the emulated set, whose registers are thread-local memory, for
// tests on CPUs without AMX.
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
// Emulated kernels are compiled for few seconds of the compiler; half of their tests' time is spent here.
__attribute__((optimize("O3"), noinline)) inline void add_products(Float* sum, const Float* a, const Float* b) {
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

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
