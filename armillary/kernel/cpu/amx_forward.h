// amx_forward.h: the forward tile on AMX.
//
//   S^T = K Q^T        keys x queries, so that what belongs to a query is a column
//   P^T = exp(S^T)     two rows of S^T are one row of words, the B of the next product
//   O^T = V^T P^T
//
// Work is cut into items of 64 keys and 32 queries, whose S and P stay in the first cache, and runs
// in a pipeline over all items of the tile: beside the products of S of the next item and of O of
// the last one, vector units weigh the one between.
//
// Floats are multiplied in three parts (amx.h), of which P has its own.
//
// A weight that is a power of two is rounded to itself. So in the first tile of a query, where few
// keys share the sum, each item is looked at before it is weighed: its maximum moves for a weight
// that is a 64th of the sum or more. Later items are weighed without a look, and again if they have
// doubled a sum, or added 2^40 to it.
#pragma once

#include "armillary/kernel/cpu/amx_exact.h"
#include "armillary/kernel/cpu/amx_seen.h"
#include "armillary/kernel/cpu/amx_weighing.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kAmxForwardQ = 512;
constexpr int kAmxForwardK = 256;
constexpr int kItemChunks = 2;  ///< Of an item, of 32 keys each, at most.
constexpr int kChunksOfTile = kAmxForwardK / kPair;
constexpr int kGroupsOfTile = kAmxForwardQ / kPair;

/// What of it stays in the first cache.
constexpr int item_chunks(int parts) {
  return parts == 1 ? 2 : 1;
}

/// Chunks of keys, which need not be neighbours, that a group of 32 queries sees.
struct Item {
  std::int16_t group = 0;
  std::int16_t count = 0;
  std::int16_t chunks[kItemChunks] = {};
  bool partial[kItemChunks] = {};
  bool early = false;  ///< It is looked at first.
};

/// Scratch of a tile, in floats: S and P of two items, sums that belong nowhere, words of Seen.
template <int kParts>
struct ForwardScratch {
  static constexpr int kScores = item_chunks(kParts) * kChunkFloats;
  static constexpr int kWeights = item_chunks(kParts) * kParts * kWeightFloats;
  static constexpr int kNowhere = 2 * (kScores + kWeights);
  static constexpr int kSeen = kNowhere + kChunkFloats;
  static constexpr int kFloats = kSeen + kGroupsOfTile * kChunksOfTile * kPair;
};

template <int kParts>
class ForwardPipeline {
 public:
  using Scratch = ForwardScratch<kParts>;

  explicit ForwardPipeline(const ForwardTile& t)
      : t_(t),
        seen_(t.pairs, reinterpret_cast<std::uint32_t*>(t.scores + Scratch::kSeen)),
        pending_(t.scores + Scratch::kNowhere),
        terms_(to_pairs(t.head_dim) / kPair),
        columns_(to_pairs(t.value_dim) / kSide),
        scale_(kParts == 1 ? t.scale : 1),
        bends_(t.score.softcap != 0 || t.score.slope != 0 || !(scale_ * kLog2E > 0)),
        beside_(!bends_ && t.score.dropout == nullptr),
        score_scale_((bends_ ? 1 : scale_) / log_unit(kParts)) {
    for (int group = 0; group < seen_.groups(); ++group) add_items(group);
  }

  void run() {
    if (count_ == 0) return;
    multiply_scores(items_[0], 0, nothing_);
    pending_.flush();
    look(0);
    for (int i = 0; i < count_; ++i) {
      if (beside_) {
        run_item(i);
      } else {
        run_item_alone(i);
      }
    }
    multiply_values(items_[count_ - 1], count_ - 1, nothing_, [] {});
    pending_.flush();
  }

 private:
  float* scores(int i) const { return t_.scores + i % 2 * Scratch::kScores; }
  float* weights(int i) const {
    return t_.scores + 2 * Scratch::kScores + i % 2 * Scratch::kWeights;
  }
  float* out(int group) const { return t_.out + group * columns_ * 2 * kTileFloats; }

