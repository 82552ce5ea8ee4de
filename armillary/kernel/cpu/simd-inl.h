// simd-inl.h: vectors of floats, as wide as the instruction set of the source that includes this.
//
// Three implementations of the same functions: AVX-512 (with its bf16 dot product if it is
// enabled), AVX2, and vectors of the compiler for any CPU. All other *-inl.h headers are written in
// terms of them.
//
// Each of these headers is compiled once per instruction set, below `#define ARMILLARY_ISA name`.
// Everything that is compiled with the flags of a set lives in the namespace of that set, and no
// template of the standard library is used there: a linker keeps one copy of an inline function,
// and that could be one that the CPU at hand cannot run.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>

#include "armillary/kernel/cpu/isa_kernels.h"

#define ARMILLARY_INLINE inline __attribute__((always_inline))
#define ARMILLARY_LAMBDA __attribute__((always_inline))

namespace armillary::kernel::cpu::ARMILLARY_ISA {

#if defined(__AVX512F__)

// AVX-512: 32 registers of 16 floats.
using Float = __m512;
using Int = __m512i;
constexpr int kWidth = 16;     ///< floats of a vector
constexpr bool kFused = true;  ///< fma rounds once
constexpr int kVecs = 4;       ///< vectors of a row of the microkernel: 6 x 4 accumulators

ARMILLARY_INLINE Float load(const float* x) {
  return _mm512_loadu_ps(x);
}
ARMILLARY_INLINE void store(float* x, Float a) {
  _mm512_storeu_ps(x, a);
}
/// All lanes x.
ARMILLARY_INLINE Float all(float x) {
  return _mm512_set1_ps(x);
}
ARMILLARY_INLINE Float add(Float a, Float b) {
  return _mm512_add_ps(a, b);
}
ARMILLARY_INLINE Float sub(Float a, Float b) {
  return _mm512_sub_ps(a, b);
}
ARMILLARY_INLINE Float mul(Float a, Float b) {
  return _mm512_mul_ps(a, b);
}
ARMILLARY_INLINE Float div(Float a, Float b) {
  return _mm512_div_ps(a, b);
}
/// a b + c; and c - a b.
ARMILLARY_INLINE Float fma(Float a, Float b, Float c) {
  return _mm512_fmadd_ps(a, b, c);
}
ARMILLARY_INLINE Float fnma(Float a, Float b, Float c) {
  return _mm512_fnmadd_ps(a, b, c);
}
/// The larger, or the smaller; b if one of them is NaN.
ARMILLARY_INLINE Float max(Float a, Float b) {
  return _mm512_max_ps(a, b);
}
ARMILLARY_INLINE Float min(Float a, Float b) {
  return _mm512_min_ps(a, b);
}
#define ARMILLARY_SCALES 1  // nearest() and scale_by_power() are one instruction each
/// The nearest integer, ties to even.
ARMILLARY_INLINE Float nearest(Float x) {
  return _mm512_roundscale_ps(x, 0);
}
/// x 2^n for an integer n; an infinite x stays infinite.
ARMILLARY_INLINE Float scale_by_power(Float x, Float n) {
  return _mm512_scalef_ps(x, n);
}
ARMILLARY_INLINE Float abs(Float a) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)));
}
/// The magnitude with the sign of a.
ARMILLARY_INLINE Float sign_of(Float a, Float magnitude) {
  const Int sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_and_si512(_mm512_castps_si512(a), sign),
                                             _mm512_castps_si512(magnitude)));
}
/// then where a < b, otherwise elsewhere, also where one is NaN.
ARMILLARY_INLINE Float if_less(Float a, Float b, Float then, Float otherwise) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, then);
}
/// Sum, and largest, of all lanes.
ARMILLARY_INLINE float sum(Float a) {
  return _mm512_reduce_add_ps(a);
}
ARMILLARY_INLINE float top(Float a) {
  return _mm512_reduce_max_ps(a);
}

// Half floats: widened when loaded, rounded to nearest even when stored.
ARMILLARY_INLINE Float load(const Bf16* x) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
ARMILLARY_INLINE Float load(const Fp16* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
/// Lanes rounded to bf16, in the upper half of each word; a NaN stays a quiet NaN. vcvtneps2bf16 is
/// not used here, since it flushes subnormal floats to zero.
ARMILLARY_INLINE Int rounded_bits(Float a) {
  const Int bits = _mm512_castps_si512(a);
  const Int odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const Int up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const Int quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), up, quiet);
}
ARMILLARY_INLINE void store(Bf16* x, Float a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(a), 16)));
}
ARMILLARY_INLINE void store(Fp16* x, Float a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x),
                      _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#if defined(__AVX512BF16__)
