// amx_backward.h: the gradient of a tile on AMX.
//
//   S^T = K Q^T     dP^T = V dO^T               keys x queries
//   dV += P^T dO    dK += dS^T Q                A: 16 keys of 32 queries
//   dQ^T += K^T dS^T                            B: 16 pairs of keys, of 16 queries
//
// Work is cut into items of 64 keys and 64 queries. dq of the tile is summed by itself, turned
// round, and added to the gradient by backward_amx_dq.
#pragma once

#include "armillary/kernel/cpu/amx_forward.h"
#include "armillary/kernel/cpu/backward_tile.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kAmxBackwardQ = 128;
constexpr int kAmxBackwardK = 256;
constexpr int kMaxPairs = 256 / kPair;  ///< Tens of 32 elements of the widest rows.

/// Scratch of a tile, in floats: S and dP of an item; P and dS by keys; dS by queries.
struct BackwardScratch {
  static constexpr int kDscores = 4 * kChunkFloats;
  static constexpr int kWeights = 2 * kDscores;
  static constexpr int kSlopes = kWeights + 8 * kTileFloats;
  static constexpr int kSlopeWords = kSlopes + 8 * kTileFloats;
  static constexpr int kNowhere = kSlopeWords + 8 * kTileFloats;
  static constexpr int kSeen = kNowhere + kChunkFloats;
  static constexpr int kFloats =
      kSeen + kAmxBackwardQ / kPair * (kAmxBackwardK / kPair) * kPair;
};

/// Sums for dq of a tile, and which groups of 32 queries have some.
struct QuerySums {
  static constexpr int kGroups = kAmxBackwardQ / kPair;
  static constexpr int kFloats = kSide + kAmxBackwardQ * 256;

  explicit QuerySums(float* memory) : begun(memory), sums(memory + kSide) {}
  float* of_group(int group, int columns) const {
    return sums + group * columns * 2 * kTileFloats;
  }
  float* begun;  ///< 1 if there are.
  float* sums;
};

class BackwardItems {
 public:
  explicit BackwardItems(const BackwardTile& t)
      : t_(t),
        seen_(t.pairs, reinterpret_cast<std::uint32_t*>(t.weights + BackwardScratch::kSeen)),
        pending_(t.weights + BackwardScratch::kNowhere),
        dq_(t.dscores),
        d_pairs_(to_pairs(t.head_dim) / kPair),
        e_pairs_(to_pairs(t.value_dim) / kPair) {}

  void run() {
    for (int group = 0; group < QuerySums::kGroups; ++group) dq_.begun[group] = 0;
    for (int chunk = 0; chunk < seen_.chunks(); chunk += 2) {
      for (int group = 0; group < seen_.groups(); group += 2) {
        groups_ = seen_.groups() - group < 2 ? 1 : 2;
        chunks_ = seen_.chunks() - chunk < 2 ? 1 : 2;
        if (find_kinds(group, chunk)) run_item(group, chunk);
      }
    }
    pending_.flush();
  }

 private:
  using Kind = Seen::Kind;

  /// Whether a pair of the item is visible.
  bool find_kinds(int group, int chunk) {
    bool any = false;
    partial_ = false;
    for (int g = 0; g < groups_; ++g) {
      for (int c = 0; c < chunks_; ++c) {
        kinds_[g][c] = seen_.kind(group + g, chunk + c);
        any |= kinds_[g][c] != Kind::None;
        partial_ |= kinds_[g][c] != Kind::Whole;
      }
    }
    return any;
  }

  void run_item(int group, int chunk) {
    for (int g = 0; g < groups_; ++g) {
      for (int c = 0; c < chunks_; ++c) {
        if (kinds_[g][c] != Kind::None) multiply_scores(group, chunk, g, c);
      }
    }
    pending_.flush();
    for (int g = 0; g < groups_; ++g) {
      for (int c = 0; c < chunks_; ++c) weigh(group, chunk, g, c);
    }
    if (t_.pairs.wild && partial_) return add_exactly(group, chunk);
    multiply_values(group, chunk, BackwardScratch::kWeights, t_.dout_values, e_pairs_, t_.dv);
    multiply_values(group, chunk, BackwardScratch::kSlopes, t_.q_values, d_pairs_, t_.dk);
    multiply_keys(group, chunk);
  }

