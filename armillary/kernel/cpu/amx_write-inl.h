// amx_write-inl.h: the state of queries of a tile as rows of the result.
//
// Accumulators of queries have queries as columns. 16 x 16 of them are transposed at a time; bf16
// results are rounded first, so that two columns are transposed as one word.
#pragma once

#include "armillary/kernel/cpu/amx_forward-inl.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// GemmOps::scale_row: `out` of one row *= factor.
inline void scale_amx_row(const ForwardTile& t, int row, float factor) {
  const int width = to_double_side(t.value_dim);
  for (int e = 0; e < width; ++e) {
    t.out[((row / kDoubleSide * (width / kSide) + e / kSide) * 2 + row / kSide % 2) * kTileFloats +
          e % kSide * kWidth + row % kSide] *= factor;
  }
}

/// Factors 1 / sum of all rows, padding included, and log-sum-exps of the rows that exist.
inline void finish_rows(const ForwardTile& t, float unit, float* factors, float* lse,
                        std::int64_t lse_stride) {
  for (int row = 0; row < to_double_side(t.pairs.q_rows); ++row) {
    const bool empty = row >= t.pairs.q_rows || t.sum[row] == 0;
    factors[row] = empty ? 0 : 1 / t.sum[row];
    if (row >= t.pairs.q_rows) continue;
    lse[row * lse_stride] = empty ? -kInf : t.max[row] * unit + __builtin_logf(t.sum[row]);
  }
}

/// GemmOps::write for fp32 and fp16.
template <int kParts, class E>
inline void write_amx_of(const ForwardTile& t, void* out, std::int64_t out_stride, float* lse,
                         std::int64_t lse_stride) {
  float factors[kAmxForwardQ];
  finish_rows(t, log_unit(kParts), factors, lse, lse_stride);
  for_each_row_of(t.out, t.pairs.q_rows, t.value_dim,
                  [&](int row, int first, int columns, Float x) ARMILLARY_LAMBDA {
                    store_all(static_cast<E*>(out) + row * out_stride + first, columns,
                              [&](int) ARMILLARY_LAMBDA { return mul(x, all(factors[row])); });
                  });
}

/// GemmOps::write for bf16.
template <int kParts>
inline void write_amx_words(const ForwardTile& t, void* out, std::int64_t out_stride, float* lse,
                            std::int64_t lse_stride) {
  float factors[kAmxForwardQ];
  finish_rows(t, log_unit(kParts), factors, lse, lse_stride);
  const int width = to_double_side(t.value_dim);
  for (int first = 0; first < t.pairs.q_rows; first += kSide) {
    const Float factor = load(factors + first);
    const float* sums =
        t.out + (first / kDoubleSide * (width / kSide) * 2 + first / kSide % 2) * kTileFloats;
    const int count = t.pairs.q_rows - first < kSide ? t.pairs.q_rows - first : kSide;
    // Prefetch the next rows for writing: they are far apart in memory.
    const int next =
        t.pairs.q_rows - first - kSide < kSide ? t.pairs.q_rows - first - kSide : kSide;
    for (int r = 0; r < next; ++r) {
      const Bf16* const row = static_cast<Bf16*>(out) + (first + kSide + r) * out_stride;
      for (int i = 0; i < t.value_dim; i += kDoubleSide) __builtin_prefetch(row + i, 1);
    }
    for (int begin = 0; begin < t.value_dim; begin += kDoubleSide, sums += 4 * kTileFloats) {
      // Divide, round and transpose 32 columns of 16 rows.
      Float words[kSide];
      for (int i = 0; i < kSide; ++i) {
        const float* const row = sums + i / 8 * 2 * kTileFloats + i % 8 * 2 * kWidth;
        words[i] = rounded_words(mul(load(row), factor), mul(load(row + kWidth), factor));
      }
      transpose16(words);
      const int columns = t.value_dim - begin < kDoubleSide ? t.value_dim - begin : kDoubleSide;
      for (int r = 0; r < count; ++r) {
        Bf16* const to = static_cast<Bf16*>(out) + (first + r) * out_stride + begin;
        if (columns == kDoubleSide) {
          __builtin_memcpy(to, &words[r], sizeof words[r]);
        } else {
          __builtin_memcpy(to, &words[r], sizeof(Bf16) * static_cast<std::size_t>(columns));
        }
      }
    }
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
