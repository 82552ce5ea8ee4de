// amx_backward-inl.h: the gradient of a tile on AMX.
//
//   S^T = K Q^T     dP^T = V dO^T               keys x queries
//   dV += P^T dO    dK += dS^T Q                A: 16 keys of 32 queries
//   dQ^T += K^T dS^T                            B: 16 words of two keys, of 16 queries
//
// A tile is processed in items of 128 keys and 128 queries, so that accumulators of dK, dV and dQ
// are loaded and stored once for four steps of 32 terms. Each item has two phases: P and dS in
// chunks of 32 x 32 (weigh_all), each weighed beside S and dP of the next chunk, while S and dP
// stay in the first cache level; then dV, dK and dQ of the whole item. dq of the tile is
// accumulated in scratch, and transposed and added to the gradient by backward_amx_dq().
#pragma once

#include "armillary/kernel/cpu/amx_scores-inl.h"
#include "armillary/kernel/cpu/backward_tile-inl.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kAmxBackwardQ = 128;
/// Keys of a tile: their packed rows and accumulators take half of the second cache level.
constexpr int amx_backward_k(int parts) {
  return parts == 1 ? 512 : 256;
}
constexpr int kGradGroups = kAmxBackwardQ / kDoubleSide;  ///< groups of 32 queries of an item
constexpr int kGradChunks = 4;                            ///< chunks of 32 keys of an item

/// Layout of BackwardTile::weights, in floats: S and dP of two chunks; P by keys, dS by keys and dS
/// by queries of an item; four tiles of scratch for PendingSums; words and kinds of TileVisibility.
template <int kParts>
struct BackwardScratch {
  static constexpr int kPart = 2 * kGradChunks * kGradGroups * kTileFloats;
  static constexpr int kItem = kParts * kPart;
  static constexpr int kDp = 2 * kChunkFloats;
  static constexpr int kPByKeys = 2 * kDp;
  static constexpr int kDsByKeys = kPByKeys + kItem;
  static constexpr int kDsByQueries = kDsByKeys + kItem;
  static constexpr int kNowhere = kDsByQueries + kItem;
  static constexpr int kVisibility = kNowhere + kChunkFloats;
  static constexpr int kFloats =
      kVisibility + TileVisibility::floats(kGradGroups, amx_backward_k(kParts) / kDoubleSide);
};

/// dq of a tile, in BackwardTile::dscores: accumulators for each group of 32 queries.
struct QuerySums {
  static constexpr int kFloats = kSide + kAmxBackwardQ * 256;

  explicit QuerySums(float* memory) : begun(memory), sums(memory + kSide) {}
  float* of_group(int group, int columns) const { return sums + group * columns * 2 * kTileFloats; }
  float* begun;  ///< 1 for each group that has been written to, else 0
  float* sums;
};

/// Addresses of one chunk of 32 keys and 32 queries: its scores, and the places of its P and dS.
struct GradChunk {
  const float* scores = nullptr;
  const float* dp = nullptr;
  float* p_by_keys = nullptr;      ///< P by keys: rows of the tile of 16 keys, then of the next
  float* ds_by_keys = nullptr;     ///< dS by keys
  float* ds_by_queries = nullptr;  ///< dS by queries: two tiles, of 16 queries each
  const float* lse = nullptr;
  const float* delta = nullptr;
  const std::uint32_t* visible = nullptr;  ///< null if every pair is visible
};
constexpr int kNextKeys = kGradGroups * kTileFloats;  ///< from a tile of 16 keys to the next

/// Stores two vectors as neighbours in bf16, in parts.
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
/// Stores two rows as words of two bf16, in parts.
template <int kParts>
ARMILLARY_INLINE void store_words_of(float* to, Float even, Float odd) {
  if constexpr (kParts == 1) {
    store_words(to, even, odd);
  } else {
    store_word_parts<kParts>(to, BackwardScratch<kParts>::kPart, even, odd);
  }
}

