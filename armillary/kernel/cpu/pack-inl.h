// pack-inl.h: packing: rows of a tensor, of any dtype and stride, to packed fp32 columns or
// transposed panels (isa_kernels.h); and accumulators back to rows.
//
// Packing also finds out whether all elements are finite, by adding up 0 * x: the sum is 0 unless
// an element is NaN or Inf. Rows are prefetched, since the rows of one head are far apart in
// memory.
#pragma once

#include "armillary/kernel/cpu/simd-inl.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Sum of 0 * x over all elements seen: 0 as long as all of them are finite, else NaN.
struct Finite {
  Float zero = all(0.0f);
  ARMILLARY_INLINE void see(Float x) { zero = fma(x, all(0.0f), zero); }
  bool yes() const { return sum(zero) == 0; }
};

/// Prefetches row `row`; callers are kAhead rows behind. The hardware prefetcher does not guess
/// rows of a head, which are a whole token apart.
constexpr int kAhead = 16;
ARMILLARY_INLINE void prefetch_row(const Rows& rows, std::int64_t row) {
  if (row >= rows.count) return;
  const std::int64_t size = rows.element == Element::Float32 ? 4 : 2;
  const char* const x = static_cast<const char*>(rows.data) + row * rows.stride * size;
  for (std::int64_t i = 0; i < rows.width * size; i += 64) __builtin_prefetch(x + i);
}

/// Packs columns of E, times `scale`, panel by panel. Padding rows and columns are 0.
template <class E>
bool pack_columns_of(const Rows& rows, float scale, int padded, float* packed) {
  Finite finite;
  const int count = static_cast<int>(rows.count);
  for (int begin = 0; begin < rows.width; begin += kPanel, packed += padded * kPanel) {
    const int columns = rows.width - begin < kPanel ? rows.width - begin : kPanel;
    for (int r = 0; r < count; ++r) {
      // The first panel brings whole rows into the caches.
      if (begin == 0) prefetch_row(rows, r + kAhead);
      const E* from = static_cast<const E*>(rows.data) + r * rows.stride + begin;
      float* to = packed + r * kPanel;
      for (int c = 0; c < kPanel; c += kWidth) {
        Float x = all(0.0f);
        if (c + kWidth <= columns) {
          x = load(from + c);
        } else if (c < columns) {
          x = load_part(from + c, columns - c);
        }
        finite.see(x);
        store(to + c, mul(x, all(scale)));
      }
    }
    // Padding rows.
    for (int i = count * kPanel; i < padded * kPanel; i += kWidth) store(packed + i, all(0.0f));
  }
  return finite.yes();
}

#if defined(__AVX2__)

/// Eight elements of any dtype as floats.
ARMILLARY_INLINE __m256 load8(const float* x) {
  return _mm256_loadu_ps(x);
}
ARMILLARY_INLINE __m256 load8(const Bf16* x) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
ARMILLARY_INLINE __m256 load8(const Fp16* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}

/// Writes the transpose of 8 x 8 elements; its rows are kPanel floats apart. Three stages of
/// shuffles: neighbours, fours, halves of vectors.
template <class E>
ARMILLARY_INLINE void transpose8(const E* from, std::int64_t stride, float* to, __m256& finite) {
  __m256 a[8];
  __m256 b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[i] = load8(from + i * stride);
    finite = _mm256_fmadd_ps(a[i], _mm256_setzero_ps(), finite);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * kPanel, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * kPanel, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}

/// Elements that are transposed at once are kCorner x kCorner.
constexpr int kCorner = 8;
struct FiniteCorner {
  __m256 zero = _mm256_setzero_ps();
  bool yes() const {
    return _mm256_movemask_ps(_mm256_cmp_ps(zero, _mm256_setzero_ps(), _CMP_NEQ_UQ)) == 0;
  }
};
template <class E>
ARMILLARY_INLINE void transpose(const E* from, std::int64_t stride, float* to,
                                FiniteCorner& finite) {
  transpose8(from, stride, to, finite.zero);
}

#else

/// The same element by element, for sets without AVX2.
constexpr int kCorner = kWidth;
using FiniteCorner = Finite;
template <class E>
ARMILLARY_INLINE void transpose(const E* from, std::int64_t stride, float* to,
                                FiniteCorner& finite) {
  for (int r = 0; r < kCorner; ++r) {
    const Float x = load(from + r * stride);
    finite.see(x);
    for (int c = 0; c < kCorner; ++c) to[c * kPanel + r] = x[c];
  }
}

#endif

