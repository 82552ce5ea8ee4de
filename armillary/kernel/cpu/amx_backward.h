// amx_backward.h: the gradient of a tile on AMX.
//
//   S^T = K Q^T     dP^T = V dO^T               keys x queries
//   dV += P^T dO    dK += dS^T Q                A: 16 keys of 32 queries
//   dQ^T += K^T dS^T                            B: 16 pairs of keys, of 16 queries
//
// Work is cut into items of 128 keys and 128 queries: sums are loaded and stored once for four
// terms. S and dP are made in chunks of 32 x 32, which stay in the first cache and are weighed
// beside the products of the next. dq of the tile is summed by itself, turned round, and added to
// the gradient by backward_amx_dq.
#pragma once

#include "armillary/kernel/cpu/amx_exact.h"
#include "armillary/kernel/cpu/amx_seen.h"
#include "armillary/kernel/cpu/amx_weighing.h"
#include "armillary/kernel/cpu/backward_tile.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kAmxBackwardQ = 128;
/// Keys of a tile: what is packed of them and their sums take half of the second cache.
constexpr int amx_backward_k(int parts) {
  return parts == 1 ? 512 : 256;
}
constexpr int kGradGroups = kAmxBackwardQ / kPair;  ///< Groups of 32 queries of an item.
constexpr int kGradChunks = 4;                      ///< Its chunks of 32 keys.

/// Scratch of a tile, in floats: S and dP of two chunks; P and dS of an item by keys; dS by
/// queries; sums that belong nowhere; words of Seen.
template <int kParts>
struct BackwardScratch {
  static constexpr int kPart = 2 * kGradChunks * kGradGroups * kTileFloats;
  static constexpr int kItem = kParts * kPart;
  static constexpr int kDscores = 2 * kChunkFloats;
  static constexpr int kWeights = 2 * kDscores;
  static constexpr int kSlopes = kWeights + kItem;
  static constexpr int kSlopeWords = kSlopes + kItem;
  static constexpr int kNowhere = kSlopeWords + kItem;
  static constexpr int kSeen = kNowhere + kChunkFloats;
  static constexpr int kFloats = kSeen + Seen::floats(kGradGroups, amx_backward_k(kParts) / kPair);
};

/// Sums for dq of a tile, and which groups of 32 queries have some.
struct QuerySums {
  static constexpr int kFloats = kSide + kAmxBackwardQ * 256;

  explicit QuerySums(float* memory) : begun(memory), sums(memory + kSide) {}
  float* of_group(int group, int columns) const { return sums + group * columns * 2 * kTileFloats; }
  float* begun;  ///< 1 if there are.
  float* sums;
};

/// What becomes of the scores of 32 keys and 32 queries, by address.
struct GradChunk {
  const float* scores = nullptr;
  const float* dscores = nullptr;
  float* weights = nullptr;      ///< P by keys: rows of the tile of 16 keys, then of the next
  float* slopes = nullptr;       ///< dS, the same
  float* slope_words = nullptr;  ///< dS by queries: two tiles, of 16 queries each
  const float* lse = nullptr;
  const float* delta = nullptr;
  const std::uint32_t* seen = nullptr;  ///< Null if all of it is visible.
};
constexpr int kNextKeys = kGradGroups * kTileFloats;  ///< From a tile of 16 keys to the next.

/// Two vectors as neighbours in bf16, in parts; and two rows of them as words.
template <int kParts>
ARMILLARY_INLINE void store_halves_of(float* to, Float a, Float b) {
  if constexpr (kParts == 1) {
    store_rounded(reinterpret_cast<Bf16*>(to), a, b);
  } else {
    Float halves[kParts];
    split_halves(a, b, halves);
    store_parts(to, BackwardScratch<kParts>::kPart, halves);
  }
}
template <int kParts>
ARMILLARY_INLINE void store_words_of(float* to, Float even, Float odd) {
  if constexpr (kParts == 1) {
    store_words(to, even, odd);
  } else {
    store_word_parts<kParts>(to, BackwardScratch<kParts>::kPart, even, odd);
  }
}