  float* scores(int g, int c) const { return t_.weights + (g * 2 + c) * kChunkFloats; }
  float* dscores(int g, int c) const { return scores(g, c) + BackwardScratch::kDscores; }
  /// Row `key` of the 32 queries of P or dS by keys.
  Bf16* by_keys(int at, int g, int c, int key) const {
    float* const tile = t_.weights + at + ((c * 2 + key / kSide) * 2 + g) * kTileFloats;
    return reinterpret_cast<Bf16*>(tile + key % kSide * kWidth);
  }
  /// Words of keys `key` and `key` + 1, of 16 queries, of dS by queries.
  float* by_queries(int g, int c, int key, int half) const {
    return t_.weights + BackwardScratch::kSlopeWords +
           (c * 4 + g * 2 + half / kSide) * kTileFloats + key / 2 * kWidth;
  }

  void multiply_scores(int group, int chunk, int g, int c) {
    const auto multiply = [&](const float* keys, const float* queries, int terms, float* to) {
      multiply_tiles<Streamed::A>(
          {keys + (chunk + c) * terms * 2 * kTileFloats, terms * kTileFloats, kTileFloats},
          {queries + (group + g) * terms * 2 * kTileFloats}, terms, nullptr, pending_, to,
          nothing_);
    };
    multiply(t_.k_transposed, t_.q, d_pairs_, scores(g, c));
    multiply(t_.v_transposed, t_.dout, e_pairs_, dscores(g, c));
  }

  /// dV += P^T dO and dK += dS^T Q.
  void multiply_values(int group, int chunk, int at, const float* values, int pairs, float* to) {
    const int columns = 2 * pairs;
    for (int c = 0; c < chunks_; ++c) {
      const float* const weights = t_.weights + at + c * 4 * kTileFloats;
      for (int pair = 0; pair < pairs; ++pair) {
        float* const sums = to + ((chunk + c) * pairs + pair) * kChunkFloats;
        multiply_tiles<Streamed::B>(
            {weights, 2 * kTileFloats, kTileFloats},
            {values + (group * columns + 2 * pair) * kTileFloats, kTileFloats,
             columns * kTileFloats},
            groups_, sums, pending_, sums, nothing_);
      }
    }
  }

  /// dQ^T += K^T dS^T
  void multiply_keys(int group, int chunk) {
    const int columns = 2 * d_pairs_;
    for (int g = 0; g < groups_; ++g) {
      float* const of_group = dq_.of_group(group + g, columns);
      for (int pair = 0; pair < d_pairs_; ++pair) {
        float* const sums = of_group + pair * kChunkFloats;
        multiply_tiles<Streamed::A>(
            {t_.k_values + (chunk * columns + 2 * pair) * kTileFloats, kTileFloats,
             columns * kTileFloats},
            {by_queries(g, 0, 0, 0), kTileFloats, 4 * kTileFloats}, chunks_,
            dq_.begun[group + g] != 0 ? sums : nullptr, pending_, sums, nothing_);
      }
      dq_.begun[group + g] = 1;
    }
  }

  /// P and dS of a chunk, 0 where they are hidden.
  void weigh(int group, int chunk, int g, int c) {
    if (kinds_[g][c] == Kind::None) return clear(g, c);
    const std::uint32_t* const seen =
        kinds_[g][c] == Kind::Partial ? seen_.words(group + g, chunk + c) : nullptr;
    const float* const lse = t_.lse + (group + g) * kPair;
    if (t_.score.plain() && !is_large(lse)) {
      const Float scale = all(t_.score_scale * kLog2E);
      Float minus_lse[2];
      for (int h = 0; h < 2; ++h) minus_lse[h] = mul(seen_lse(lse + h * kSide), all(-kLog2E));
      weigh_rows(group + g, g, c, seen,
                 [&](int, int half, Float product, Float& factor, Float& slope) ARMILLARY_LAMBDA {
                   factor = slope = all(1.0f);
                   return fma(product, scale, minus_lse[half / kSide]);
                 });
      return;
    }
    float factors[kPair][kPair];
    fill_factors(group + g, chunk + c, factors);
    weigh_rows(group + g, g, c, seen,
               [&](int key, int half, Float product, Float& factor, Float& slope) {
                 factor = load(factors[key] + half);
                 slope = bend_scores(t_.pairs, t_.score, t_.score_scale, (group + g) * kPair + half,
                                     (chunk + c) * kPair + key, product);
                 return mul(sub(product, seen_lse(lse + half)), all(kLog2E));
               });
  }

