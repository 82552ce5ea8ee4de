// amx_forward-inl.h: the forward tile on AMX, and how its result is written.
//
//   S^T = K Q^T        keys x queries, so a column has the scores of one query
//   P^T = exp(S^T)     as bf16: two rows of S^T give one row of 32-bit words with two weights each,
//                      the layout that AMX requires of the right factor of the next product
//   O^T = V^T P^T
//
// The kernel processes a tile (a query row block and a key row block) in chunks of 32 keys and 32
// queries. To weigh a chunk is to compute its weights P from its scores S, with vector
// instructions. Meanwhile the tile unit multiplies S of a following chunk, and a share of O of the
// previous item. An item is a sequence of up to four chunks of the same 32 queries (a group). O is
// loaded into tile registers and stored once per item; the products of all its chunks are added
// there.
//
// The largest score of a query has weight 1 if the maximum is exact. bf16 represents 1 exactly and
// rounds most other weights, which matters while a sum is over few keys. So in the first tile of a
// query all scores of its group (an "early" group) are computed before any is weighed, and the
// maxima are exact for this tile. Chunks of other groups are weighed with the maxima so far. If
// that has doubled a sum or added 2^40 to it, the chunk is weighed again with new maxima. Floats
// are multiplied in three parts (amx-inl.h), and P has parts as well.
#pragma once

#include "armillary/kernel/cpu/amx_scores-inl.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kAmxForwardQ = 512;
constexpr int kAmxForwardK = 256;
constexpr int kChunksOfTile = kAmxForwardK / kDoubleSide;
constexpr int kGroupsOfTile = kAmxForwardQ / kDoubleSide;

/// Chunks of an item, at most: their P stays in the first cache level.
constexpr int kItemChunks = 4;

/// 32 keys that a group of 32 queries sees.
struct Chunk {
  int group = 0;
  int keys = 0;  ///< index of these 32 keys in the tile
  int end = 0;   ///< one past the last chunk of its group
  bool partial = false;
  bool early = false;       ///< its group has all scores computed before any is weighed
  float* scores = nullptr;  ///< S^T; chunks of an early group are contiguous
};

/// Evenly spaced chunks of a group whose P is kept at the same time.
struct Item {
  int first = 0;  ///< number of the first chunk
  int count = 0;
  int buffer = 0;   ///< which of the two buffers holds P
  int columns = 0;  ///< columns of 16 elements of O that are done
};

/// Layout of ForwardTile::scores, as offsets in floats: S of two early groups; S of two chunks of
/// other groups; P of two items; memory that PendingSums writes when no accumulators are pending;
/// the visibility bits of the tile (TileVisibility).
template <int kParts>
struct ForwardScratch {
  static constexpr int kGroup = kChunksOfTile * kChunkFloats;
  static constexpr int kLate = 2 * kGroup;
  static constexpr int kWeights = kLate + 2 * kChunkFloats;
  static constexpr int kChunk = kParts * kWeightFloats;
  static constexpr int kItem = kItemChunks * kChunk;
  static constexpr int kNowhere = kWeights + 2 * kItem;
  static constexpr int kVisibility = kNowhere + kChunkFloats;
  static constexpr int kFloats = kVisibility + TileVisibility::floats(kGroupsOfTile, kChunksOfTile);
};

/// The pipeline over one tile. Phases of run(): scores of the first chunks, then for each chunk:
/// maxima (begin), weights beside products (weigh_beside) or alone (weigh_alone), and O when an
/// item is complete (end_item).
template <int kParts>
class ForwardPipeline {
 public:
  using Scratch = ForwardScratch<kParts>;

