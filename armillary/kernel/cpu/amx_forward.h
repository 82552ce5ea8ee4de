// amx_forward.h: the forward tile on AMX.
//
//   S^T = K Q^T        keys x queries, so that what belongs to a query is a column
//   P^T = exp(S^T)     two rows of S^T are one row of words, the B of the next product
//   O^T = V^T P^T
//
// Work runs in a pipeline over the chunks of a tile, of 32 keys and 32 queries: beside the products
// of S of the next chunk, and of a share of O of the item before, vector units weigh a chunk. An
// item is 128 keys at most, whose O is added up in registers.
//
// Floats are multiplied in three parts (amx.h), of which P has its own.
//
// bf16 has 1 exactly, which is the weight of a largest score, and rounds other weights. While few
// keys share a sum that matters: so in the first tile of a query all scores of a group of 32
// queries are made before one is weighed, and its maxima are those of the tile. Later chunks are
// weighed without a look, and again if they have doubled a sum, or added 2^40 to it.
#pragma once

#include "armillary/kernel/cpu/amx_exact.h"
#include "armillary/kernel/cpu/amx_seen.h"
#include "armillary/kernel/cpu/amx_weighing.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kAmxForwardQ = 512;
constexpr int kAmxForwardK = 256;
constexpr int kChunksOfTile = kAmxForwardK / kPair;
constexpr int kGroupsOfTile = kAmxForwardQ / kPair;

constexpr int kItemChunks = 4;  ///< Of an item, at most: their P stays in the first cache.

/// 32 keys that a group of 32 queries sees.
struct Chunk {
  int group = 0;
  int keys = 0;  ///< Which 32 of the tile.
  int end = 0;   ///< One past the last chunk of its group.
  bool partial = false;
  bool early = false;       ///< All of its group are looked at before one is weighed.
  float* scores = nullptr;  ///< Early ones of a group are neighbours.
};

/// Evenly spaced chunks of a group, whose P are there together.
struct Item {
  int first = 0;  ///< Chunk.
  int count = 0;
  int buffer = 0;   ///< Of P, of two.
  int columns = 0;  ///< Of 16 elements, whose O has it.
};

/// Scratch of a tile, in floats: S of two groups and of two chunks more; P of two items; sums that
/// belong nowhere; words of Seen.
template <int kParts>
struct ForwardScratch {
  static constexpr int kGroup = kChunksOfTile * kChunkFloats;
  static constexpr int kLate = 2 * kGroup;
  static constexpr int kWeights = kLate + 2 * kChunkFloats;
  static constexpr int kChunk = kParts * kWeightFloats;
  static constexpr int kItem = kItemChunks * kChunk;
  static constexpr int kNowhere = kWeights + 2 * kItem;
  static constexpr int kSeen = kNowhere + kChunkFloats;
  static constexpr int kFloats = kSeen + Seen::floats(kGroupsOfTile, kChunksOfTile);
};

template <int kParts>
class ForwardPipeline {
 public:
  using Scratch = ForwardScratch<kParts>;