  /// A query that sees nothing has -inf, and a score of -inf is no number less that.
  static Float seen_lse(const float* lse) {
    const Float x = load(lse);
    return if_less(x, all(kNoScore), all(kInf), x);
  }
  /// Whether products must be rounded before the difference is taken (ForwardPipeline).
  static bool is_large(const float* lse) {
    constexpr float kLarge = 0x1p10f;
    for (int q = 0; q < kPair; ++q) {
      const float size = __builtin_fabsf(lse[q]);
      if (size > kLarge && size < kInf) return true;
    }
    return false;
  }

  void clear(int g, int c) const {
    for (int key = 0; key < kPair; ++key) {
      store(reinterpret_cast<float*>(by_keys(BackwardScratch::kWeights, g, c, key)), all(0.0f));
      store(reinterpret_cast<float*>(by_keys(BackwardScratch::kSlopes, g, c, key)), all(0.0f));
    }
    for (int key = 0; key < kPair; key += 2) {
      for (int half = 0; half < kPair; half += kSide) {
        store(by_queries(g, c, key, half), all(0.0f));
      }
    }
  }

  /// `exponent_of(key, half, product, factor, slope)` makes the base-2 logarithms of weights of 16
  /// products <q, k>, and gives their factors of dropout and d score / d product.
  template <class ExponentOf>
  ARMILLARY_INLINE void weigh_rows(int group, int g, int c, const std::uint32_t* seen,
                                   const ExponentOf& exponent_of) const {
    Float delta[2];
    for (int h = 0; h < 2; ++h) delta[h] = load(t_.delta + group * kPair + h * kSide);
    for (int key = 0; key < kPair; key += 2) {
      Float p[2][2];
      Float ds[2][2];
      for (int r = 0; r < 2; ++r) {
        for (int h = 0; h < 2; ++h) {
          const int at = ((key + r) / kSide * 2 + h) * kTileFloats + (key + r) % kSide * kWidth;
          Float factor;
          Float slope;
          Float weight[1] = {
              exponent_of(key + r, h * kSide, load(scores(g, c) + at), factor, slope)};
          power_of_two(weight);
          const Float dp = load(dscores(g, c) + at);
          p[r][h] = mul(weight[0], factor);
          ds[r][h] = mul(mul(weight[0], sub(mul(dp, factor), delta[h])), slope);
          if (seen == nullptr) continue;
          p[r][h] = if_seen(seen + h * kSide, key + r, p[r][h], all(0.0f));
          ds[r][h] = if_seen(seen + h * kSide, key + r, ds[r][h], all(0.0f));
        }
        store_rounded(by_keys(BackwardScratch::kWeights, g, c, key + r), p[r][0], p[r][1]);
        store_rounded(by_keys(BackwardScratch::kSlopes, g, c, key + r), ds[r][0], ds[r][1]);
      }
      store_words(by_queries(g, c, key, 0), ds[0][0], ds[1][0]);
      store_words(by_queries(g, c, key, kSide), ds[0][1], ds[1][1]);
    }
  }

  void fill_factors(int group, int chunk, float (&factors)[kPair][kPair]) const {
    const int first = chunk * kPair;
    const int keys = t_.pairs.k_rows - first < kPair ? t_.pairs.k_rows - first : kPair;
    for (int q = 0; q < kPair; ++q) {
      const int row = group * kPair + q;
      float of_row[kPair];
      for (float& factor : of_row) factor = 1;
      if (t_.score.dropout != nullptr && row < t_.pairs.q_rows) {
        fill_dropout(t_.score, row, first, keys, of_row);
      }
      for (int key = 0; key < kPair; ++key) factors[key][q] = of_row[key];
    }
  }