  explicit ForwardPipeline(const ForwardTile& t)
      : t_(t),
        visibility_(t.pairs, t.scores + Scratch::kVisibility),
        pending_(t.scores + Scratch::kNowhere),
        d_steps_(to_double_side(t.head_dim) / kDoubleSide),
        columns_(to_double_side(t.value_dim) / kSide),
        max_item_chunks_(columns_ < 2 * kItemChunks ? (columns_ + 1) / 2 : kItemChunks),
        scale_(kParts == 1 ? t.scale : 1),
        transforms_scores_(t.score.softcap != 0 || t.score.slope != 0 || !(scale_ * kLog2E > 0)),
        beside_(!transforms_scores_ && t.score.dropout == nullptr),
        score_scale_((transforms_scores_ ? 1 : scale_) / log_unit(kParts)) {
    last_.columns = columns_;  // no previous item: nothing left to add
    for (int group = 0; group < visibility_.groups(); ++group) add_chunks(group);
  }

  void run() {
    if (count_ == 0) return;
    multiply_scores(needed_for(0), nothing_);
    pending_.flush();
    for (int i = 0; i < count_; ++i) {
      begin(i);
      if (beside_) {
        weigh_beside(i);
      } else {
        weigh_alone(i);
      }
      if (i + 1 == end_of_item_) end_item();
    }
    finish(last_);
    pending_.flush();
  }

 private:
  float* weights(const Item& item, int i) const {
    return t_.scores + Scratch::kWeights + item.buffer * Scratch::kItem +
           (i - item.first) * Scratch::kChunk;
  }
  float* max(int i) const { return t_.max + chunks_[i].group * kDoubleSide; }
  float* sums(int i) const { return t_.sum + chunks_[i].group * kDoubleSide; }
  float* out(int i) const { return t_.out + chunks_[i].group * columns_ * 2 * kTileFloats; }

  /// Lists the visible chunks of a group. A group is early if one of its queries has no sum yet, if
  /// scores are transformed, with dropout, or if the largest logit is asked for.
  void add_chunks(int group) {
    const float* const sums = t_.sum + group * kDoubleSide;
    const bool early = !beside_ || t_.max_logit != nullptr || any_equal(load(sums), 0) ||
                       any_equal(load(sums + kSide), 0);
    const int first = count_;
    for (int keys = 0; keys < visibility_.chunks(); ++keys) {
      const TileVisibility::Kind kind = visibility_.kind(group, keys);
      if (kind == TileVisibility::Kind::None) continue;
      float* const scores =
          t_.scores + (early ? early_groups_ % 2 * Scratch::kGroup + (count_ - first) * kChunkFloats
                             : Scratch::kLate + count_ % 2 * kChunkFloats);
      chunks_[count_++] = {.group = group,
                           .keys = keys,
                           .partial = kind == TileVisibility::Kind::Partial,
                           .early = early,
                           .scores = scores};
    }
    for (int i = first; i < count_; ++i) chunks_[i].end = count_;
    if (early && first < count_) ++early_groups_;
  }

  /// Number of chunks whose scores are needed before chunk i is weighed.
  int needed_for(int i) const {
    if (i >= count_) return count_;
    return chunks_[i].early ? chunks_[i].end : i + 1;
  }
  /// Number of chunks whose scores are computed by the time chunk i is weighed. Those of an early
  /// group are shared out evenly among the chunks of the early group before it.
  int scored_beside(int i) const {
    const int next = chunks_[i].end;
    const int least = needed_for(i + 1);
    if (!chunks_[i].early || next == count_ || !chunks_[next].early) return least;
    const int chunks_left = next - i;
    const int shared = scored_ + (chunks_[next].end - scored_ + chunks_left - 1) / chunks_left;
    return least > shared ? least : shared;
  }

  /// Computes S of the chunks up to `end`.
  template <class Beside>
  ARMILLARY_INLINE void multiply_scores(int end, Beside& beside) {
    const int part = d_steps_ * 2 * kTileFloats;
    for (; scored_ < end; ++scored_) {
      const Chunk& chunk = chunks_[scored_];
      const TilesOf queries{.data = t_.q + chunk.group * kParts * part, .part = part};
      const float* const keys = t_.k + chunk.keys * kParts * part;
      multiply_tiles<kParts, Streamed::A>({.a = {keys, part / 2, kTileFloats, part},
                                           .b = queries,
                                           .steps = d_steps_,
                                           .to = chunk.scores},
                                          pending_, beside);
      if (kParts > 1 && t_.pairs.nonfinite) {
        pending_.flush();
        mend_scores<kParts>(keys, queries.data, d_steps_, chunk.scores);
      }
    }
  }

