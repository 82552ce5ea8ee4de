// amx_exact.h: what tiles multiply, by vectors, for factors that are not finite: hidden pairs must
// not be touched, and of Inf in parts, 0 * Inf would be a NaN.
#pragma once

#include "armillary/kernel/cpu/amx_products.h"
#include "armillary/kernel/cpu/amx_scores.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// What `kParts` words of two bf16, `part` floats apart, hold in their lower or upper halves.
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
/// Of tiles of bf16, `part` floats apart, the one at `index`.
template <int kParts>
ARMILLARY_INLINE float joined_at(const float* tiles, int part, int index) {
  float x = 0;
  for (int p = kParts - 1; p >= 0; --p) {
    x += widened(reinterpret_cast<const Bf16*>(tiles + p * part)[index]);
  }
  return x;
}

/// Marks the rows of 32 keys, and the columns of 32 queries in words, that are not finite.
inline void find_wild(const float* keys, const float* queries, int terms, bool* wild_keys,
                      bool* wild_queries) {
  const auto is_wild = [](const float* tiles, int half) {
    return (reinterpret_cast<const Bf16*>(tiles)[half].bits & 0x7f80) == 0x7f80;
  };
  for (int i = 0; i < kPair; ++i) {
    wild_keys[i] = wild_queries[i] = false;
    for (int term = 0; term < terms; ++term) {
      const float* const key = keys + (i / kSide * terms + term) * kTileFloats;
      const float* const query = queries + (2 * term + i / kSide) * kTileFloats;
      for (int x = 0; x < kPair; ++x) {
        wild_keys[i] |= is_wild(key, i % kSide * kPair + x);
        wild_queries[i] |= is_wild(query, x / 2 * kPair + i % kSide * 2 + x % 2);
      }
    }
  }
}

/// Scores of 16 queries and a key: of parts, by vectors.
template <int kParts>
inline Float scores_of_key(const float* keys, const float* queries, int terms, int key, int half) {
  const int part = terms * 2 * kTileFloats;
  Float sum = all(0.0f);
  for (int term = 0; term < terms; ++term) {
    const float* const tile = keys + (key / kSide * terms + term) * kTileFloats;
    const float* const words = queries + (2 * term + half / kSide) * kTileFloats;
    for (int x = 0; x < kPair; ++x) {
      sum = fma(all(joined_at<kParts>(tile, part, key % kSide * kPair + x)),
                joined<kParts>(words + x / 2 * kWidth, part, x % 2), sum);
    }
  }
  return sum;
}

/// Makes S^T = K Q^T of a chunk of 32 keys (rows) and 32 queries (words) anew where a factor is not
/// finite; elsewhere scores stay, to the last bit, in both passes.
template <int kParts>
inline void mend_scores(const float* keys, const float* queries, int terms, float* scores) {
  bool wild_keys[kPair];
  bool wild_queries[kPair];
  find_wild(keys, queries, terms, wild_keys, wild_queries);
  for (int half = 0; half < kPair; half += kSide) {
    bool any = false;
    for (int q = 0; q < kSide; ++q) any |= wild_queries[half + q];
    for (int key = 0; key < kPair; ++key) {
      if (!any && !wild_keys[key]) continue;
      float* const row =
          scores + (key / kSide * 2 + half / kSide) * kTileFloats + key % kSide * kWidth;
      float mended[kSide];
      store(mended, scores_of_key<kParts>(keys, queries, terms, key, half));
      for (int q = 0; q < kSide; ++q) {
        if (wild_keys[key] || wild_queries[half + q]) row[q] = mended[q];
      }
    }
  }
}

/// Queries' sums of 32 queries += X^T P^T of 32 keys that they see, of all if `seen` is null: X in
/// `columns` columns, P in words, two tiles of 16 queries for each part.
template <int kParts>
inline void add_columns_exactly(const float* x, const float* words, int words_part,
                                const std::uint32_t* seen, int columns, float* sums) {
  for (int half = 0; half < kPair; half += kSide) {
    Float p[kPair];
    for (int key = 0; key < kPair; ++key) {
      p[key] = joined<kParts>(words + half / kSide * kTileFloats + key / 2 * kWidth, words_part,
                              key % 2);
    }
    for (int column = 0; column < columns * kSide; ++column) {
      float* const row =
          sums + (column / kSide * 2 + half / kSide) * kTileFloats + column % kSide * kWidth;
      const float* const tile = x + column / kSide * kTileFloats;
      Float sum = load(row);
      for (int key = 0; key < kPair; ++key) {
        const float factor =
            joined_at<kParts>(tile, columns * kTileFloats, column % kSide * kPair + key);
        const Float with = fma(all(factor), p[key], sum);
        sum = seen == nullptr ? with : if_seen(seen + half, key, with, sum);
      }
      store(row, sum);
    }
  }
}

/// Keys' sums of 32 keys += P X of `queries` queries that see them, of all if `seen` is null: P in
/// halves of rows of 32 queries, in two tiles of 16 keys that are `next` floats apart, X in row
/// pairs, 2 `pairs` tiles for each part.
template <int kParts>
inline void add_rows_exactly(const float* x, int x_part, const float* p, int next, int p_part,
                             const std::uint32_t* seen, int queries, int pairs, float* sums) {
  for (int key = 0; key < kPair; ++key) {
    const float* const weights = p + key / kSide * next;
    for (int column = 0; column < 2 * pairs; ++column) {
      float* const row = sums + ((column / 2 * 2 + key / kSide) * 2 + column % 2) * kTileFloats +
                         key % kSide * kWidth;
      const float* const tile = x + column * kTileFloats;
      Float sum = load(row);
      for (int q = 0; q < queries; ++q) {
        if (seen != nullptr && (seen[q] >> key & 1) == 0) continue;
        const float weight = joined_at<kParts>(weights, p_part, key % kSide * kPair + q);
        sum = fma(all(weight), joined<kParts>(tile + q / 2 * kWidth, x_part, q % 2), sum);
      }
      store(row, sum);
    }
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