/// Packs transposed panels of E: each panel has W rows as columns. Missing rows and columns of the
/// last panel are 0.
template <class E>
bool pack_transposed_of(const Rows& rows, float* packed) {
  FiniteCorner finite;
  for (std::int64_t first = 0; first < rows.count; first += kPanel, packed += rows.width * kPanel) {
    for (int r = 0; r < kPanel; r += kCorner) {
      const std::int64_t left = rows.count - first - r;
      const E* from = static_cast<const E*>(rows.data) + (first + r) * rows.stride;
      for (int i = 0; i < kCorner; ++i) prefetch_row(rows, first + r + i + kAhead);
      for (int c = 0; c < rows.width; c += kCorner) {
        const int columns = rows.width - c;
        float* const to = packed + c * kPanel + r;
        if (left >= kCorner && columns >= kCorner) {
          transpose(from + c, rows.stride, to, finite);
          continue;
        }
        // The last corner of a row or column is incomplete: copy what exists, and transpose the
        // copy.
        E part[kCorner * kCorner] = {};
        float transposed[kCorner * kPanel];
        for (int i = 0; i < kCorner && i < left; ++i) {
          for (int j = 0; j < kCorner && j < columns; ++j) {
            part[i * kCorner + j] = from[i * rows.stride + c + j];
          }
        }
        transpose(part, kCorner, transposed, finite);
        for (int j = 0; j < kCorner && j < columns; ++j) {
          for (int i = 0; i < kCorner; ++i) to[j * kPanel + i] = transposed[j * kPanel + i];
        }
      }
    }
  }
  return finite.yes();
}

/// GemmOps::pack_queries, pack_values, pack_query_values and pack_sums for words of one term.
inline bool pack_columns(const Rows& rows, float scale, int padded, float* packed) {
  switch (rows.element) {
    case Element::Float32:
      return pack_columns_of<float>(rows, scale, padded, packed);
    case Element::BFloat16:
      return pack_columns_of<Bf16>(rows, scale, padded, packed);
    default:
      return pack_columns_of<Fp16>(rows, scale, padded, packed);
  }
}

/// GemmOps::pack_keys for words of one term.
inline bool pack_transposed(const Rows& rows, float* packed) {
  switch (rows.element) {
    case Element::Float32:
      return pack_transposed_of<float>(rows, packed);
    case Element::BFloat16:
      return pack_transposed_of<Bf16>(rows, packed);
    default:
      return pack_transposed_of<Fp16>(rows, packed);
  }
}

/// GemmOps::add_sums: rows of `grad` += factor * packed columns.
inline void add_columns(const PackedSums& sums, float* grad, std::int64_t stride) {
  // Copied, since the compiler cannot tell that `grad` is not the memory of `sums`.
  const float* packed = sums.data;
  const int padded = sums.padded;
  const int rows = sums.rows;
  const int width = sums.width;
  const float factor = sums.factor;
  for (int begin = 0; begin < width; begin += kPanel, packed += padded * kPanel) {
    const int columns = width - begin < kPanel ? width - begin : kPanel;
    for (int r = 0; r < rows; ++r) {
      const float* const from = packed + r * kPanel;
      float* const to = grad + r * stride + begin;
      int c = 0;
      for (; c + kWidth <= columns; c += kWidth) {
        store(to + c, fma(load(from + c), all(factor), load(to + c)));
      }
      for (; c < columns; ++c) to[c] += factor * from[c];
    }
  }
}

/// GemmOps::write_sums: rows = factor * packed columns, rounded to E.
template <class E>
void write_columns_of(const PackedSums& sums, void* to, std::int64_t stride) {
  const float* packed = sums.data;
  const int padded = sums.padded;
  const int rows = sums.rows;
  const int width = sums.width;
  const float factor = sums.factor;
  for (int begin = 0; begin < width; begin += kPanel, packed += padded * kPanel) {
    const int columns = width - begin < kPanel ? width - begin : kPanel;
    for (int r = 0; r < rows; ++r) {
      const float* const from = packed + r * kPanel;
      store_all(static_cast<E*>(to) + r * stride + begin, columns,
                [&](int i) ARMILLARY_LAMBDA { return mul(load(from + i), all(factor)); });
    }
  }
}

/// IsaKernels::write_rows: rows of fp32 rounded to E.
template <class E>
void write_rows_of(const Rows& rows, void* to, std::int64_t stride) {
  const float* from = static_cast<const float*>(rows.data);
  const std::int64_t from_stride = rows.stride;
  const int count = static_cast<int>(rows.count);
  const int width = rows.width;
  for (int r = 0; r < count; ++r, from += from_stride) {
    store_all(static_cast<E*>(to) + r * stride, width, [&](int i) ARMILLARY_LAMBDA {
      return i + kWidth <= width ? load(from + i) : load_part(from + i, width - i);
    });
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