  /// Adds O of an item up to column `end`.
  template <class Beside>
  ARMILLARY_INLINE void multiply_values(Item& item, int end, Beside& beside) {
    if (item.columns == end) return;
    if (t_.pairs.nonfinite && needs_exactness(item)) return add_exactly(item);
    const Chunk& chunk = chunks_[item.first];
    const int part = columns_ * kTileFloats;
    const int next = item.count == 1 ? 0 : chunks_[item.first + 1].keys - chunk.keys;
    const TilesOf words{weights(item, item.first), kTileFloats, Scratch::kChunk, kWeightFloats};
    for (; item.columns < end; item.columns += 2) {
      const float* const v = t_.v + chunk.keys * kParts * part + item.columns * kTileFloats;
      float* const to = out(item.first) + item.columns * 2 * kTileFloats;
      multiply_tiles<kParts, Streamed::A>({.a = {v, kTileFloats, next * kParts * part, part},
                                           .b = words,
                                           .steps = item.count,
                                           .from = to,
                                           .to = to},
                                          pending_, beside);
    }
  }
  void finish(Item& item) { multiply_values(item, columns_, nothing_); }

  /// Prepares the weighing of chunk i: its item, its scale and its maxima.
  void begin(int i) {
    const Chunk& chunk = chunks_[i];
    if (i == end_of_item_) begin_item(i);
    const bool begins_group = i == 0 || chunks_[i - 1].group != chunk.group;
    if (chunk.early && !begins_group) return;
    scale_at_hand_ = score_scale_;
    if (chunk.early) return raise_early_maxima(i);
    hide(chunk);
    scale_if_large(chunk.scores, 1, max(i), scale_at_hand_);
  }
  /// An item holds chunks that are evenly spaced, since a product has one distance between steps.
  void begin_item(int i) {
    item_ = {.first = i, .buffer = 1 - last_.buffer};
    const Chunk* const chunk = &chunks_[i];
    int end = i + 1;
    while (end < chunk->end && end - i < max_item_chunks_ &&
           chunks_[end].keys - chunks_[end - 1].keys == chunks_[i + 1].keys - chunk->keys) {
      ++end;
    }
    item_.count = end - i;
    end_of_item_ = end;
  }
  void end_item() {
    finish(last_);
    last_ = item_;
  }

  /// Weighs chunk i while S of following chunks and a share of O of the last item are multiplied.
  void weigh_beside(int i) {
    const int scores = scored_beside(i);
    const int columns = share_of_columns(i);
    const int products =
        4 * d_steps_ * (scores - scored_) + 2 * last_.count * (columns - last_.columns);
    float sums_of[kDoubleSide];
    __builtin_memcpy(sums_of, sums(i), sizeof sums_of);
    Weighing<kParts> weighing(chunks_[i].scores, weights(item_, i), scale_at_hand_);
    weighing.begin(max(i), sums_of, products_per_step(kParts) * products);
    const bool progress = scored_ < scores;
    multiply_scores(scores, weighing);
    if (columns == last_.columns) {
      if (progress) pending_.flush();  // S may be read next
    } else {
      multiply_values(last_, columns, weighing);
    }
    weighing.finish();
    if (!chunks_[i].early && (dominates(i, sums_of, 0) || dominates(i, sums_of, kSide))) {
      return weigh_again(i);
    }
    __builtin_memcpy(sums(i), sums_of, sizeof sums_of);
  }
  /// Columns of O of the last item that are done when chunk i is weighed: an even share for each
  /// chunk.
  int share_of_columns(int i) const {
    const int left = (columns_ - last_.columns) / 2;
    const int chunks = end_of_item_ - i;
    return last_.columns + (left + chunks - 1) / chunks * 2;
  }