  /// dv, dk and dq without touching hidden pairs.
  void add_exactly(int group, int chunk) {
    pending_.flush();
    for (int g = 0; g < groups_; ++g) {
      if (dq_.begun[group + g] == 0) clear_dq(group + g);
      for (int c = 0; c < chunks_; ++c) {
        if (kinds_[g][c] == Kind::None) continue;
        for (int q = 0; q < kPair && (group + g) * kPair + q < t_.pairs.q_rows; ++q) {
          const bool whole = kinds_[g][c] == Kind::Whole;
          const std::uint32_t seen = whole ? ~0u : seen_.words(group + g, chunk + c)[q];
          for (int key = 0; key < kPair; ++key) {
            if ((seen >> key & 1) != 0) add_pair(group, chunk, g, c, q, key);
          }
        }
      }
    }
  }
  void clear_dq(int group) const {
    float* const sums = dq_.of_group(group, 2 * d_pairs_);
    for (int i = 0; i < 4 * d_pairs_ * kTileFloats; i += kWidth) store(sums + i, all(0.0f));
    dq_.begun[group] = 1;
  }
  void add_pair(int group, int chunk, int g, int c, int q, int key) const {
    const float p = widened(by_keys(BackwardScratch::kWeights, g, c, key)[q]);
    const float ds = widened(by_keys(BackwardScratch::kSlopes, g, c, key)[q]);
    const int row = (chunk + c) * kPair + key;
    const auto row_pair = [&](const float* values, int pairs, int x) {
      const float* const tile = values + ((group + g) * 2 * pairs + x / kSide) * kTileFloats;
      return widened(reinterpret_cast<const Bf16*>(tile)[q / 2 * kPair + x % kSide * 2 + q % 2]);
    };
    for (int e = 0; e < t_.value_dim; ++e) {
      t_.dv[in_key_sums(t_.value_dim, row, e) + e % kSide] +=
          p * row_pair(t_.dout_values, e_pairs_, e);
    }
    float* const dq = dq_.of_group(group + g, 2 * d_pairs_);
    for (int d = 0; d < t_.head_dim; ++d) {
      t_.dk[in_key_sums(t_.head_dim, row, d) + d % kSide] +=
          ds * row_pair(t_.q_values, d_pairs_, d);
      const float* const column = t_.k_values + ((chunk + c) * 2 * d_pairs_ + d / kSide) * kTileFloats;
      dq[(d / kSide * 2 + q / kSide) * kTileFloats + d % kSide * kWidth + q % kSide] +=
          ds * widened(reinterpret_cast<const Bf16*>(column)[d % kSide * kPair + key]);
    }
  }

  const BackwardTile& t_;
  Seen seen_;
  PendingSums pending_;
  Nothing nothing_;
  QuerySums dq_;
  int d_pairs_;  ///< Tens of 32 elements of D.
  int e_pairs_;
  // Of the item at hand.
  int groups_ = 0;
  int chunks_ = 0;
  bool partial_ = false;
  Kind kinds_[2][2] = {};
};

inline void backward_amx(const BackwardTile& t) {
  [[maybe_unused]] const TileRegisters registers;
  BackwardItems(t).run();
}

inline void backward_amx_dq(const BackwardTile& t) {
  const QuerySums dq(t.dscores);
  const int columns = to_pairs(t.head_dim) / kSide;
  for (int first = 0; first < t.pairs.q_rows; first += kPair) {
    if (dq.begun[first / kPair] == 0) continue;
    const int rows = t.pairs.q_rows - first < kPair ? t.pairs.q_rows - first : kPair;
    for_each_row_of(dq.of_group(first / kPair, columns), rows, t.head_dim,
                    [&](int row, int begin, int count, Float x) ARMILLARY_LAMBDA {
                      float* const to = t.dq + (first + row) * t.dq_stride + begin;
                      const Float before = count < kSide ? load_part(to, count) : load(to);
                      const Float sum = fma(x, all(t.scale), before);
                      store_all(to, count, [&](int) ARMILLARY_LAMBDA { return sum; });
                    });
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