  void add_items(int group) {
    const float* const sums = t_.sum + group * kPair;
    const bool early = !beside_ || t_.max_logit != nullptr || any_equal(load(sums), 0) ||
                       any_equal(load(sums + kSide), 0);
    Item* item = nullptr;
    for (int chunk = 0; chunk < seen_.chunks(); ++chunk) {
      const Seen::Kind kind = seen_.kind(group, chunk);
      if (kind == Seen::Kind::None) continue;
      if (item == nullptr || item->count == item_chunks(kParts)) {
        item = &items_[count_++];
        *item = Item{};
        item->group = static_cast<std::int16_t>(group);
        item->early = early;
      }
      item->chunks[item->count] = static_cast<std::int16_t>(chunk);
      item->partial[item->count++] = kind == Seen::Kind::Partial;
    }
  }

  template <class Beside>
  ARMILLARY_INLINE void multiply_scores(const Item& item, int i, Beside& beside) {
    const int part = terms_ * 2 * kTileFloats;
    const TilesOf queries{.data = t_.q + item.group * kParts * part, .part = part};
    for (int c = 0; c < item.count; ++c) {
      const float* const keys = t_.k + item.chunks[c] * kParts * part;
      float* const to = scores(i) + c * kChunkFloats;
      multiply_tiles<kParts, Streamed::A>({keys, part / 2, kTileFloats, part}, queries, terms_,
                                          nullptr, pending_, to, beside);
      if (kParts > 1 && t_.pairs.wild) {
        pending_.flush();
        mend_scores<kParts>(keys, queries.data, terms_, to);
      }
    }
  }

  /// O of an item; `between` is called after its first columns.
  template <class Beside, class Between>
  ARMILLARY_INLINE void multiply_values(const Item& item, int i, Beside& beside,
                                        const Between& between) {
    const Look& look = looks_[i % 3];
    const bool exactly = t_.pairs.wild && (kParts > 1 || item.partial[0] || item.partial[1]);
    if (look.moved && (columns_ == 2 || exactly)) pending_.flush();  // they may be what is scaled
    if (exactly) {
      if (look.moved) rescale(item, look, 0, columns_);
      add_exactly(item, i);
      return between();
    }
    const int part = columns_ * kTileFloats;
    const int step = (item.chunks[item.count - 1] - item.chunks[0]) * kParts * part;
    const TilesOf words{weights(i), kTileFloats, kParts * kWeightFloats, kWeightFloats};
    for (int column = 0; column < columns_; column += 2) {
      if (look.moved) rescale(item, look, column, column + 2);
      const float* const v = t_.v + item.chunks[0] * kParts * part + column * kTileFloats;
      float* const sums = out(item.group) + column * 2 * kTileFloats;
      multiply_tiles<kParts, Streamed::A>({v, kTileFloats, step, part}, words, item.count, sums,
                                          pending_, sums, beside);
      if (column == 0) between();
    }
  }

  /// Item i is weighed beside S of the next item and O of the last one.
  void run_item(int i) {
    const Item& item = items_[i];
    const bool has_next = i + 1 < count_;
    const int products =
        products_of_term(kParts) * ((has_next ? items_[i + 1].count * 4 * terms_ : 0) +
                                    (i > 0 ? items_[i - 1].count * 2 * columns_ : 0));
    begin(item, i);
    float sums[kPair];
    __builtin_memcpy(sums, t_.sum + item.group * kPair, sizeof sums);
    Weighing<kParts> weighing(scores(i), weights(i), item.count, looks_[i % 3].scale);
    weighing.begin(t_.max + item.group * kPair, sums, products);
    if (has_next) multiply_scores(items_[i + 1], i + 1, weighing);
    if (i > 0) {
      multiply_values(items_[i - 1], i - 1, weighing, [&] {
        if (has_next) look(i + 1);
      });
    } else {
      pending_.flush();  // the last chunk of S is read next
      if (has_next) look(i + 1);
    }
    weighing.finish();
    if (!item.early && (dominates(item, sums, 0) || dominates(item, sums, kSide))) {
      return weigh_again(item, i);
    }
    __builtin_memcpy(t_.sum + item.group * kPair, sums, sizeof sums);
  }