  /// Whether the sum of one of 16 queries has doubled, or has grown by more than 2^40.
  bool dominates(int i, const float* sums_of, int half) const {
    const Float before = load(sums(i) + half);
    const Float added = sub(load(sums_of + half), before);
    return any_above(sub(added, min(before, all(0x1p40f))), 0);
  }

  /// Weighs a chunk again, with maxima of its own. O of the chunks before it is completed first,
  /// since raising maxima rescales it.
  void weigh_again(int i) {
    finish(last_);
    if (item_.first < i) {
      item_.count = i - item_.first;
      end_item();
      finish(last_);
      begin_item(i);
    }
    pending_.flush();
    float tops[kDoubleSide];
    find_tops(chunks_[i].scores, 1, tops);
    raise(i, tops);
    scale_if_large(chunks_[i].scores, 1, max(i), scale_at_hand_);
    weigh(i);
  }

  /// Weighs chunk i first and multiplies afterwards, for scores that are transformed (softcap,
  /// ALiBi) and for dropout.
  void weigh_alone(int i) {
    finish(last_);
    weigh(i);
    const int scores = scored_beside(i);
    if (scored_ == scores) return;
    multiply_scores(scores, nothing_);
    pending_.flush();
  }

  /// Weighs one chunk, without products beside it.
  void weigh(int i) {
    if (t_.score.dropout != nullptr) return weigh_dropped(i);
    Weighing<kParts> weighing(chunks_[i].scores, weights(item_, i), scale_at_hand_);
    weighing.begin(max(i), sums(i), 0);
    weighing.finish();
  }

  /// The same with dropout. Sums are those of weights before dropout.
  void weigh_dropped(int i) {
    const Chunk& chunk = chunks_[i];
    float factors[kDoubleSide][kDoubleSide];  // by key, then query
    fill_factors(t_.pairs, t_.score, chunk.group, chunk.keys, factors);
    for (int half = 0; half < kDoubleSide; half += kSide) {
      const Float top = load(max(i) + half);
      const Float minus_base = if_less(top, all(kNoScore), all(0.0f), sub(all(0.0f), top));
      Float even = all(0.0f);  // in the order of Weighing
      Float odd = all(0.0f);
      for (int key = 0; key < kDoubleSide; key += 2) {
        const float* const row =
            chunk.scores + (key / kSide * 2 + half / kSide) * kTileFloats + key % kSide * kWidth;
        Float x[2] = {fma(load(row), all(scale_at_hand_), minus_base),
                      fma(load(row + kWidth), all(scale_at_hand_), minus_base)};
        weigh_differences<kParts>(x);
        even = add(even, x[0]);
        odd = add(odd, x[1]);
        store_weights_of<kParts>(weights(item_, i) + half * kSide + key / 2 * kWidth,
                                 mul(x[0], load(factors[key] + half)),
                                 mul(x[1], load(factors[key + 1] + half)));
      }
      store(sums(i) + half, add(load(sums(i) + half), add(even, odd)));
    }
  }

  /// Completes the scores of an early group, whose first chunk is i, and raises its maxima where
  /// its largest scores require it (raise_maxima).
  void raise_early_maxima(int i) {
    const int chunks = chunks_[i].end - i;
    float* const x = chunks_[i].scores;
    for (int c = i; c < chunks_[i].end; ++c) {
      if (transforms_scores_) apply_softcap_alibi(chunks_[c]);
      hide(chunks_[c]);
    }
    float tops[kDoubleSide];
    find_tops(x, chunks, tops);
    if (t_.max_logit != nullptr) raise_logit(i, tops);
    raise(i, tops);
    scale_if_large(x, chunks, max(i), scale_at_hand_);
  }
  /// Raises the maxima of the group of chunk i, and rescales its O, which must be in memory.
  void raise(int i, const float* tops) {
    float factors[kDoubleSide];
    if (!raise_maxima<kParts>(tops, scale_at_hand_, max(i), sums(i), factors)) return;
    const Float by[2] = {load(factors), load(factors + kSide)};
    float* row = out(i);
    for (int tile = 0; tile < 2 * columns_; ++tile) {
      for (int r = 0; r < kSide; ++r, row += kWidth) store(row, mul(load(row), by[tile % 2]));
    }
  }