  explicit ForwardPipeline(const ForwardTile& t)
      : t_(t),
        seen_(t.pairs, t.scores + Scratch::kSeen),
        pending_(t.scores + Scratch::kNowhere),
        terms_(to_pairs(t.head_dim) / kPair),
        columns_(to_pairs(t.value_dim) / kSide),
        most_(columns_ < 2 * kItemChunks ? (columns_ + 1) / 2 : kItemChunks),
        scale_(kParts == 1 ? t.scale : 1),
        bends_(t.score.softcap != 0 || t.score.slope != 0 || !(scale_ * kLog2E > 0)),
        beside_(!bends_ && t.score.dropout == nullptr),
        score_scale_((bends_ ? 1 : scale_) / log_unit(kParts)) {
    last_.columns = columns_;  // there is none
    for (int group = 0; group < seen_.groups(); ++group) add_chunks(group);
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
  float* max(int i) const { return t_.max + chunks_[i].group * kPair; }
  float* sums(int i) const { return t_.sum + chunks_[i].group * kPair; }
  float* out(int i) const { return t_.out + chunks_[i].group * columns_ * 2 * kTileFloats; }

  void add_chunks(int group) {
    const float* const sums = t_.sum + group * kPair;
    const bool early = !beside_ || t_.max_logit != nullptr || any_equal(load(sums), 0) ||
                       any_equal(load(sums + kSide), 0);
    const int first = count_;
    for (int keys = 0; keys < seen_.chunks(); ++keys) {
      const Seen::Kind kind = seen_.kind(group, keys);
      if (kind == Seen::Kind::None) continue;
      float* const scores =
          t_.scores + (early ? early_groups_ % 2 * Scratch::kGroup + (count_ - first) * kChunkFloats
                             : Scratch::kLate + count_ % 2 * kChunkFloats);
      chunks_[count_++] = {.group = group,
                           .keys = keys,
                           .partial = kind == Seen::Kind::Partial,
                           .early = early,
                           .scores = scores};
    }
    for (int i = first; i < count_; ++i) chunks_[i].end = count_;
    if (early && first < count_) ++early_groups_;
  }

  /// Chunks whose scores must be there before chunk i is weighed.
  int needed_for(int i) const {
    if (i >= count_) return count_;
    return chunks_[i].early ? chunks_[i].end : i + 1;
  }
  /// Chunks whose scores are made before or beside chunk i: those of an early group are shared out
  /// among the chunks of an early group before.
  int made_beside(int i) const {
    const int next = chunks_[i].end;
    const int least = needed_for(i + 1);
    if (!chunks_[i].early || next == count_ || !chunks_[next].early) return least;
    const int chunks_left = next - i;
    const int shared = made_ + (chunks_[next].end - made_ + chunks_left - 1) / chunks_left;
    return least > shared ? least : shared;
  }

  /// S of chunks up to `end`.
  template <class Beside>
  ARMILLARY_INLINE void multiply_scores(int end, Beside& beside) {
    const int part = terms_ * 2 * kTileFloats;
    for (; made_ < end; ++made_) {
      const Chunk& chunk = chunks_[made_];
      const TilesOf queries{.data = t_.q + chunk.group * kParts * part, .part = part};
      const float* const keys = t_.k + chunk.keys * kParts * part;
      multiply_tiles<kParts, Streamed::A>({keys, part / 2, kTileFloats, part}, queries, terms_,
                                          nullptr, pending_, chunk.scores, beside);
      if (kParts > 1 && t_.pairs.wild) {
        pending_.flush();
        mend_scores<kParts>(keys, queries.data, terms_, chunk.scores);
      }
    }
  }

  /// O of an item up to `end` of its columns.
  template <class Beside>
  ARMILLARY_INLINE void multiply_values(Item& item, int end, Beside& beside) {
    if (item.columns == end) return;
    if (t_.pairs.wild && needs_exactness(item)) return add_exactly(item);
    const Chunk& chunk = chunks_[item.first];
    const int part = columns_ * kTileFloats;
    const int next = item.count == 1 ? 0 : chunks_[item.first + 1].keys - chunk.keys;
    const TilesOf words{weights(item, item.first), kTileFloats, Scratch::kChunk, kWeightFloats};
    for (; item.columns < end; item.columns += 2) {
      const float* const v = t_.v + chunk.keys * kParts * part + item.columns * kTileFloats;
      float* const to = out(item.first) + item.columns * 2 * kTileFloats;
      multiply_tiles<kParts, Streamed::A>({v, kTileFloats, next * kParts * part, part}, words,
                                          item.count, to, pending_, to, beside);
    }
  }
  void finish(Item& item) { multiply_values(item, columns_, nothing_); }

  /// Before chunk i is weighed: its item, and its maxima.
  void begin(int i) {
    const Chunk& chunk = chunks_[i];
    if (i == end_of_item_) begin_item(i);
    const bool begins_group = i == 0 || chunks_[i - 1].group != chunk.group;
    if (chunk.early && !begins_group) return;
    scale_at_hand_ = score_scale_;
    if (chunk.early) return look(i);
    hide(chunk);
    scale_if_large(chunk.scores, 1, max(i), scale_at_hand_);
  }
  void begin_item(int i) {
    item_ = {.first = i, .buffer = 1 - last_.buffer};
    const Chunk* const chunk = &chunks_[i];
    int end = i + 1;
    while (end < chunk->end && end - i < most_ &&
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

  /// Chunk i is weighed beside S of those that come, and its share of O of the last item.
  void weigh_beside(int i) {
    const int scores = made_beside(i);
    const int columns = share_of_columns(i);
    const int products =
        4 * terms_ * (scores - made_) + 2 * last_.count * (columns - last_.columns);
    float sums_of[kPair];
    __builtin_memcpy(sums_of, sums(i), sizeof sums_of);
    Weighing<kParts> weighing(chunks_[i].scores, weights(item_, i), scale_at_hand_);
    weighing.begin(max(i), sums_of, products_of_term(kParts) * products);
    const bool made = made_ < scores;
    multiply_scores(scores, weighing);
    if (columns == last_.columns) {
      if (made) pending_.flush();  // S may be read next
    } else {
      multiply_values(last_, columns, weighing);
    }
    weighing.finish();
    if (!chunks_[i].early && (dominates(i, sums_of, 0) || dominates(i, sums_of, kSide))) {
      return weigh_again(i);
    }
    __builtin_memcpy(sums(i), sums_of, sizeof sums_of);
  }
  /// Columns of the last item that are there when chunk i is weighed.
  int share_of_columns(int i) const {
    const int left = (columns_ - last_.columns) / 2;
    const int chunks = end_of_item_ - i;
    return last_.columns + (left + chunks - 1) / chunks * 2;
  }

  /// Whether a sum of 16 queries has doubled, or grown far above its maximum.
  bool dominates(int i, const float* sums_of, int half) const {
    const Float before = load(sums(i) + half);
    const Float added = sub(load(sums_of + half), before);
    return any_above(sub(added, min(before, all(0x1p40f))), 0);
  }

  /// Weights of a chunk with maxima of its own. O of what came before is added first.
  void weigh_again(int i) {
    finish(last_);
    if (item_.first < i) {
      item_.count = i - item_.first;
      end_item();
      finish(last_);
      begin_item(i);
    }
    pending_.flush();
    float tops[kPair];
    find_tops(chunks_[i].scores, 1, tops);
    raise(i, tops);
    scale_if_large(chunks_[i].scores, 1, max(i), scale_at_hand_);
    weigh(i);
  }

  /// The same one thing after the other, where scores are more than products.
  void weigh_alone(int i) {
    finish(last_);
    weigh(i);
    const int scores = made_beside(i);
    if (made_ == scores) return;
    multiply_scores(scores, nothing_);
    pending_.flush();
  }

  /// The chunk by itself.
  void weigh(int i) {
    if (t_.score.dropout != nullptr) return weigh_dropped(i);
    Weighing<kParts> weighing(chunks_[i].scores, weights(item_, i), scale_at_hand_);
    weighing.begin(max(i), sums(i), 0);
    weighing.finish();
  }

  /// Sums are of weights before dropout.
  void weigh_dropped(int i) {
    const Chunk& chunk = chunks_[i];
    float factors[kPair][kPair];  // by key, then query
    fill_factors(t_.pairs, t_.score, chunk.group, chunk.keys, factors);
    for (int half = 0; half < kPair; half += kSide) {
      const Float top = load(max(i) + half);
      const Float minus_base = if_less(top, all(kNoScore), all(0.0f), sub(all(0.0f), top));
      Float even = all(0.0f);  // as Weighing adds them
      Float odd = all(0.0f);
      for (int key = 0; key < kPair; key += 2) {
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

  /// Finds the maxima of an early group, of which i is the first chunk.
  void look(int i) {
    const int chunks = chunks_[i].end - i;
    float* const x = chunks_[i].scores;
    for (int c = i; c < chunks_[i].end; ++c) {
      if (bends_) bend(chunks_[c]);
      hide(chunks_[c]);
    }
    float tops[kPair];
    find_tops(x, chunks, tops);
    if (t_.max_logit != nullptr) raise_logit(i, tops);
    raise(i, tops);
    scale_if_large(x, chunks, max(i), scale_at_hand_);
  }
  /// Maxima of the group of chunk i, and what was summed with them. O must not be in registers.
  void raise(int i, const float* tops) {
    float factors[kPair];
    if (!raise_maxima<kParts>(tops, scale_at_hand_, max(i), sums(i), factors)) return;
    const Float by[2] = {load(factors), load(factors + kSide)};
    float* row = out(i);
    for (int tile = 0; tile < 2 * columns_; ++tile) {
      for (int r = 0; r < kSide; ++r, row += kWidth) store(row, mul(load(row), by[tile % 2]));
    }
  }

  /// -inf where a pair is hidden.
  void hide(const Chunk& chunk) const {
    if (!chunk.partial) return;
    const std::uint32_t* const seen = seen_.words(chunk.group, chunk.keys);
    for_each_score_row(chunk.scores, [&](int query, int key, float* row) ARMILLARY_LAMBDA {
      store(row, if_seen(seen + query, key, load(row), all(-kInf)));
    });
  }
  void bend(const Chunk& chunk) const {
    for_each_score_row(chunk.scores, [&](int query, int key, float* row) {
      Float x = load(row);
      bend_scores(t_.pairs, t_.score, scale_, chunk.group * kPair + query, chunk.keys * kPair + key,
                  x);
      store(row, x);
    });
  }

  void raise_logit(int i, const float* tops) const {
    const float scale = bends_ ? 1 : scale_;
    const float* const x = chunks_[i].scores;
    const int count = chunks_[i].end - i;
    const int first = chunks_[i].group * kPair;
    const bool nan = any_nan(x, count);
    for (int q = 0; q < kPair && first + q < t_.pairs.q_rows; ++q) {
      const float top =
          nan && has_nan(x, count, q) ? __builtin_nanf("") : tops[q] * scale + 0.0f;  // never -0
      if (top != top || top > *t_.max_logit) *t_.max_logit = top;
    }
  }

  bool needs_exactness(const Item& item) const {
    bool partial = kParts > 1;
    for (int i = item.first; i < item.first + item.count; ++i) partial |= chunks_[i].partial;
    return partial;
  }
  /// O^T += V^T P^T without touching hidden pairs, where 0 * NaN would.
  void add_exactly(Item& item) {
    pending_.flush();
    for (int i = item.first; i < item.first + item.count; ++i) {
      const Chunk& chunk = chunks_[i];
      add_columns_exactly<kParts>(
          t_.v + chunk.keys * kParts * columns_ * kTileFloats, weights(item, i), kWeightFloats,
          chunk.partial ? seen_.words(chunk.group, chunk.keys) : nullptr, columns_, out(i));
    }
    item.columns = columns_;
  }

  const ForwardTile& t_;
  Seen seen_;
  PendingSums pending_;
  Nothing nothing_;
  int terms_;          ///< D in parts of 32 elements.
  int columns_;        ///< E in parts of 16 elements.
  int most_;           ///< Chunks of an item: each has two columns of O of the last one beside it.
  float scale_;        ///< That scores lack: queries of floats have theirs.
  bool bends_;         ///< Scores are more than products: they are made first.
  bool beside_;        ///< Chunks are weighed beside products.
  float score_scale_;  ///< To the unit of maxima, of scores as they were computed,
  float scale_at_hand_ = 1;  ///< and of those at hand.
  int count_ = 0;
  int early_groups_ = 0;
  int made_ = 0;         ///< Chunks whose scores are there.
  int end_of_item_ = 0;  ///< One past its last chunk.
  Item item_;
  Item last_;  ///< Its P is there, its O is made.
  Chunk chunks_[kGroupsOfTile * kChunksOfTile];
};

template <int kParts>
void forward_amx(const ForwardTile& t) {
  [[maybe_unused]] const TileRegisters registers;
  ForwardPipeline<kParts>(t).run();
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
