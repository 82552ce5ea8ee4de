// amx_scores-inl.h: scores of a chunk of 32 keys and 32 queries: features of score.h, maxima and
// NaN.
//
// A chunk is S^T: keys x queries, four tiles [keys / 16][queries / 16], so one vector has the
// scores of one key and 16 queries.
#pragma once

#include "armillary/kernel/cpu/amx_pack-inl.h"
#include "armillary/kernel/cpu/forward_tile-inl.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr float kLn2 = 0.693147182f;
constexpr float kLog2E = 1.44269504f;

constexpr float kNoScore = -3e38f;  ///< a maximum below it stands for no score

constexpr int kChunkFloats = 4 * kTileFloats;  ///< S of a chunk: 32 keys x 32 queries

/// Calls visit(query, key, scores) for each row of 16 queries of a chunk.
template <class Visit>
ARMILLARY_INLINE void for_each_score_row(float* chunk, Visit visit) {
  for (int tile = 0; tile < 4; ++tile) {
    for (int r = 0; r < kSide; ++r, chunk += kWidth) {
      visit(tile % 2 * kSide, tile / 2 * kSide + r, chunk);
    }
  }
}

/// Features of the score for a tile, and the scale that its products lack.
struct ScaledScore {
  const TilePairs& pairs;
  const TileScore& score;
  float scale;
};

/// Turns 16 products, of a key and the queries from `query` on, into scores: scale, softcap and
/// slope. Returns d score / d (scale <q, k>).
inline Float softcap_alibi_scores(const ScaledScore& tile, int query, int key, Float& x) {
  const TilePairs& pairs = tile.pairs;
  const TileScore& score = tile.score;
  Float derivative = all(1.0f);
  x = mul(x, all(tile.scale));
  if (score.softcap != 0) {
    const Float y = tanh(x);
    derivative = fnma(y, y, derivative);
    x = mul(y, all(score.softcap));
  }
  if (score.slope != 0 && key < pairs.k_rows) {
    float distances[kSide] = {};
    for (int i = 0; i < kSide && query + i < pairs.q_rows; ++i) {
      const std::int64_t d = score.k_positions[key] - score.q_positions[query + i] - score.shift;
      distances[i] = static_cast<float>(d < 0 ? -d : d);
    }
    x = fnma(load(distances), all(score.slope), x);
  }
  return derivative;
}

/// Dropout factors of a chunk of keys and a group of queries, by key, then query; 1 without
/// dropout.
inline void fill_factors(const TilePairs& pairs, const TileScore& score, int group, int chunk,
                         float (&factors)[kDoubleSide][kDoubleSide]) {
  const int first = chunk * kDoubleSide;
  const int keys = pairs.k_rows - first < kDoubleSide ? pairs.k_rows - first : kDoubleSide;
  for (int q = 0; q < kDoubleSide; ++q) {
    const int row = group * kDoubleSide + q;
    float of_row[kDoubleSide];
    for (float& factor : of_row) factor = 1;
    if (score.dropout != nullptr && row < pairs.q_rows) {
      fill_dropout(score, {row, first, keys}, of_row);
    }
    for (int key = 0; key < kDoubleSide; ++key) factors[key][q] = of_row[key];
  }
}

/// The row of key `key` of neighbouring chunks, for 16 queries.
inline const float* score_row(const float* x, int key, int half) {
  return x + key / kDoubleSide * kChunkFloats +
         (key % kDoubleSide / kSide * 2 + half / kSide) * kTileFloats + key % kSide * kWidth;
}

/// The largest score of each of 32 queries; NaN is ignored.
inline void find_tops(const float* x, int chunks, float* tops) {
  constexpr int kChains = 4;  // hide the latency of a maximum
  Float top[2][kChains];
  for (int i = 0; i < kChains; ++i) top[0][i] = top[1][i] = all(-kInf);
  for (int tile = 0; tile < 4 * chunks; tile += 2, x += 2 * kTileFloats) {
#pragma GCC unroll 4
    for (int r = 0; r < kSide; ++r) {
      top[0][r % kChains] = max(load(x + r * kWidth), top[0][r % kChains]);
      top[1][r % kChains] = max(load(x + kTileFloats + r * kWidth), top[1][r % kChains]);
    }
  }
  for (int half = 0; half < 2; ++half) {
    const Float two[2] = {max(top[half][0], top[half][1]), max(top[half][2], top[half][3])};
    store(tops + half * kSide, max(two[0], two[1]));
  }
}
/// Whether query q has a NaN score.
inline bool has_nan(const float* x, int chunks, int q) {
  for (int key = 0; key < chunks * kDoubleSide; ++key) {
    const float y = score_row(x, key, q / kSide * kSide)[q % kSide];
    if (y != y) return true;
  }
  return false;
}
/// Whether any score is NaN.
inline bool any_nan(const float* x, int chunks) {
  Float nan = all(0.0f);
  for (int i = 0; i < chunks * kChunkFloats; i += kWidth) {
    const Float y = load(x + i);
    // NaN is neither below 0 nor above -1.
    nan = max(if_less(y, all(0.0f), all(0.0f), if_less(all(-1.0f), y, all(0.0f), all(1.0f))), nan);
  }
  return any_above(nan, 0);
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