  /// Sets hidden scores to -inf.
  void hide(const Chunk& chunk) const {
    if (!chunk.partial) return;
    const std::uint32_t* const visible = visibility_.words(chunk.group, chunk.keys);
    for_each_score_row(chunk.scores, [&](int query, int key, float* row) ARMILLARY_LAMBDA {
      store(row, if_visible(visible + query, key, load(row), all(-kInf)));
    });
  }
  void apply_softcap_alibi(const Chunk& chunk) const {
    for_each_score_row(chunk.scores, [&](int query, int key, float* row) {
      Float x = load(row);
      softcap_alibi_scores({t_.pairs, t_.score, scale_}, chunk.group * kDoubleSide + query,
                           chunk.keys * kDoubleSide + key, x);
      store(row, x);
    });
  }

  void raise_logit(int i, const float* tops) const {
    const float scale = transforms_scores_ ? 1 : scale_;
    const float* const x = chunks_[i].scores;
    const int count = chunks_[i].end - i;
    const int first = chunks_[i].group * kDoubleSide;
    const bool nan = any_nan(x, count);
    for (int q = 0; q < kDoubleSide && first + q < t_.pairs.q_rows; ++q) {
      const float top =
          nan && has_nan(x, count, q) ? __builtin_nanf("") : tops[q] * scale + 0.0f;  // never -0
      if (top != top || top > *t_.max_logit) *t_.max_logit = top;
    }
  }

  /// Whether tile products would be wrong for this item if a factor is NaN or Inf: it has hidden
  /// pairs, whose weight 0 times NaN is NaN, or floats in parts, where Inf has parts that are 0.
  bool needs_exactness(const Item& item) const {
    bool partial = kParts > 1;
    for (int i = item.first; i < item.first + item.count; ++i) partial |= chunks_[i].partial;
    return partial;
  }
  /// O^T += V^T P^T over visible pairs only, since 0 * NaN of a hidden pair would be NaN.
  void add_exactly(Item& item) {
    pending_.flush();
    for (int i = item.first; i < item.first + item.count; ++i) {
      const Chunk& chunk = chunks_[i];
      add_columns_exactly<kParts>(
          {.x = t_.v + chunk.keys * kParts * columns_ * kTileFloats,
           .columns = columns_,
           .words = weights(item, i),
           .words_part = kWeightFloats,
           .visible = chunk.partial ? visibility_.words(chunk.group, chunk.keys) : nullptr,
           .sums = out(i)});
    }
    item.columns = columns_;
  }

  const ForwardTile& t_;
  TileVisibility visibility_;
  PendingSums pending_;
  Nothing nothing_;
  int d_steps_;          ///< steps of 32 elements of D
  int columns_;          ///< columns of 16 elements of E
  int max_item_chunks_;  ///< most chunks of an item: two columns of O are multiplied beside each
  float scale_;  ///< factor still to be applied to S; 1 for floats: their packed queries have it
  bool transforms_scores_;  ///< scores are transformed in memory before they are weighed
  bool beside_;             ///< chunks are weighed beside products
  float score_scale_;       ///< from scores as computed to the unit of maxima
  float scale_at_hand_ =
      1;  ///< the same for the scores being weighed; 1 if they are scaled already
  int count_ = 0;
  int early_groups_ = 0;
  int scored_ = 0;       ///< chunks whose scores are computed
  int end_of_item_ = 0;  ///< one past the last chunk of item_
  Item item_;            ///< being weighed
  Item last_;            ///< weighed: P is complete, O is being added
  Chunk chunks_[kGroupsOfTile * kChunksOfTile];
};

template <int kParts>
void forward_amx(const ForwardTile& t) {
  [[maybe_unused]] const TileRegisters registers;
  ForwardPipeline<kParts>(t).run();
}

// The state of queries of a tile as rows of the result.
//
// Accumulators of queries have queries as columns. 16 x 16 of them are transposed at a time; bf16
// results are rounded first, so that two columns are transposed as one word.

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
