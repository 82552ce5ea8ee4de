// amx.h: tile registers of AMX, and the few vector operations that only their users need.
//
// Tiles 0 to 3 hold sums of 16 x 16 floats, 4 and 5 rows of 32 bf16 of one factor (A), 6 and 7
// words of two bf16 of the other (B): sums 0 += A4 B6, 1 += A4 B7, 2 += A5 B6, 3 += A5 B7.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18. In
// the emulated set registers are plain memory of the thread, for tests on CPUs without AMX.
#pragma once

#include "armillary/kernel/cpu/pairs.h"
#include "armillary/kernel/cpu/tile_registers.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kSide = 16;                     ///< Rows of a tile, and words of a row.
constexpr int kTileFloats = kSide * kSide;    ///< 1 KiB
constexpr int kTileHalves = 2 * kTileFloats;  ///< bf16 of a tile
constexpr int kPair = 2 * kSide;              ///< Rows and columns of two tiles side by side.

#if defined(ARMILLARY_EMULATED)

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
template <int kSum, int kA, int kB>
inline void tile_dot() {
  for (int r = 0; r < kSide; ++r) {
    for (int i = 0; i < kSide; ++i) {
      g_tiles[kSum][r] = dot(all(g_tiles[kA][r][i]), g_tiles[kB][i], g_tiles[kSum][r]);
    }
  }
}

/// x - floor(x), and 0 of an infinite x.
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
/// Words of neighbours: bf16 of `even` in their lower halves, of `odd` in their upper ones.
ARMILLARY_INLINE Float words_of(const Bf16* even, const Bf16* odd) {
  std::uint32_t words[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    words[i] = even[i].bits | static_cast<std::uint32_t>(odd[i].bits) << 16;
  }
  Float a;
  __builtin_memcpy(&a, words, sizeof a);
  return a;
}
/// As store_words, of numbers that are not negative; ties are rounded up.
ARMILLARY_INLINE void store_weights(float* x, Float even, Float odd) {
  store_words(x, even, odd);
}
/// Words of two rows, rounded as store(Bf16*) does, also subnormal floats and NaN.
ARMILLARY_INLINE Float rounded_words(Float even, Float odd) {
  Float words;
  store_words(reinterpret_cast<float*>(&words), even, odd);
  return words;
}
/// Sees words of two bf16; yes() as long as all of them were finite.
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
/// x where bit `bit` of `seen` is set, else `hidden`.
ARMILLARY_INLINE Float if_seen(const std::uint32_t* seen, int bit, Float x, Float hidden) {
  for (int i = 0; i < kWidth; ++i) x[i] = (seen[i] >> bit & 1) != 0 ? x[i] : hidden[i];
  return x;
}
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
/// rows[c][r] = rows[r][c]
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