/// P and dS of keys `key` and `key` + 1, 0 where they are hidden. `exponent_of(key, half, product,
/// factor, slope)` makes the base-2 logarithms of weights of 16 products <q, k>, and gives their
/// factors of dropout and d score / d product.
template <int kParts, class ExponentOf>
ARMILLARY_INLINE void weigh_keys(const GradChunk& chunk, int key, const Float (&delta)[2],
                                 const ExponentOf& exponent_of) {
  Float p[2][2];
  Float ds[2][2];
#pragma GCC unroll 2
  for (int r = 0; r < 2; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const int at = ((key + r) / kSide * 2 + h) * kTileFloats + (key + r) % kSide * kWidth;
      Float factor;
      Float slope;
      Float weight[1] = {exponent_of(key + r, h * kSide, load(chunk.scores + at), factor, slope)};
      power_of_two<kParts>(weight);
      p[r][h] = mul(weight[0], factor);
      const Float dp = mul(load(chunk.dscores + at), factor);
      ds[r][h] = mul(mul(weight[0], sub(dp, delta[h])), slope);
      if (chunk.seen == nullptr) continue;
      p[r][h] = if_seen(chunk.seen + h * kSide, key + r, p[r][h], all(0.0f));
      ds[r][h] = if_seen(chunk.seen + h * kSide, key + r, ds[r][h], all(0.0f));
    }
    const int row = (key + r) / kSide * kNextKeys + (key + r) % kSide * kWidth;
    store_halves_of<kParts>(chunk.weights + row, p[r][0], p[r][1]);
    store_halves_of<kParts>(chunk.slopes + row, ds[r][0], ds[r][1]);
  }
  float* const words = chunk.slope_words + key / 2 * kWidth;
  store_words_of<kParts>(words, ds[0][0], ds[1][0]);
  store_words_of<kParts>(words + kTileFloats, ds[0][1], ds[1][1]);
}

/// Weighs a chunk of plain scores pair by pair of its keys, beside products.
template <int kParts>
class GradWeighing {
 public:
  /// Of `products` the first four come before what is weighed is in memory.
  GradWeighing(const GradChunk& chunk, float scale, int products)
      : chunk_(chunk),
        scale_(all(scale / log_unit(kParts))),
        pace_(kPair / 2 * kUnit / (products - 4)) {
    for (int h = 0; h < 2; ++h) {
      minus_lse_[h] = mul(load(chunk.lse + h * kSide), all(-1 / log_unit(kParts)));
      delta_[h] = load(chunk.delta + h * kSide);
    }
    credit_ = -4 * pace_;
  }
  ARMILLARY_INLINE void step() {
    for (credit_ += pace_; credit_ >= kUnit && key_ < kPair; credit_ -= kUnit) weigh();
  }
  ARMILLARY_INLINE void finish() {
    while (key_ < kPair) weigh();
  }

 private:
  static constexpr int kUnit = 256;

  ARMILLARY_INLINE void weigh() {
    weigh_keys<kParts>(
        chunk_, key_, delta_,
        [&](int, int half, Float product, Float& factor, Float& slope) ARMILLARY_LAMBDA {
          factor = slope = all(1.0f);
          const Float difference = fma(product, scale_, minus_lse_[half / kSide]);
          return kParts == 1 ? difference : mul(difference, all(kLog2E));
        });
    key_ += 2;
  }

  GradChunk chunk_;
  Float scale_;
  Float minus_lse_[2];
  Float delta_[2];
  int pace_;  ///< Pairs of keys a product, in parts of kUnit.
  int credit_;
  int key_ = 0;
};

template <int kParts>
class BackwardItems {
 public:
  using Scratch = BackwardScratch<kParts>;

