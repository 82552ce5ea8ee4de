// amx_exact-inl.h: the products of tiles, computed by vectors, for factors with NaN or Inf.
//
// Tile products cover whole chunks, so they would multiply hidden pairs by a weight of 0, and 0 *
// NaN is NaN. With floats in parts, Inf also has parts that are 0, and 0 * Inf is NaN. Results go
// to the same places in the same layouts as those of the tile products.
#pragma once

#include "armillary/kernel/cpu/amx_gemm-inl.h"
#include "armillary/kernel/cpu/amx_scores-inl.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// A vector of elements, added up from `kParts` words of two bf16 that are `part` floats apart; the
/// lower halves or the upper halves of the words.
template <int kParts>
ARMILLARY_INLINE Float joined(const float* words, int part, int upper) {
  Float x = all(0.0f);
  for (int p = kParts - 1; p >= 0; --p) {
    std::uint32_t bits[kSide];
    __builtin_memcpy(bits, words + p * part, sizeof bits);
    for (std::uint32_t& y : bits) y = upper != 0 ? y & 0xffff0000u : y << 16;
    Float y;
    __builtin_memcpy(&y, bits, sizeof y);
    x = add(x, y);
  }
  return x;
}
/// The same for one element: number `index` of tiles of bf16 that are `part` floats apart.
template <int kParts>
ARMILLARY_INLINE float joined_at(const float* tiles, int part, int index) {
  float x = 0;
  for (int p = kParts - 1; p >= 0; --p) {
    x += static_cast<float>(reinterpret_cast<const Bf16*>(tiles + p * part)[index]);
  }
  return x;
}

/// Marks the rows of 32 keys and the columns of 32 queries (in words) that have a NaN or Inf.
inline void find_nonfinite(const float* keys, const float* queries, int steps, bool* nonfinite_keys,
                           bool* nonfinite_queries) {
  const auto is_nonfinite = [](const float* tiles, int half) {
    return (reinterpret_cast<const Bf16*>(tiles)[half].bits & 0x7f80) == 0x7f80;
  };
  for (int i = 0; i < kDoubleSide; ++i) {
    nonfinite_keys[i] = nonfinite_queries[i] = false;
    for (int step = 0; step < steps; ++step) {
      const float* const key = keys + (i / kSide * steps + step) * kTileFloats;
      const float* const query = queries + (2 * step + i / kSide) * kTileFloats;
      for (int x = 0; x < kDoubleSide; ++x) {
        nonfinite_keys[i] |= is_nonfinite(key, i % kSide * kDoubleSide + x);
        nonfinite_queries[i] |= is_nonfinite(query, x / 2 * kDoubleSide + i % kSide * 2 + x % 2);
      }
    }
  }
}

/// Scores of a key and 16 queries, by vectors.
template <int kParts>
inline Float scores_of_key(const float* keys, const float* queries, int steps, int key, int half) {
  const int part = steps * 2 * kTileFloats;
  Float sum = all(0.0f);
  for (int step = 0; step < steps; ++step) {
    const float* const tile = keys + (key / kSide * steps + step) * kTileFloats;
    const float* const words = queries + (2 * step + half / kSide) * kTileFloats;
    for (int x = 0; x < kDoubleSide; ++x) {
      sum = fma(all(joined_at<kParts>(tile, part, key % kSide * kDoubleSide + x)),
                joined<kParts>(words + x / 2 * kWidth, part, x % 2), sum);
    }
  }
  return sum;
}

/// Recomputes S^T = K Q^T of a chunk of 32 keys (rows) and 32 queries (words) where a factor is not
/// finite. All other scores keep the bits that tiles gave them, in both passes.
template <int kParts>
inline void mend_scores(const float* keys, const float* queries, int steps, float* scores) {
  bool nonfinite_keys[kDoubleSide];
  bool nonfinite_queries[kDoubleSide];
  find_nonfinite(keys, queries, steps, nonfinite_keys, nonfinite_queries);
  for (int half = 0; half < kDoubleSide; half += kSide) {
    bool any = false;
    for (int q = 0; q < kSide; ++q) any |= nonfinite_queries[half + q];
    for (int key = 0; key < kDoubleSide; ++key) {
      if (!any && !nonfinite_keys[key]) continue;
      float* const row =
          scores + (key / kSide * 2 + half / kSide) * kTileFloats + key % kSide * kWidth;
      float mended[kSide];
      store(mended, scores_of_key<kParts>(keys, queries, steps, key, half));
      for (int q = 0; q < kSide; ++q) {
        if (nonfinite_keys[key] || nonfinite_queries[half + q]) row[q] = mended[q];
      }
    }
  }
}

/// Accumulators of 32 queries += X^T P^T over 32 keys. X has `columns` columns of tiles; P is in
/// words, two tiles of 16 queries for each part, which are `words_part` floats apart.
struct ExactColumns {
  const float* x = nullptr;
  int columns = 0;
  const float* words = nullptr;
  int words_part = 0;
  const std::uint32_t* visible = nullptr;  ///< keys that each query sees; null: all of them
  float* sums = nullptr;
};
template <int kParts>
inline void add_columns_exactly(const ExactColumns& of) {
  for (int half = 0; half < kDoubleSide; half += kSide) {
    Float p[kDoubleSide];
    for (int key = 0; key < kDoubleSide; ++key) {
      p[key] = joined<kParts>(of.words + half / kSide * kTileFloats + key / 2 * kWidth,
                              of.words_part, key % 2);
    }
    for (int column = 0; column < of.columns * kSide; ++column) {
      float* const row =
          of.sums + (column / kSide * 2 + half / kSide) * kTileFloats + column % kSide * kWidth;
      const float* const tile = of.x + column / kSide * kTileFloats;
      Float sum = load(row);
      for (int key = 0; key < kDoubleSide; ++key) {
        const float factor =
            joined_at<kParts>(tile, of.columns * kTileFloats, column % kSide * kDoubleSide + key);
        const Float with = fma(all(factor), p[key], sum);
        sum = of.visible == nullptr ? with : if_visible(of.visible + half, key, with, sum);
      }
      store(row, sum);
    }
  }
}

/// Accumulators of 32 keys += P X over `queries` queries. P is in halves of rows of 32 queries, in
/// two tiles of 16 keys that are `next` floats apart; X is in row words, two tiles for each of
/// `steps` steps of 32 elements. Parts are `p_part` and `x_part` floats apart.
struct ExactRows {
  const float* x = nullptr;
  int x_part = 0;
  const float* p = nullptr;
  int next = 0;
  int p_part = 0;
  const std::uint32_t* visible = nullptr;  ///< keys that each query sees; null: all of them
  int queries = 0;
  int steps = 0;
  float* sums = nullptr;
};
template <int kParts>
inline void add_rows_exactly(const ExactRows& of) {
  for (int key = 0; key < kDoubleSide; ++key) {
    const float* const weights = of.p + key / kSide * of.next;
    for (int column = 0; column < 2 * of.steps; ++column) {
      float* const row = of.sums + ((column / 2 * 2 + key / kSide) * 2 + column % 2) * kTileFloats +
                         key % kSide * kWidth;
      const float* const tile = of.x + column * kTileFloats;
      Float sum = load(row);
      for (int q = 0; q < of.queries; ++q) {
        if (of.visible != nullptr && (of.visible[q] >> key & 1) == 0) continue;
        const float weight = joined_at<kParts>(weights, of.p_part, key % kSide * kDoubleSide + q);
        sum = fma(all(weight), joined<kParts>(tile + q / 2 * kWidth, of.x_part, q % 2), sum);
      }
      store(row, sum);
    }
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