  /// Maxima and scores of an item as they are weighed.
  void begin(const Item& item, int i) {
    Look& look = looks_[i % 3];
    float* const max = t_.max + item.group * kPair;
    if (item.early) return move_maxima(look, max, t_.sum + item.group * kPair);
    __builtin_memcpy(look.max, max, sizeof look.max);
    scale_if_large(scores(i), item.count, look);
  }

  /// Whether a sum of 16 queries has doubled, or grown far above its maximum.
  bool dominates(const Item& item, const float* sums, int half) const {
    const Float before = load(t_.sum + item.group * kPair + half);
    const Float added = sub(load(sums + half), before);
    return any_above(sub(added, min(before, all(0x1p40f))), 0);
  }

  /// Weights of an item with maxima of its own. O lacks only the last columns of the last item.
  void weigh_again(const Item& item, int i) {
    pending_.flush();
    Look& look = looks_[i % 3];
    float tops[kPair];
    find_tops(scores(i), item.count, tops);
    raise_maxima<kParts>(tops, t_.max + item.group * kPair, t_.sum + item.group * kPair, look);
    move_maxima(look, t_.max + item.group * kPair, t_.sum + item.group * kPair);
    rescale(item, look, 0, columns_);
    look.moved = false;
    scale_if_large(scores(i), item.count, look);
    weigh(item, i, t_.sum + item.group * kPair);
  }

  /// The same one thing after the other, where scores are more than products.
  void run_item_alone(int i) {
    const Item& item = items_[i];
    if (i > 0) multiply_values(items_[i - 1], i - 1, nothing_, [] {});
    begin(item, i);
    weigh(item, i, t_.sum + item.group * kPair);
    if (i + 1 == count_) return;
    multiply_scores(items_[i + 1], i + 1, nothing_);
    pending_.flush();
    look(i + 1);
  }

  /// The item by itself.
  void weigh(const Item& item, int i, float* sums) {
    if (t_.score.dropout != nullptr) return weigh_dropped(item, i, sums);
    Weighing<kParts> weighing(scores(i), weights(i), item.count, looks_[i % 3].scale);
    weighing.begin(t_.max + item.group * kPair, sums, 0);
    weighing.finish();
  }

  /// Sums are of weights before dropout.
  void weigh_dropped(const Item& item, int i, float* sums) {
    float factors[kPair][kPair];  // by key, then query
    for (int c = 0; c < item.count; ++c) {
      fill_factors(t_.pairs, t_.score, item.group, item.chunks[c], factors);
      float* const words = weights(i) + c * kParts * kWeightFloats;
      const float* const chunk = scores(i) + c * kChunkFloats;
      for (int half = 0; half < kPair; half += kSide) {
        const Float max = load(t_.max + item.group * kPair + half);
        const Float minus_base = if_less(max, all(kNoScore), all(0.0f), sub(all(0.0f), max));
        Float even = all(0.0f);  // as Weighing adds them
        Float odd = all(0.0f);
        for (int key = 0; key < kPair; key += 2) {
          const float* const row =
              chunk + (key / kSide * 2 + half / kSide) * kTileFloats + key % kSide * kWidth;
          Float x[2] = {fma(load(row), all(looks_[i % 3].scale), minus_base),
                        fma(load(row + kWidth), all(looks_[i % 3].scale), minus_base)};
          weigh_differences<kParts>(x);
          even = add(even, x[0]);
          odd = add(odd, x[1]);
          store_weights_of<kParts>(words + half * kSide + key / 2 * kWidth,
                                   mul(x[0], load(factors[key] + half)),
                                   mul(x[1], load(factors[key + 1] + half)));
        }
        store(sums + half, add(load(sums + half), add(even, odd)));
      }
    }
  }