  explicit BackwardItems(const BackwardTile& t)
      : t_(t),
        seen_(t.pairs, t.weights + Scratch::kSeen),
        pending_(t.weights + Scratch::kNowhere),
        dq_(t.dscores),
        score_scale_(kParts == 1 ? t.score_scale : 1),
        d_pairs_(to_pairs(t.head_dim) / kPair),
        e_pairs_(to_pairs(t.value_dim) / kPair) {}

  void run() {
    for (int group = 0; group < kGradGroups; ++group) dq_.begun[group] = 0;
    for (first_ = 0; first_ < seen_.chunks(); first_ += kGradChunks) {
      chunks_ = seen_.chunks() - first_ < kGradChunks ? seen_.chunks() - first_ : kGradChunks;
      if (find_kinds()) run_item();
    }
    pending_.flush();
  }

 private:
  using Kind = Seen::Kind;
  struct Range {
    int begin = 0;
    int end = 0;
    void take(int i) {
      if (begin == end) begin = i;
      end = i + 1;
    }
    int count() const { return end - begin; }
  };

  /// Whether a pair of the item is visible.
  bool find_kinds() {
    bool any = false;
    exact_if_wild_ = kParts > 1 || t_.pairs.q_rows % kPair != 0;  // rows of padding too: 0 * Inf
    for (Range& range : groups_of_) range = {};
    for (Range& range : chunks_of_) range = {};
    for (int g = 0; g < seen_.groups(); ++g) {
      for (int c = 0; c < chunks_; ++c) {
        kinds_[g][c] = seen_.kind(g, first_ + c);
        exact_if_wild_ |= kinds_[g][c] != Kind::Whole;
        if (kinds_[g][c] == Kind::None) continue;
        any = true;
        groups_of_[c].take(g);
        chunks_of_[g].take(c);
      }
    }
    return any;
  }

  void run_item() {
    weigh_all();
    if (t_.pairs.wild && exact_if_wild_) return add_exactly();
    multiply_values(Scratch::kWeights, t_.dout_values, e_pairs_, t_.dv);
    multiply_values(Scratch::kSlopes, t_.q_values, d_pairs_, t_.dk);
    multiply_keys();
  }

  /// P and dS of the item: each chunk beside S and dP of the next.
  void weigh_all() {
    GradChunk last;
    bool has_last = false;
    int turn = 0;
    for (int c = 0; c < chunks_; ++c) {
      for (int g = 0; g < seen_.groups(); ++g) {
        if (kinds_[g][c] == Kind::None) {
          if (between(g, c)) clear(g, c);
          continue;
        }
        const GradChunk chunk = chunk_at(g, c, turn++ % 2);
        if (!has_last) {
          multiply_scores(g, c, chunk, nothing_);
        } else {
          GradWeighing<kParts> weighing(last, score_scale_,
                                        products_of_term(kParts) * 4 * (d_pairs_ + e_pairs_));
          multiply_scores(g, c, chunk, weighing);
          weighing.finish();
        }
        has_last = t_.score.plain() && !is_large(chunk.lse);
        last = chunk;
        if (!has_last) weigh_with_score(g, c, chunk);
      }
    }
    pending_.flush();
    if (has_last) GradWeighing<kParts>(last, score_scale_, 8).finish();
  }

  GradChunk chunk_at(int g, int c, int turn) const {
    GradChunk chunk;
    chunk.scores = t_.weights + turn * kChunkFloats;
    chunk.dscores = chunk.scores + Scratch::kDscores;
    chunk.weights = t_.weights + Scratch::kWeights + (c * 2 * kGradGroups + g) * kTileFloats;
    chunk.slopes = chunk.weights + Scratch::kItem;
    chunk.slope_words = by_queries(g, c);
    chunk.lse = t_.lse + g * kPair;
    chunk.delta = t_.delta + g * kPair;
    if (kinds_[g][c] == Kind::Partial) chunk.seen = seen_.words(g, first_ + c);
    return chunk;
  }
  float* by_queries(int g, int c) const {
    return t_.weights + Scratch::kSlopeWords + (c * 2 * kGradGroups + g * 2) * kTileFloats;
  }