/// P and dS of keys `key` and `key` + 1, 0 where they are hidden. `exponent_of(key, half, product,
/// factor, slope)` returns the base-2 logarithms of the weights of 16 products <q, k>, and sets
/// their dropout factors and d score / d product.
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
      Float derivative;
      Float weight[1] = {
          exponent_of(key + r, h * kSide, load(chunk.scores + at), factor, derivative)};
      power_of_two<kParts>(weight);
      p[r][h] = mul(weight[0], factor);
      const Float dp = mul(load(chunk.dp + at), factor);
      ds[r][h] = mul(mul(weight[0], sub(dp, delta[h])), derivative);
      if (chunk.visible == nullptr) continue;
      p[r][h] = if_visible(chunk.visible + h * kSide, key + r, p[r][h], all(0.0f));
      ds[r][h] = if_visible(chunk.visible + h * kSide, key + r, ds[r][h], all(0.0f));
    }
    const int row = (key + r) / kSide * kNextKeys + (key + r) % kSide * kWidth;
    store_halves_of<kParts>(chunk.p_by_keys + row, p[r][0], p[r][1]);
    store_halves_of<kParts>(chunk.ds_by_keys + row, ds[r][0], ds[r][1]);
  }
  float* const words = chunk.ds_by_queries + key / 2 * kWidth;
  store_words_of<kParts>(words, ds[0][0], ds[1][0]);
  store_words_of<kParts>(words + kTileFloats, ds[0][1], ds[1][1]);
}

/// Weighs a chunk of plain scores, two keys at a time, beside products.
template <int kParts>
class GradWeighing {
 public:
  /// The last parameter is the number of products beside it. Weighing starts after four of them,
  /// since by then the scores of this chunk have been stored.
  GradWeighing(const GradChunk& chunk, float scale, int products)
      : chunk_(chunk),
        scale_(all(scale / log_unit(kParts))),
        pace_(kDoubleSide / 2 * kUnit / (products - 4)) {
    for (int h = 0; h < 2; ++h) {
      minus_lse_[h] = mul(load(chunk.lse + h * kSide), all(-1 / log_unit(kParts)));
      delta_[h] = load(chunk.delta + h * kSide);
    }
    credit_ = -4 * pace_;
  }
  ARMILLARY_INLINE void step() {
    for (credit_ += pace_; credit_ >= kUnit && key_ < kDoubleSide; credit_ -= kUnit) weigh();
  }
  ARMILLARY_INLINE void finish() {
    while (key_ < kDoubleSide) weigh();
  }

 private:
  static constexpr int kUnit = 256;

  ARMILLARY_INLINE void weigh() {
    weigh_keys<kParts>(
        chunk_, key_, delta_,
        [&](int, int half, Float product, Float& factor, Float& derivative) ARMILLARY_LAMBDA {
          factor = derivative = all(1.0f);
          const Float difference = fma(product, scale_, minus_lse_[half / kSide]);
          return kParts == 1 ? difference : mul(difference, all(kLog2E));
        });
    key_ += 2;
  }

  GradChunk chunk_;
  Float scale_;
  Float minus_lse_[2];
  Float delta_[2];
  int pace_;  ///< portions of two keys a product, in units of 1 / kUnit
  int credit_;
  int key_ = 0;
};

/// Runs a tile item by item.
template <int kParts>
class BackwardItems {
 public:
  using Scratch = BackwardScratch<kParts>;

  explicit BackwardItems(const BackwardTile& t)
      : t_(t),
        visibility_(t.pairs, t.weights + Scratch::kVisibility),
        pending_(t.weights + Scratch::kNowhere),
        dq_(t.dscores),
        score_scale_(kParts == 1 ? t.score_scale : 1),
        d_steps_(to_double_side(t.head_dim) / kDoubleSide),
        e_steps_(to_double_side(t.value_dim) / kDoubleSide) {}

  void run() {
    for (int group = 0; group < kGradGroups; ++group) dq_.begun[group] = 0;
    for (first_ = 0; first_ < visibility_.chunks(); first_ += kGradChunks) {
      chunks_ =
          visibility_.chunks() - first_ < kGradChunks ? visibility_.chunks() - first_ : kGradChunks;
      if (find_kinds()) run_item();
    }
    pending_.flush();
  }

 private:
  using Kind = TileVisibility::Kind;
  struct ChunkRange {
    int begin = 0;
    int end = 0;
    void take(int i) {
      if (begin == end) begin = i;
      end = i + 1;
    }
    int count() const { return end - begin; }
  };