  /// Brings score.h into the scores of item i, and -inf where they are hidden; finds its maxima.
  void look(int i) {
    const Item& item = items_[i];
    float* const x = scores(i);
    for (int c = 0; c < item.count; ++c) {
      float* const chunk = x + c * kChunkFloats;
      if (bends_) bend_chunk(item, c, chunk);
      if (item.partial[c]) {
        const std::uint32_t* const seen = seen_.words(item.group, item.chunks[c]);
        for_each_score_row(chunk, [&](int query, int key, float* row) ARMILLARY_LAMBDA {
          store(row, if_seen(seen + query, key, load(row), all(-kInf)));
        });
      }
    }
    Look& look = looks_[i % 3];
    look.scale = score_scale_;
    look.moved = false;
    if (item.early) {
      float tops[kPair];
      find_tops(x, item.count, tops);
      if (t_.max_logit != nullptr) raise_logit(item, x, tops);
      raise_maxima<kParts>(tops, t_.max + item.group * kPair, t_.sum + item.group * kPair, look);
      scale_if_large(x, item.count, look);
    }
  }

  void bend_chunk(const Item& item, int c, float* chunk) const {
    for_each_score_row(chunk, [&](int query, int key, float* row) {
      Float x = load(row);
      bend_scores(t_.pairs, t_.score, scale_, item.group * kPair + query,
                  item.chunks[c] * kPair + key, x);
      store(row, x);
    });
  }

  void raise_logit(const Item& item, const float* x, const float* tops) const {
    const float scale = bends_ ? 1 : scale_;
    const bool nan = any_nan(x, item.count);
    for (int q = 0; q < kPair && item.group * kPair + q < t_.pairs.q_rows; ++q) {
      const float top = nan && has_nan(x, item.count, q) ? __builtin_nanf("")
                                                         : tops[q] * scale + 0.0f;  // never -0
      if (top != top || top > *t_.max_logit) *t_.max_logit = top;
    }
  }

  /// Columns [begin, end) of O of a group move too.
  ARMILLARY_INLINE void rescale(const Item& item, const Look& look, int begin, int end) const {
    const Float factors[2] = {load(look.factors), load(look.factors + kSide)};
    float* row = out(item.group) + begin * 2 * kTileFloats;
    for (int tile = 2 * begin; tile < 2 * end; ++tile) {
      for (int r = 0; r < kSide; ++r, row += kWidth) store(row, mul(load(row), factors[tile % 2]));
    }
  }

  /// O^T += V^T P^T without touching hidden pairs, where 0 * NaN would.
  void add_exactly(const Item& item, int i) {
    pending_.flush();
    for (int c = 0; c < item.count; ++c) {
      const int chunk = item.chunks[c];
      add_columns_exactly<kParts>(t_.v + chunk * kParts * columns_ * kTileFloats,
                                  weights(i) + c * kParts * kWeightFloats, kWeightFloats,
                                  item.partial[c] ? seen_.words(item.group, chunk) : nullptr,
                                  columns_, out(item.group));
    }
  }

  const ForwardTile& t_;
  Seen seen_;
  PendingSums pending_;
  Nothing nothing_;
  int terms_;          ///< Tens of 32 elements of D.
  int columns_;        ///< Tens of 16 elements of E.
  float scale_;        ///< That scores lack: queries of floats have theirs.
  bool bends_;         ///< Scores are more than products: they are made first.
  bool beside_;        ///< Items are weighed beside products.
  float score_scale_;  ///< To the unit of maxima, of scores as they were computed.
  Look looks_[3];      ///< Of the last three items, by number.
  int count_ = 0;
  Item items_[kGroupsOfTile * kChunksOfTile / item_chunks(kParts)];
};

template <int kParts>
void forward_amx(const ForwardTile& t) {
  [[maybe_unused]] const TileRegisters registers;
  ForwardPipeline<kParts>(t).run();
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