  /// Whether a chunk without pairs is within what is multiplied.
  bool between(int g, int c) const {
    const Range& groups = groups_of_[c];
    const Range& chunks = chunks_of_[g];
    return (groups.begin < g && g < groups.end) || (chunks.begin < c && c < chunks.end);
  }
  void clear(int g, int c) const {
    const GradChunk chunk = chunk_at(g, c, 0);
    for (int part = 0; part < kParts; ++part) {
      for (int i = part * Scratch::kPart; i < part * Scratch::kPart + kTileFloats; i += kWidth) {
        store(chunk.weights + i, all(0.0f));
        store(chunk.weights + kNextKeys + i, all(0.0f));
        store(chunk.slopes + i, all(0.0f));
        store(chunk.slopes + kNextKeys + i, all(0.0f));
        store(chunk.slope_words + i, all(0.0f));
        store(chunk.slope_words + kTileFloats + i, all(0.0f));
      }
    }
  }

  // Parts are added in the order of forward, so that scores are the same to the last bit.
  static constexpr Streamed kScoresStreamed = kParts == 1 ? Streamed::B : Streamed::A;

  template <class Beside>
  ARMILLARY_INLINE void multiply_scores(int g, int c, const GradChunk& chunk, Beside& beside) {
    const auto multiply = [&](const float* keys, const float* queries, int terms,
                              const float* result) ARMILLARY_LAMBDA {
      const int part = terms * 2 * kTileFloats;
      const TilesOf a{keys + (first_ + c) * kParts * part, part / 2, kTileFloats, part};
      const TilesOf b{.data = queries + g * kParts * part, .part = part};
      auto* const to = const_cast<float*>(result);
      multiply_tiles<kParts, kScoresStreamed>(a, b, terms, nullptr, pending_, to, beside);
      if (kParts > 1 && t_.pairs.wild) {
        pending_.flush();
        mend_scores<kParts>(a.data, b.data, terms, to);
      }
    };
    multiply(t_.k_transposed, t_.q, d_pairs_, chunk.scores);
    multiply(t_.v_transposed, t_.dout, e_pairs_, chunk.dscores);
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

  void weigh_with_score(int g, int c, const GradChunk& chunk) {
    pending_.flush();
    float factors[kPair][kPair];
    fill_factors(t_.pairs, t_.score, g, first_ + c, factors);
    const Float delta[2] = {load(chunk.delta), load(chunk.delta + kSide)};
    for (int key = 0; key < kPair; key += 2) {
      weigh_keys<kParts>(chunk, key, delta,
                         [&](int k, int half, Float product, Float& factor, Float& slope) {
                           factor = load(factors[k] + half);
                           slope = bend_scores(t_.pairs, t_.score, score_scale_, g * kPair + half,
                                               (first_ + c) * kPair + k, product);
                           return mul(sub(product, load(chunk.lse + half)), all(kLog2E));
                         });
    }
  }

  /// dV += P^T dO and dK += dS^T Q.
  void multiply_values(int at, const float* values, int pairs, float* to) {
    const int columns = 2 * pairs;
    for (int c = 0; c < chunks_; ++c) {
      const Range groups = groups_of_[c];
      if (groups.count() == 0) continue;
      const float* const weights =
          t_.weights + at + (c * 2 * kGradGroups + groups.begin) * kTileFloats;
      for (int pair = 0; pair < pairs; ++pair) {
        float* const sums = to + ((first_ + c) * pairs + pair) * kChunkFloats;
        const int part = columns * kTileFloats;
        multiply_tiles<kParts, Streamed::B>(
            {weights, kNextKeys, kTileFloats, Scratch::kPart},
            {values + groups.begin * kParts * part + 2 * pair * kTileFloats, kTileFloats,
             kParts * part, part},
            groups.count(), sums, pending_, sums, nothing_);
      }
    }
  }

  /// dQ^T += K^T dS^T
  void multiply_keys() {
    const int columns = 2 * d_pairs_;
    for (int g = 0; g < seen_.groups(); ++g) {
      const Range chunks = chunks_of_[g];
      if (chunks.count() == 0) continue;
      float* const of_group = dq_.of_group(g, columns);
      for (int pair = 0; pair < d_pairs_; ++pair) {
        float* const sums = of_group + pair * kChunkFloats;
        const int part = columns * kTileFloats;
        multiply_tiles<kParts, Streamed::A>(
            {t_.k_values + (first_ + chunks.begin) * kParts * part + 2 * pair * kTileFloats,
             kTileFloats, kParts * part, part},
            {by_queries(g, chunks.begin), kTileFloats, 2 * kGradGroups * kTileFloats,
             Scratch::kPart},
            chunks.count(), dq_.begun[g] != 0 ? sums : nullptr, pending_, sums, nothing_);
      }
      dq_.begun[g] = 1;
    }
  }

  /// dv, dk and dq without touching hidden pairs.
  void add_exactly() {
    pending_.flush();
    const int columns = 2 * d_pairs_;
    for (int g = 0; g < seen_.groups(); ++g) {
      if (dq_.begun[g] == 0) clear_dq(g);
      for (int c = 0; c < chunks_; ++c) {
        if (kinds_[g][c] == Kind::None) continue;
        const GradChunk chunk = chunk_at(g, c, 0);
        add_rows(t_.dout_values, e_pairs_, g, c, chunk.weights, t_.dv);
        add_rows(t_.q_values, d_pairs_, g, c, chunk.slopes, t_.dk);
        add_columns_exactly<kParts>(t_.k_values + (first_ + c) * kParts * columns * kTileFloats,
                                    chunk.slope_words, Scratch::kPart, chunk.seen, columns,
                                    dq_.of_group(g, columns));
      }
    }
  }
  /// Keys' sums of chunk c += P X of the queries of group g.
  void add_rows(const float* values, int pairs, int g, int c, const float* p, float* sums) const {
    const int part = 2 * pairs * kTileFloats;
    const int left = t_.pairs.q_rows - g * kPair;
    add_rows_exactly<kParts>(values + g * kParts * part, part, p, kNextKeys, Scratch::kPart,
                             kinds_[g][c] == Kind::Whole ? nullptr : seen_.words(g, first_ + c),
                             left < kPair ? left : kPair, pairs,
                             sums + (first_ + c) * pairs * kChunkFloats);
  }
  void clear_dq(int group) const {
    float* const sums = dq_.of_group(group, 2 * d_pairs_);
    for (int i = 0; i < 4 * d_pairs_ * kTileFloats; i += kWidth) store(sums + i, all(0.0f));
    dq_.begun[group] = 1;
  }

  const BackwardTile& t_;
  Seen seen_;
  PendingSums pending_;
  Nothing nothing_;
  QuerySums dq_;
  float score_scale_;  ///< That scores lack: queries of floats have theirs.
  int d_pairs_;        ///< D in parts of 32 elements.
  int e_pairs_;
  // Of the item at hand.
  int first_ = 0;  ///< Its first chunk.
  int chunks_ = 0;
  bool exact_if_wild_ = false;  ///< Not all of its pairs are visible and no padding.
  Kind kinds_[kGradGroups][kGradChunks] = {};
  Range groups_of_[kGradChunks];  ///< That see a chunk.
  Range chunks_of_[kGradGroups];  ///< That a group sees.
};

template <int kParts>
void backward_amx(const BackwardTile& t) {
  [[maybe_unused]] const TileRegisters registers;
  BackwardItems<kParts>(t).run();
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