// Volatile assembly keeps its place among itself and, in g++, among vector code: the order of the
// source is that of the instructions, which decides what overlaps. Tiles of 16 rows of 64 bytes.
template <int kTile>
ARMILLARY_INLINE void tile_load(const void* from) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(64L), "i"(kTile) : "memory");
}
/// A load that leaves the first cache to others: for what comes from the second and is used once.
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
// Shuffles would wait for the tile unit, which takes the port that has them.
ARMILLARY_INLINE void store_weights(float* x, Float even, Float odd) {
  const Int half = _mm512_set1_epi32(0x8000);
  const Int low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
  const Int high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
  // (high & 0xffff0000) | low
  _mm512_storeu_si512(x, _mm512_ternarylogic_epi32(
                             high, low, _mm512_set1_epi32(static_cast<int>(0xffff0000u)), 0xec));
}
ARMILLARY_INLINE Float if_seen(const std::uint32_t* seen, int bit, Float x, Float hidden) {
  const __mmask16 sees =
      _mm512_test_epi32_mask(_mm512_loadu_si512(seen), _mm512_set1_epi32(1 << bit));
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
  for (int i = 0; i < kSide; i += 2) {  // pairs of rows, word by word
    a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kSide; i += 4) {  // columns 0 to 3 of each lane, of four rows
    rows[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    rows[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    rows[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    rows[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // lanes to rows
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

/// 2^x of `N` vectors within 2^-18.5, also of 0 and of what overflows, for weights that are rounded
/// to bf16 (2^-9) at once.
template <int N>
ARMILLARY_INLINE void power_of_two(Float (&x)[N]) {
  Float r[N];
  Float p[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) r[i] = fraction(x[i]);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    p[i] = fma(r[i], all(0x1.bb7cdap-7f), all(0x1.aa13f2p-5f));
    p[i] = fma(p[i], r[i], all(0x1.ee798ap-3f));
    p[i] = fma(p[i], r[i], all(0x1.62d166p-1f));
    p[i] = fma(p[i], r[i], all(0x1.00002cp+0f));
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) x[i] = times_power(p[i], x[i]);
}

/// Nothing is done beside products.
struct Nothing {
  ARMILLARY_INLINE void step() {}
};

/// Four sums in registers that belong to memory: tiles one after the other, in the order of their
/// registers. They are stored one by one beside the first products of the next sums, for a tile
/// that is stored keeps the tile unit waiting.
class PendingSums {
 public:
  explicit PendingSums(float* nowhere) : to_(nowhere), nowhere_(nowhere) {}

  /// Those that are computed next belong to `to`.
  ARMILLARY_INLINE void put(float* to) { to_ = to; }
  template <int kTile>
  ARMILLARY_INLINE void store() const {
    tile_store<kTile>(to_ + kTile * kTileFloats);
  }
  ARMILLARY_INLINE void flush() {
    store<0>();
    store<1>();
    store<2>();
    store<3>();
    to_ = nowhere_;
  }

 private:
  float* to_;
  float* nowhere_;  ///< Four tiles of anything.
};

/// Two neighbouring tiles of a factor, and where the next two of a sum are; in bf16.
struct TilesOf {
  const float* data = nullptr;
  int other = kTileFloats;     ///< To the second tile, in floats.
  int step = 2 * kTileFloats;  ///< To the next term of a sum.
};

template <int kTile>
ARMILLARY_INLINE void begin_sum(const float* from) {
  if (from == nullptr) return tile_zero<kTile>();
  tile_load<kTile>(from + kTile * kTileFloats);
}

/// Which factor comes from the second cache, and is used once for each time that it is loaded.
enum class Streamed : std::uint8_t { A, B };

template <Streamed kStreamed, int kTile>
ARMILLARY_INLINE void load_factor(const float* from) {
  if constexpr ((kTile < 6) == (kStreamed == Streamed::A)) {
    tile_stream<kTile>(from);
  } else {
    tile_load<kTile>(from);
  }
}

/// 2 x 2 tiles of sums += A B, over `steps` terms of 32 elements: of zeros, or of what is at
/// `from`. `beside.step()` is done after each of the 4 `steps` products.
template <Streamed kStreamed, class Beside>
ARMILLARY_INLINE void multiply_tiles(TilesOf a, TilesOf b, int steps, const float* from,
                                     PendingSums& pending, float* to, Beside& beside) {
  for (int i = 0; i < steps; ++i) {
    load_factor<kStreamed, 4>(a.data);
    load_factor<kStreamed, 6>(b.data);
    if (i == 0) pending.store<0>();
    if (i == 0) begin_sum<0>(from);
    tile_dot<0, 4, 6>();
    beside.step();
    load_factor<kStreamed, 7>(b.data + b.other);
    if (i == 0) pending.store<1>();
    if (i == 0) begin_sum<1>(from);
    tile_dot<1, 4, 7>();
    beside.step();
    load_factor<kStreamed, 5>(a.data + a.other);
    if (i == 0) pending.store<2>();
    if (i == 0) begin_sum<2>(from);
    tile_dot<2, 5, 6>();
    beside.step();
    if (i == 0) pending.store<3>();
    if (i == 0) begin_sum<3>(from);
    tile_dot<3, 5, 7>();
    beside.step();
    a.data += a.step;
    b.data += b.step;
  }
  pending.put(to);
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
