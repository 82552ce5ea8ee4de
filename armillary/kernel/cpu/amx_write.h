// amx_write.h: the state of queries of a tile as rows of the result.
#pragma once

#include "armillary/kernel/cpu/amx_forward.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// out of one row *= factor
inline void scale_amx_row(const ForwardTile& t, int row, float factor) {
  const int width = to_pairs(t.value_dim);
  for (int e = 0; e < width; ++e) {
    t.out[((row / kPair * (width / kSide) + e / kSide) * 2 + row / kSide % 2) * kTileFloats +
          e % kSide * kWidth + row % kSide] *= factor;
  }
}

/// What out is multiplied with, for 32 rows at least, and their log-sum-exps.
inline void finish_rows(const ForwardTile& t, float unit, float* factors, float* lse,
                        std::int64_t lse_stride) {
  for (int row = 0; row < to_pairs(t.pairs.q_rows); ++row) {
    const bool empty = row >= t.pairs.q_rows || t.sum[row] == 0;
    factors[row] = empty ? 0 : 1 / t.sum[row];
    if (row >= t.pairs.q_rows) continue;
    lse[row * lse_stride] = empty ? -kInf : t.max[row] * unit + __builtin_logf(t.sum[row]);
  }
}

/// As write_of.
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

/// The same of bf16: two columns are a word before they are turned round.
template <int kParts>
inline void write_amx_words(const ForwardTile& t, void* out, std::int64_t out_stride, float* lse,
                            std::int64_t lse_stride) {
  float factors[kAmxForwardQ];
  finish_rows(t, log_unit(kParts), factors, lse, lse_stride);
  const int width = to_pairs(t.value_dim);
  for (int first = 0; first < t.pairs.q_rows; first += kSide) {
    const Float factor = load(factors + first);
    const float* sums =
        t.out + (first / kPair * (width / kSide) * 2 + first / kSide % 2) * kTileFloats;
    const int count = t.pairs.q_rows - first < kSide ? t.pairs.q_rows - first : kSide;
    // Rows are far apart: those of the next turn are asked for, to be written.
    const int next =
        t.pairs.q_rows - first - kSide < kSide ? t.pairs.q_rows - first - kSide : kSide;
    for (int r = 0; r < next; ++r) {
      const Bf16* const row = static_cast<Bf16*>(out) + (first + kSide + r) * out_stride;
      for (int i = 0; i < t.value_dim; i += kPair) __builtin_prefetch(row + i, 1);
    }
    for (int begin = 0; begin < t.value_dim; begin += kPair, sums += 4 * kTileFloats) {
      Float words[kSide];
      for (int i = 0; i < kSide; ++i) {
        const float* const row = sums + i / 8 * 2 * kTileFloats + i % 8 * 2 * kWidth;
        words[i] = rounded_words(mul(load(row), factor), mul(load(row + kWidth), factor));
      }
      transpose16(words);
      const int columns = t.value_dim - begin < kPair ? t.value_dim - begin : kPair;
      for (int r = 0; r < count; ++r) {
        Bf16* const to = static_cast<Bf16*>(out) + (first + r) * out_stride + begin;
        if (columns == kPair) {
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