#define ARMILLARY_BF16_DOT 1
/// c plus the products of both halves of words of two bf16.
ARMILLARY_INLINE Float dot(Float a, Float b, Float c) {
  return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
/// Rounds 2 kWidth floats to bf16 and stores them one after the other, those of `a` first.
/// Subnormal floats may become zero.
ARMILLARY_INLINE void store_rounded(Bf16* x, Float a, Float b) {
  _mm512_storeu_si512(x, (Int)_mm512_cvtne2ps_pbh(b, a));
}
/// Stores words of two rows: `even` rounded to bf16 in the lower half, `odd` in the upper half.
ARMILLARY_INLINE void store_words(float* x, Float even, Float odd) {
  const Int halves = (Int)_mm512_cvtne2ps_pbh(odd, even);  // 16 of even, then 16 of odd
  // Interleave: word i takes half i and half i + 16.
  const Int lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const Int upper = _mm512_add_epi32(lanes, _mm512_set1_epi32(kWidth));
  const Int order = _mm512_or_si512(lanes, _mm512_slli_epi32(upper, 16));
  _mm512_storeu_si512(x, _mm512_permutexvar_epi16(order, halves));
}
#endif

#elif defined(__AVX2__)

// AVX2: 16 registers of 8 floats.
using Float = __m256;
using Int = __m256i;
constexpr int kWidth = 8;
constexpr int kVecs = 2;  // 6 x 2 accumulators
constexpr bool kFused = true;

ARMILLARY_INLINE Float load(const float* x) {
  return _mm256_loadu_ps(x);
}
ARMILLARY_INLINE void store(float* x, Float a) {
  _mm256_storeu_ps(x, a);
}
ARMILLARY_INLINE Float all(float x) {
  return _mm256_set1_ps(x);
}
ARMILLARY_INLINE Float add(Float a, Float b) {
  return _mm256_add_ps(a, b);
}
ARMILLARY_INLINE Float sub(Float a, Float b) {
  return _mm256_sub_ps(a, b);
}
ARMILLARY_INLINE Float mul(Float a, Float b) {
  return _mm256_mul_ps(a, b);
}
ARMILLARY_INLINE Float div(Float a, Float b) {
  return _mm256_div_ps(a, b);
}
ARMILLARY_INLINE Float fma(Float a, Float b, Float c) {
  return _mm256_fmadd_ps(a, b, c);
}
ARMILLARY_INLINE Float fnma(Float a, Float b, Float c) {
  return _mm256_fnmadd_ps(a, b, c);
}
ARMILLARY_INLINE Float max(Float a, Float b) {
  return _mm256_max_ps(a, b);
}
ARMILLARY_INLINE Float min(Float a, Float b) {
  return _mm256_min_ps(a, b);
}
/// A float made of the low 9 bits of z as sign and exponent: 2^n if they are n + 127 (math-inl.h).
ARMILLARY_INLINE Float exponent(Float z) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(z), 23));
}
ARMILLARY_INLINE Float abs(Float a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
ARMILLARY_INLINE Float sign_of(Float a, Float magnitude) {
  return _mm256_or_ps(_mm256_and_ps(_mm256_set1_ps(-0.0f), a), magnitude);
}
ARMILLARY_INLINE Float if_less(Float a, Float b, Float then, Float otherwise) {
  return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
ARMILLARY_INLINE float sum(Float a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
ARMILLARY_INLINE float top(Float a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

ARMILLARY_INLINE Float load(const Bf16* x) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
ARMILLARY_INLINE Float load(const Fp16* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
ARMILLARY_INLINE void store(Bf16* x, Float a) {
  const Int bits = _mm256_castps_si256(a);
  const Int odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const Int up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const Int quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const Int nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const Int high = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
  // packus works within each half of 128 bits; the permutation brings the lower words of both
  // together.
  const Int packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(x), _mm256_castsi256_si128(packed));
}
ARMILLARY_INLINE void store(Fp16* x, Float a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(x),
                   _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#else  // portable: vectors of GCC and Clang, in whatever registers the machine has

#if defined(ARMILLARY_EMULATED)  // sizes and bf16 dot product of AVX-512, for tests
#define ARMILLARY_BF16_DOT 1
constexpr int kWidth = 16;
constexpr int kVecs = 4;
#else
constexpr int kWidth = 4;
constexpr int kVecs = 2;
#endif
constexpr bool kFused = false;
using Float = float __attribute__((vector_size(4 * kWidth)));
using Int = std::int32_t __attribute__((vector_size(4 * kWidth)));

ARMILLARY_INLINE Float load(const float* x) {
  Float a;
  __builtin_memcpy(&a, x, sizeof a);
  return a;
}
ARMILLARY_INLINE void store(float* x, Float a) {
  __builtin_memcpy(x, &a, sizeof a);
}
ARMILLARY_INLINE Float all(float x) {
  return x - Float{};  // x - 0 is x, also if x is -0
}
ARMILLARY_INLINE Float add(Float a, Float b) {
  return a + b;
}
ARMILLARY_INLINE Float sub(Float a, Float b) {
  return a - b;
}
ARMILLARY_INLINE Float mul(Float a, Float b) {
  return a * b;
}
ARMILLARY_INLINE Float div(Float a, Float b) {
  return a / b;
}
ARMILLARY_INLINE Float fma(Float a, Float b, Float c) {
  return a * b + c;
}
ARMILLARY_INLINE Float fnma(Float a, Float b, Float c) {
  return c - a * b;
}
ARMILLARY_INLINE Float if_less(Float a, Float b, Float then, Float otherwise) {
  const Int less = a < b;
  return (Float)((less & (Int)then) | (~less & (Int)otherwise));
}
// As on x86: the second operand if one is NaN.
ARMILLARY_INLINE Float max(Float a, Float b) {
  return if_less(b, a, a, b);
}
ARMILLARY_INLINE Float min(Float a, Float b) {
  return if_less(a, b, a, b);
}
ARMILLARY_INLINE Float exponent(Float z) {
  return (Float)((Int)z << 23);
}
ARMILLARY_INLINE Float abs(Float a) {
  return (Float)((Int)a & 0x7fffffff);
}
ARMILLARY_INLINE Float sign_of(Float a, Float magnitude) {
  return (Float)(((Int)a & static_cast<std::int32_t>(0x80000000u)) | (Int)magnitude);
}
ARMILLARY_INLINE float sum(Float a) {
  float x = 0;
  for (int i = 0; i < kWidth; ++i) x += a[i];
  return x;
}
ARMILLARY_INLINE float top(Float a) {
  float x = a[0];
  for (int i = 1; i < kWidth; ++i) x = a[i] > x ? a[i] : x;
  return x;
}

ARMILLARY_INLINE Float load(const Bf16* x) {
  Int bits;
  for (int i = 0; i < kWidth; ++i) bits[i] = static_cast<std::int32_t>(x[i].bits) << 16;
  return (Float)bits;
}
ARMILLARY_INLINE Float load(const Fp16* x) {
  Float a;
  for (int i = 0; i < kWidth; ++i) a[i] = static_cast<float>(x[i]);
  return a;
}

ARMILLARY_INLINE void store(Bf16* x, Float a) {
  for (int i = 0; i < kWidth; ++i) x[i] = Bf16(a[i]);
}
ARMILLARY_INLINE void store(Fp16* x, Float a) {
  for (int i = 0; i < kWidth; ++i) x[i] = Fp16(a[i]);
}

#if defined(ARMILLARY_BF16_DOT)
ARMILLARY_INLINE Float dot(Float a, Float b, Float c) {
  constexpr std::int32_t kHigh = static_cast<std::int32_t>(0xffff0000u);
  // The lower terms first, then the upper ones.
  c = c + (Float)((Int)a << 16) * (Float)((Int)b << 16);
  return c + (Float)((Int)a & kHigh) * (Float)((Int)b & kHigh);
}
ARMILLARY_INLINE void store_rounded(Bf16* x, Float a, Float b) {
  store(x, a);
  store(x + kWidth, b);
}
ARMILLARY_INLINE void store_words(float* x, Float even, Float odd) {
  std::uint32_t words[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    words[i] = Bf16(even[i]).bits | static_cast<std::uint32_t>(Bf16(odd[i]).bits) << 16;
  }
  __builtin_memcpy(x, words, sizeof words);
}
#endif

#endif

constexpr int kRows = 6;                ///< rows of the microkernel
constexpr int kPanel = kVecs * kWidth;  ///< columns of the microkernel: W of isa_kernels.h

/// Rounded up to whole groups of kRows rows, or to whole panels. round_up() of isa_kernels.h is not
/// used in these headers: a linker could keep a copy of it with the flags of this set.
ARMILLARY_INLINE int to_rows(int rows) {
  return (rows + kRows - 1) / kRows * kRows;
}
ARMILLARY_INLINE int to_panels(int columns) {
  return (columns + kPanel - 1) / kPanel * kPanel;
}

/// The first `n` < kWidth elements, then zeros. Reads nothing beyond them.
template <class Element>
ARMILLARY_INLINE Float load_part(const Element* x, int n) {
  Element padded[kWidth] = {};
  for (int i = 0; i < n; ++i) padded[i] = x[i];
  return load(padded);
}
/// Stores the first `n` < kWidth elements, rounded to the dtype.
template <class Element>
ARMILLARY_INLINE void store_part(Element* x, Float a, int n) {
  Element rounded[kWidth];
  store(rounded, a);
  for (int i = 0; i < n; ++i) x[i] = rounded[i];
}
/// Stores `count` elements in whole vectors and a part of one; at(i) gives those from i on.
template <class Element, class At>
ARMILLARY_INLINE void store_all(Element* x, int count, const At& at) {
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) store(x + i, at(i));
  if (i < count) store_part(x + i, at(i), count - i);
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