  /// Classifies the chunks of the item; returns whether a pair is visible.
  bool find_kinds() {
    bool any = false;
    exact_if_nonfinite_ =
        kParts > 1 || t_.pairs.q_rows % kDoubleSide != 0;  // rows of padding too: 0 * Inf
    for (ChunkRange& range : groups_of_) range = {};
    for (ChunkRange& range : chunks_of_) range = {};
    for (int g = 0; g < visibility_.groups(); ++g) {
      for (int c = 0; c < chunks_; ++c) {
        kinds_[g][c] = visibility_.kind(g, first_ + c);
        exact_if_nonfinite_ |= kinds_[g][c] != Kind::Whole;
        if (kinds_[g][c] == Kind::None) continue;
        any = true;
        groups_of_[c].take(g);
        chunks_of_[g].take(c);
      }
    }
    return any;
  }

  /// Both phases of an item.
  void run_item() {
    weigh_all();
    if (t_.pairs.nonfinite && exact_if_nonfinite_) return add_exactly();
    multiply_values(Scratch::kPByKeys, t_.dout_values, e_steps_, t_.dv);
    multiply_values(Scratch::kDsByKeys, t_.q_values, d_steps_, t_.dk);
    multiply_keys();
  }

  /// P and dS of the item: each chunk is weighed beside S and dP of the next.
  void weigh_all() {
    GradChunk last;
    bool has_last = false;
    int place = 0;
    for (int c = 0; c < chunks_; ++c) {
      for (int g = 0; g < visibility_.groups(); ++g) {
        if (kinds_[g][c] == Kind::None) {
          if (between(g, c)) clear(g, c);
          continue;
        }
        const GradChunk chunk = chunk_at(g, c, place++ % 2);
        if (!has_last) {
          multiply_scores(g, c, chunk, nothing_);
        } else {
          GradWeighing<kParts> weighing(last, score_scale_,
                                        products_per_step(kParts) * 4 * (d_steps_ + e_steps_));
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

  /// Addresses of a chunk. Scores alternate between two places, since one chunk is weighed
  /// while the next is multiplied.
  GradChunk chunk_at(int g, int c, int place) const {
    GradChunk chunk;
    chunk.scores = t_.weights + place * kChunkFloats;
    chunk.dp = chunk.scores + Scratch::kDp;
    chunk.p_by_keys = t_.weights + Scratch::kPByKeys + (c * 2 * kGradGroups + g) * kTileFloats;
    chunk.ds_by_keys = chunk.p_by_keys + Scratch::kItem;
    chunk.ds_by_queries = by_queries(g, c);
    chunk.lse = t_.lse + g * kDoubleSide;
    chunk.delta = t_.delta + g * kDoubleSide;
    if (kinds_[g][c] == Kind::Partial) chunk.visible = visibility_.words(g, first_ + c);
    return chunk;
  }
  /// dS by queries of a chunk.
  float* by_queries(int g, int c) const {
    return t_.weights + Scratch::kDsByQueries + (c * 2 * kGradGroups + g * 2) * kTileFloats;
  }

  /// Whether a chunk without visible pairs lies within the ranges that are multiplied.
  bool between(int g, int c) const {
    const ChunkRange& groups = groups_of_[c];
    const ChunkRange& chunks = chunks_of_[g];
    return (groups.begin < g && g < groups.end) || (chunks.begin < c && c < chunks.end);
  }
  /// Sets P and dS of such a chunk to 0.
  void clear(int g, int c) const {
    const GradChunk chunk = chunk_at(g, c, 0);
    for (int part = 0; part < kParts; ++part) {
      for (int i = part * Scratch::kPart; i < part * Scratch::kPart + kTileFloats; i += kWidth) {
        store(chunk.p_by_keys + i, all(0.0f));
        store(chunk.p_by_keys + kNextKeys + i, all(0.0f));
        store(chunk.ds_by_keys + i, all(0.0f));
        store(chunk.ds_by_keys + kNextKeys + i, all(0.0f));
        store(chunk.ds_by_queries + i, all(0.0f));
        store(chunk.ds_by_queries + kTileFloats + i, all(0.0f));
      }
    }
  }

  // Parts are added in the order of forward, so that scores have the same bits in both passes.
  static constexpr Streamed kScoresStreamed = kParts == 1 ? Streamed::B : Streamed::A;

  template <class Beside>
  ARMILLARY_INLINE void multiply_scores(int g, int c, const GradChunk& chunk, Beside& beside) {
    const auto multiply = [&](const float* keys, const float* queries, int steps,
                              const float* result) ARMILLARY_LAMBDA {
      const int part = steps * 2 * kTileFloats;
      const TilesOf a{keys + (first_ + c) * kParts * part, part / 2, kTileFloats, part};
      const TilesOf b{.data = queries + g * kParts * part, .part = part};
      auto* const to = const_cast<float*>(result);
      multiply_tiles<kParts, kScoresStreamed>({.a = a, .b = b, .steps = steps, .to = to}, pending_,
                                              beside);
      if (kParts > 1 && t_.pairs.nonfinite) {
        pending_.flush();
        mend_scores<kParts>(a.data, b.data, steps, to);
      }
    };
    multiply(t_.k_transposed, t_.q, d_steps_, chunk.scores);
    multiply(t_.v_transposed, t_.dout, e_steps_, chunk.dp);
  }

  /// Whether a log-sum-exp is so large that products must be rounded before the difference is
  /// taken, as in forward (scale_if_large).
  static bool is_large(const float* lse) {
    constexpr float kLarge = 0x1p10f;
    for (int q = 0; q < kDoubleSide; ++q) {
      const float size = __builtin_fabsf(lse[q]);
      if (size > kLarge && size < kInf) return true;
    }
    return false;
  }

  /// Weighs a chunk with features of the score, or with large log-sum-exps, without products beside
  /// it.
  void weigh_with_score(int g, int c, const GradChunk& chunk) {
    pending_.flush();
    float factors[kDoubleSide][kDoubleSide];
    fill_factors(t_.pairs, t_.score, g, first_ + c, factors);
    const Float delta[2] = {load(chunk.delta), load(chunk.delta + kSide)};
    for (int key = 0; key < kDoubleSide; key += 2) {
      weigh_keys<kParts>(
          chunk, key, delta, [&](int k, int half, Float product, Float& factor, Float& derivative) {
            factor = load(factors[k] + half);
            derivative =
                softcap_alibi_scores({t_.pairs, t_.score, score_scale_}, g * kDoubleSide + half,
                                     (first_ + c) * kDoubleSide + k, product);
            return mul(sub(product, load(chunk.lse + half)), all(kLog2E));
          });
    }
  }

  /// dV += P^T dO and dK += dS^T Q: `at` is the place of P or dS in the scratch, `steps` the width
  /// of values and sums in steps of 32 elements.
  void multiply_values(int at, const float* values, int steps, float* to) {
    const int part = 2 * steps * kTileFloats;
    for (int c = 0; c < chunks_; ++c) {
      const ChunkRange groups = groups_of_[c];
      if (groups.count() == 0) continue;
      const float* const weights =
          t_.weights + at + (c * 2 * kGradGroups + groups.begin) * kTileFloats;
      const float* const first = values + groups.begin * kParts * part;
      for (int step = 0; step < steps; ++step) {
        float* const sums = to + ((first_ + c) * steps + step) * kChunkFloats;
        multiply_tiles<kParts, Streamed::B>(
            {.a = {weights, kNextKeys, kTileFloats, Scratch::kPart},
             .b = {first + 2 * step * kTileFloats, kTileFloats, kParts * part, part},
             .steps = groups.count(),
             .from = sums,
             .to = sums},
            pending_, nothing_);
      }
    }
  }

  /// dQ^T += K^T dS^T, for each group of 32 queries.
  void multiply_keys() {
    const int columns = 2 * d_steps_;
    const int part = columns * kTileFloats;
    for (int g = 0; g < visibility_.groups(); ++g) {
      const ChunkRange chunks = chunks_of_[g];
      if (chunks.count() == 0) continue;
      float* const of_group = dq_.of_group(g, columns);
      const float* const first = t_.k_values + (first_ + chunks.begin) * kParts * part;
      for (int step = 0; step < d_steps_; ++step) {
        float* const sums = of_group + step * kChunkFloats;
        multiply_tiles<kParts, Streamed::A>(
            {.a = {first + 2 * step * kTileFloats, kTileFloats, kParts * part, part},
             .b = {by_queries(g, chunks.begin), kTileFloats, 2 * kGradGroups * kTileFloats,
                   Scratch::kPart},
             .steps = chunks.count(),
             .from = dq_.begun[g] != 0 ? sums : nullptr,
             .to = sums},
            pending_, nothing_);
      }
      dq_.begun[g] = 1;
    }
  }

  /// dv, dk and dq over visible pairs only, since 0 * NaN of a hidden pair would be NaN.
  void add_exactly() {
    pending_.flush();
    const int columns = 2 * d_steps_;
    for (int g = 0; g < visibility_.groups(); ++g) {
      if (dq_.begun[g] == 0) clear_dq(g);
      for (int c = 0; c < chunks_; ++c) {
        if (kinds_[g][c] == Kind::None) continue;
        const GradChunk chunk = chunk_at(g, c, 0);
        add_rows(g, c, {t_.dout_values, e_steps_, chunk.p_by_keys, t_.dv});
        add_rows(g, c, {t_.q_values, d_steps_, chunk.ds_by_keys, t_.dk});
        add_columns_exactly<kParts>(
            {.x = t_.k_values + (first_ + c) * kParts * columns * kTileFloats,
             .columns = columns,
             .words = chunk.ds_by_queries,
             .words_part = Scratch::kPart,
             .visible = chunk.visible,
             .sums = dq_.of_group(g, columns)});
      }
    }
  }
  /// Factors and accumulators of dV or dK: `p` is P or dS of a chunk, by keys.
  struct KeySums {
    const float* values = nullptr;
    int steps = 0;
    const float* p = nullptr;
    float* sums = nullptr;
  };
  /// Accumulators of keys of chunk c += P X over the queries of group g.
  void add_rows(int g, int c, const KeySums& of) const {
    const int part = 2 * of.steps * kTileFloats;
    const int left = t_.pairs.q_rows - g * kDoubleSide;
    add_rows_exactly<kParts>(
        {.x = of.values + g * kParts * part,
         .x_part = part,
         .p = of.p,
         .next = kNextKeys,
         .p_part = Scratch::kPart,
         .visible = kinds_[g][c] == Kind::Whole ? nullptr : visibility_.words(g, first_ + c),
         .queries = left < kDoubleSide ? left : kDoubleSide,
         .steps = of.steps,
         .sums = of.sums + (first_ + c) * of.steps * kChunkFloats});
  }
  void clear_dq(int group) const {
    float* const sums = dq_.of_group(group, 2 * d_steps_);
    for (int i = 0; i < 4 * d_steps_ * kTileFloats; i += kWidth) store(sums + i, all(0.0f));
    dq_.begun[group] = 1;
  }

  const BackwardTile& t_;
  TileVisibility visibility_;
  PendingSums pending_;
  Nothing nothing_;
  QuerySums dq_;
  float score_scale_;  ///< factor that scores lack; queries of floats have theirs
  int d_steps_;        ///< steps of 32 elements of D
  int e_steps_;        ///< steps of 32 elements of E
  // State of the current item.
  int first_ = 0;                    ///< its first chunk
  int chunks_ = 0;                   ///< its chunks of keys
  bool exact_if_nonfinite_ = false;  ///< a hidden pair or padding is multiplied
  Kind kinds_[kGradGroups][kGradChunks] = {};
  ChunkRange groups_of_[kGradChunks];  ///< groups of queries that see a chunk
  ChunkRange chunks_of_[kGradGroups];  ///< chunks of keys that a group sees
};

template <int kParts>
void backward_amx(const BackwardTile& t) {
  [[maybe_unused]] const TileRegisters registers;
  BackwardItems<kParts>(t).run();
}

/// GemmOps::backward_dq: transposes dq of the tile and adds it, scaled, to the gradient.
inline void backward_amx_dq(const BackwardTile& t) {
  const QuerySums dq(t.dscores);
  const int columns = to_double_side(t.head_dim) / kSide;
  for (int first = 0; first < t.pairs.q_rows; first += kDoubleSide) {
    if (dq.begun[first / kDoubleSide] == 0) continue;
    const int rows = t.pairs.q_rows - first < kDoubleSide ? t.pairs.q_rows - first : kDoubleSide;
    for_each_row_of(dq.of_group(first / kDoubleSide, columns), rows, t.head_dim,
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
