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
// A weight that is a power of two is rounded to itself. So in the first tile of a query, where few
// keys share the sum, each item is looked at before it is weighed: its maximum moves for a weight
// that is a 64th of the sum or more. Later items are weighed without a look, and again if they have
// doubled a sum.
#pragma once

#include "armillary/kernel/cpu/amx_pack.h"
#include "armillary/kernel/cpu/forward_tile.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr float kLn2 = 0.693147182f;
constexpr float kLog2E = 1.44269504f;

constexpr float kNoScore = -3e38f;  ///< A maximum below it is that of no score.

constexpr int kAmxForwardQ = 512;
constexpr int kAmxForwardK = 512;
constexpr int kItemChunks = 2;                 ///< of 32 keys each
constexpr int kChunkFloats = 4 * kTileFloats;  ///< S of a chunk: 32 keys x 32 queries
constexpr int kChunkUnits = kPair;             ///< Pairs of rows of 16 queries of a chunk.
constexpr int kChunksOfTile = kAmxForwardK / kPair;
constexpr int kGroupsOfTile = kAmxForwardQ / kPair;
constexpr int kItemsOfTile = kGroupsOfTile * kChunksOfTile;

/// Chunks of keys, which need not be neighbours, that a group of 32 queries sees.
struct Item {
  std::int16_t group = 0;
  std::int16_t count = 0;
  std::int16_t chunks[kItemChunks] = {};
  bool partial[kItemChunks] = {};
  bool early = false;  ///< It is looked at first.
};

/// Which keys the queries of a tile see: a bit a key, a word a query and chunk. Memory is given;
/// without ranges only the last chunk has words, which are the same for all queries.
class Seen {
 public:
  Seen(const TilePairs& pairs, std::uint32_t* words) : pairs_(pairs), words_(words) {
    chunks_ = (pairs.k_rows + kPair - 1) / kPair;
    groups_ = (pairs.q_rows + kPair - 1) / kPair;
    if (pairs.ranges != nullptr) {
      mark();
    } else if (pairs.k_rows % kPair != 0) {
      const std::uint32_t tail = (1u << pairs.k_rows % kPair) - 1;
      for (int i = 0; i < kPair; ++i) words_[i] = tail;
    }
  }

  int chunks() const { return chunks_; }
  int groups() const { return groups_; }

  /// Words of the 32 queries of a group.
  const std::uint32_t* words(int group, int chunk) const {
    return pairs_.ranges == nullptr ? words_ : words_ + (group * chunks_ + chunk) * kPair;
  }

  enum class Kind : std::uint8_t { None, Partial, Whole };
  Kind kind(int group, int chunk) const {
    if (pairs_.ranges == nullptr) {
      return (chunk + 1) * kPair <= pairs_.k_rows ? Kind::Whole : Kind::Partial;
    }
    const std::uint32_t* const of_group = words(group, chunk);
    std::uint32_t any = 0;
    std::uint32_t every = ~0u;
    for (int i = 0; i < kPair; ++i) any |= of_group[i];
    const int left = pairs_.q_rows - group * kPair;
    if (left >= kPair) {
      for (int i = 0; i < kPair; ++i) every &= of_group[i];
    } else {
      for (int i = 0; i < left; ++i) every &= of_group[i];
    }
    return any == 0 ? Kind::None : every == ~0u ? Kind::Whole : Kind::Partial;
  }

 private:
  void mark() {
    __builtin_memset(words_, 0, sizeof(std::uint32_t) * groups_ * chunks_ * kPair);
    for (int i = 0; i < pairs_.range_count; ++i) {
      const RowRange& range = pairs_.ranges[i];
      std::uint32_t* const of_row =
          words_ + range.row / kPair * chunks_ * kPair + range.row % kPair;
      for (int begin = range.begin; begin < range.end;) {
        const int first = begin % kPair;
        const int left = range.end - begin < kPair - first ? range.end - begin : kPair - first;
        of_row[begin / kPair * kPair] |= (left == kPair ? ~0u : (1u << left) - 1) << first;
        begin += left;
      }
    }
  }

  const TilePairs& pairs_;
  std::uint32_t* words_;
  int chunks_;
  int groups_;
};

/// Scratch of a tile, in floats: S and P of two items, sums that belong nowhere, words of Seen.
struct ForwardScratch {
  static constexpr int kScores = kItemChunks * kChunkFloats;
  static constexpr int kWeights = kScores / 2;
  static constexpr int kNowhere = 2 * (kScores + kWeights);
  static constexpr int kSeen = kNowhere + kChunkFloats;
  static constexpr int kFloats = kSeen + kGroupsOfTile * kChunksOfTile * kPair;
};

/// Weighs the scores of an item one pair of rows of 16 queries after the other: P^T as words, and
/// the sums of columns. Done beside products, for which `step` is cut to their time.
class Weighing {
 public:
  Weighing(const float* scores, float* words, int chunks, float scale)
      : scores_(scores), words_(words), left_(chunks * kChunkUnits), scale_(all(scale)) {}

  /// `max` is in units of log 2 and finite where a score is; sums are added to. 32 queries.
  ARMILLARY_INLINE void begin(const float* max, float* sums, int a_step) {
    max_ = max;
    sums_ = sums;
    a_step_ = a_step;
  }
  ARMILLARY_INLINE void step() {
    for (int i = 0; i < a_step_ && left_ != 0; ++i) weigh_pair();
  }
  ARMILLARY_INLINE void finish() {
    while (left_ != 0) weigh_pair();
  }

 private:
  ARMILLARY_INLINE void weigh_pair() {
    if (left_ % kSide == 0) {  // 16 pairs of rows for the first 16 queries, then for the others
      half_ = left_ % kPair == 0 ? 0 : kSide;
      const Float max = load(max_ + half_);
      minus_base_ = if_less(max, all(kNoScore), all(0.0f), sub(all(0.0f), max));
      even_ = load(sums_ + half_);
      odd_ = all(0.0f);
    }
    Float x[2] = {fma(load(scores_), scale_, minus_base_),
                  fma(load(scores_ + kWidth), scale_, minus_base_)};
    power_of_two(x);
    even_ = add(even_, x[0]);
    odd_ = add(odd_, x[1]);
    store_weights(words_, x[0], x[1]);
    scores_ += 2 * kWidth;
    words_ += kWidth;
    --left_;
    if (left_ % (kSide / 2) == 0) next_tile();
  }
  /// From the first 16 keys of 16 queries to the next, and then to the other queries.
  ARMILLARY_INLINE void next_tile() {
    if (left_ % kSide != 0) {
      scores_ += kTileFloats;
      return;
    }
    if (left_ % kPair != 0) scores_ -= 2 * kTileFloats;
    store(sums_ + half_, add(even_, odd_));
  }

  const float* scores_;
  float* words_;
  int left_;  ///< Pairs of rows.
  int a_step_ = 1;
  int half_ = 0;
  const float* max_ = nullptr;
  float* sums_ = nullptr;
  Float scale_;
  Float minus_base_ = all(0.0f);
  Float even_ = all(0.0f);
  Float odd_ = all(0.0f);
};

/// Calls visit(query, key, scores) for the rows of 16 queries of S^T of a chunk.
template <class Visit>
ARMILLARY_INLINE void for_each_score_row(float* chunk, Visit visit) {
  for (int tile = 0; tile < 4; ++tile) {
    for (int r = 0; r < kSide; ++r, chunk += kWidth) {
      visit(tile % 2 * kSide, tile / 2 * kSide + r, chunk);
    }
  }
}

/// Scores of a key and 16 queries of a tile, of products of bf16: their scale, softcap and slope.
/// Returns d score / d (scale <q, k>).
inline Float bend_scores(const TilePairs& pairs, const TileScore& score, float scale, int query,
                         int key, Float& x) {
  Float slope = all(1.0f);
  x = mul(x, all(scale));
  if (score.softcap != 0) {
    const Float y = tanh(x);
    slope = fnma(y, y, slope);
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
  return slope;
}

ARMILLARY_INLINE float widened(Bf16 x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
  float value = 0;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

class ForwardPipeline {
 public:
  explicit ForwardPipeline(const ForwardTile& t)
      : t_(t),
        seen_(t.pairs, reinterpret_cast<std::uint32_t*>(t.scores + ForwardScratch::kSeen)),
        pending_(t.scores + ForwardScratch::kNowhere),
        terms_(to_pairs(t.head_dim) / kPair),
        columns_(to_pairs(t.value_dim) / kSide),
        beside_(t.score.plain()),
        score_scale_(beside_ ? t.scale * kLog2E : kLog2E) {
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
  float* scores(int i) const { return t_.scores + i % 2 * ForwardScratch::kScores; }
  float* weights(int i) const {
    return t_.scores + 2 * ForwardScratch::kScores + i % 2 * ForwardScratch::kWeights;
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
      if (item == nullptr || item->count == kItemChunks) {
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
    const float* const q = t_.q + item.group * terms_ * 2 * kTileFloats;
    for (int c = 0; c < item.count; ++c) {
      const TilesOf keys{t_.k + item.chunks[c] * terms_ * 2 * kTileFloats, terms_ * kTileFloats,
                         kTileFloats};
      multiply_tiles<Streamed::A>(keys, {q}, terms_, nullptr, pending_,
                                  scores(i) + c * kChunkFloats, beside);
    }
  }

  /// O of an item; `between` is called after its first columns.
  template <class Beside, class Between>
  ARMILLARY_INLINE void multiply_values(const Item& item, int i, Beside& beside,
                                        const Between& between) {
    const Look& look = looks_[i % 3];
    if (look.moved && columns_ == 2) pending_.flush();  // they may be what is scaled
    if (t_.pairs.wild && (item.partial[0] || item.partial[1])) {
      if (look.moved) rescale(item, look, 0, columns_);
      add_exactly(item, i);
      return between();
    }
    const int chunk_floats = columns_ * kTileFloats;
    const int step = (item.chunks[item.count - 1] - item.chunks[0]) * chunk_floats;
    for (int column = 0; column < columns_; column += 2) {
      if (look.moved) rescale(item, look, column, column + 2);
      const float* const v = t_.v + item.chunks[0] * chunk_floats + column * kTileFloats;
      float* const sums = out(item.group) + column * 2 * kTileFloats;
      multiply_tiles<Streamed::A>({v, kTileFloats, step}, {weights(i)}, item.count, sums, pending_,
                                  sums, beside);
      if (column == 0) between();
    }
  }

  /// Item i is weighed beside S of the next item and O of the last one.
  void run_item(int i) {
    const Item& item = items_[i];
    const bool has_next = i + 1 < count_;
    const int products = (has_next ? items_[i + 1].count * 4 * terms_ : 0) +
                         (i > 0 ? items_[i - 1].count * 2 * columns_ : 0);
    begin(item, i);
    float sums[kPair];
    __builtin_memcpy(sums, t_.sum + item.group * kPair, sizeof sums);
    Weighing weighing(scores(i), weights(i), item.count, looks_[i % 3].scale);
    const int units = item.count * kChunkUnits;
    weighing.begin(t_.max + item.group * kPair, sums,
                   products == 0 ? units : (units + products - 1) / products);
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
    if (item.early) return move_maxima(item, look);
    __builtin_memcpy(look.max, t_.max + item.group * kPair, sizeof look.max);
    scale_if_large(item, scores(i), look);
  }

  /// Whether a sum has doubled, of 16 queries.
  bool dominates(const Item& item, const float* sums, int half) const {
    const Float before = load(t_.sum + item.group * kPair + half);
    return any_above(sub(load(sums + half), add(before, before)), 0);
  }

  /// With maxima of its own; O is in memory but for the last item's last columns.
  void weigh_again(const Item& item, int i) {
    pending_.flush();
    Look& look = looks_[i % 3];
    float tops[kPair];
    find_tops(item, scores(i), tops);
    raise_max(item, tops, look.scale, look);
    move_maxima(item, look);
    rescale(item, look, 0, columns_);
    look.moved = false;
    scale_if_large(item, scores(i), look);
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
    Weighing weighing(scores(i), weights(i), item.count, looks_[i % 3].scale);
    weighing.begin(t_.max + item.group * kPair, sums, 1);
    weighing.finish();
  }

  /// Sums are of weights before dropout.
  void weigh_dropped(const Item& item, int i, float* sums) {
    float factors[kPair][kPair];  // by key, then query
    for (int c = 0; c < item.count; ++c) {
      fill_factors(item, c, factors);
      float* const words = weights(i) + c * 2 * kTileFloats;
      const float* const chunk = scores(i) + c * kChunkFloats;
      for (int half = 0; half < kPair; half += kSide) {
        const Float max = load(t_.max + item.group * kPair + half);
        const Float minus_base = if_less(max, all(kNoScore), all(0.0f), sub(all(0.0f), max));
        Float sum = load(sums + half);
        for (int key = 0; key < kPair; key += 2) {
          const float* const row =
              chunk + (key / kSide * 2 + half / kSide) * kTileFloats + key % kSide * kWidth;
          Float x[2] = {fma(load(row), all(looks_[i % 3].scale), minus_base),
                        fma(load(row + kWidth), all(looks_[i % 3].scale), minus_base)};
          power_of_two(x);
          sum = add(sum, add(x[0], x[1]));
          store_words(words + half * kSide + key / 2 * kWidth, mul(x[0], load(factors[key] + half)),
                      mul(x[1], load(factors[key + 1] + half)));
        }
        store(sums + half, sum);
      }
    }
  }

  void fill_factors(const Item& item, int c, float (&factors)[kPair][kPair]) const {
    const int first = item.chunks[c] * kPair;
    const int keys = t_.pairs.k_rows - first < kPair ? t_.pairs.k_rows - first : kPair;
    for (int q = 0; q < kPair; ++q) {
      const int row = item.group * kPair + q;
      float of_row[kPair] = {};
      if (row < t_.pairs.q_rows) fill_dropout(t_.score, row, first, keys, of_row);
      for (int key = 0; key < kPair; ++key) factors[key][q] = of_row[key];
    }
  }

  /// What is known of an item before it is weighed.
  struct Look {
    float max[kPair];      ///< Maxima that it is weighed with,
    float factors[kPair];  ///< what brings earlier sums to them,
    bool moved = false;    ///< and whether those are not 1.
    float scale = 1;       ///< To units of log 2, of scores as they stand in memory.
  };

  /// Brings score.h into the scores of item i, and -inf where they are hidden; finds its maxima.
  void look(int i) {
    const Item& item = items_[i];
    float* const x = scores(i);
    for (int c = 0; c < item.count; ++c) {
      float* const chunk = x + c * kChunkFloats;
      if (!t_.score.plain()) bend_chunk(item, c, chunk);
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
      find_tops(item, x, tops);
      if (t_.max_logit != nullptr) raise_logit(item, x, tops);
      raise_max(item, tops, look.scale, look);
      scale_if_large(item, x, look);
    }
  }

  /// Where a maximum is large, the product of score and scale is rounded before the difference is
  /// taken, as the maximum was; elsewhere that is not worth its time.
  void scale_if_large(const Item& item, float* x, Look& look) const {
    constexpr float kLarge = 0x1p10f;
    if (!any_above(abs(finite_or_0(load(look.max))), kLarge) &&
        !any_above(abs(finite_or_0(load(look.max + kSide))), kLarge)) {
      return;
    }
    for (int i = 0; i < item.count * kChunkFloats; i += kWidth) {
      store(x + i, mul(load(x + i), all(look.scale)));
    }
    look.scale = 1;
  }
  static Float finite_or_0(Float max) { return if_less(max, all(kNoScore), all(0.0f), max); }

  void bend_chunk(const Item& item, int c, float* chunk) const {
    for_each_score_row(chunk, [&](int query, int key, float* row) {
      Float x = load(row);
      bend_scores(t_.pairs, t_.score, t_.scale, item.group * kPair + query,
                  item.chunks[c] * kPair + key, x);
      store(row, x);
    });
  }

  void raise_logit(const Item& item, const float* x, const float* tops) const {
    const float scale = t_.score.plain() ? t_.scale : 1;
    for (int q = 0; q < kPair && item.group * kPair + q < t_.pairs.q_rows; ++q) {
      const float top = has_nan(item, x, q) ? __builtin_nanf("") : tops[q] * scale;
      if (top != top || top > *t_.max_logit) *t_.max_logit = top;
    }
  }

  /// Row `key` of an item, of 16 queries.
  static const float* score_row(const float* x, int key, int half) {
    return x + key / kPair * kChunkFloats + (key % kPair / kSide * 2 + half / kSide) * kTileFloats +
           key % kSide * kWidth;
  }

  /// The largest scores of queries that are numbers.
  static void find_tops(const Item& item, const float* x, float* tops) {
    constexpr int kChains = 4;  // hide the latency of a maximum
    Float top[2][kChains];
    for (int i = 0; i < kChains; ++i) top[0][i] = top[1][i] = all(-kInf);
    for (int tile = 0; tile < 4 * item.count; tile += 2, x += 2 * kTileFloats) {
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
  static bool has_nan(const Item& item, const float* x, int q) {
    for (int key = 0; key < item.count * kPair; ++key) {
      const float y = score_row(x, key, q / kSide * kSide)[q % kSide];
      if (y != y) return true;
    }
    return false;
  }

  /// Maxima move to the largest scores of an item where that matters. Sums may lack an item yet.
  void raise_max(const Item& item, const float* tops, float scale, Look& look) const {
    constexpr float kShare = 64;    // a weight of less than a 64th of the sum may be above 1
    constexpr float kLargest = 20;  // in units of log 2: then any weight moves the maximum
    look.moved = false;
    for (int half = 0; half < kPair; half += kSide) {
      const Float before = load(t_.max + item.group * kPair + half);
      const Float sum = load(t_.sum + item.group * kPair + half);
      const Float top = mul(load(tops + half), all(scale));
      const Float above = sub(top, before);
      Float weight[1] = {above};
      power_of_two(weight);
      Float raised = if_less(sum, mul(weight[0], all(kShare)), top, before);
      raised = if_less(all(kLargest), above, top, raised);
      raised = if_less(before, raised, raised, before);
      // Nothing is summed where there was no maximum.
      const Float by = if_less(before, all(kNoScore), all(0.0f), sub(before, raised));
      const Float factor = exp(mul(by, all(kLn2)));
      store(look.max + half, raised);
      store(look.factors + half, factor);
      look.moved |= any_above(sub(all(1.0f), factor), 0);
    }
  }

  /// Maxima of the group become those of an item, and sums with them.
  void move_maxima(const Item& item, const Look& look) const {
    float* const sums = t_.sum + item.group * kPair;
    __builtin_memcpy(t_.max + item.group * kPair, look.max, sizeof look.max);
    for (int half = 0; half < kPair; half += kSide) {
      store(sums + half, mul(load(sums + half), load(look.factors + half)));
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

 public:
  /// out of one row *= factor
  static void scale(const ForwardTile& t, int row, float factor) {
    const int width = to_pairs(t.value_dim);
    for (int e = 0; e < width; ++e) {
      t.out[((row / kPair * (width / kSide) + e / kSide) * 2 + row / kSide % 2) * kTileFloats +
            e % kSide * kWidth + row % kSide] *= factor;
    }
  }

 private:
  /// O^T += V^T P^T without touching hidden pairs, where 0 * NaN would.
  void add_exactly(const Item& item, int i) {
    pending_.flush();
    for (int c = 0; c < item.count; ++c) {
      const int chunk = item.chunks[c];
      for (int q = 0; q < kPair && item.group * kPair + q < t_.pairs.q_rows; ++q) {
        const std::uint32_t seen = item.partial[c] ? seen_.words(item.group, chunk)[q] : ~0u;
        for (int key = 0; key < kPair; ++key) {
          if ((seen >> key & 1) != 0) add_pair(item, i, c, q, key);
        }
      }
    }
  }
  void add_pair(const Item& item, int i, int c, int q, int key) const {
    const auto* const p = reinterpret_cast<const Bf16*>(weights(i) + c * 2 * kTileFloats);
    const auto* const v =
        reinterpret_cast<const Bf16*>(t_.v + item.chunks[c] * columns_ * kTileFloats);
    const float weight =
        widened(p[q / kSide * kTileHalves + key / 2 * kPair + q % kSide * 2 + key % 2]);
    for (int e = 0; e < t_.value_dim; ++e) {
      out(item.group)[(e / kSide * 2 + q / kSide) * kTileFloats + e % kSide * kWidth + q % kSide] +=
          weight * widened(v[e / kSide * kTileHalves + e % kSide * kPair + key]);
    }
  }
  const ForwardTile& t_;
  Seen seen_;
  PendingSums pending_;
  Nothing nothing_;
  int terms_;          ///< Tens of 32 elements of D.
  int columns_;        ///< Tens of 16 elements of E.
  bool beside_;        ///< Items are weighed beside products.
  float score_scale_;  ///< To units of log 2, of scores as they were computed.
  Look looks_[3];      ///< Of the last three items, by number.
  int count_ = 0;
  Item items_[kItemsOfTile];
};

inline void forward_amx(const ForwardTile& t) {
  [[maybe_unused]] const TileRegisters registers;
  ForwardPipeline(t).run();
}

inline void scale_amx_row(const ForwardTile& t, int row, float factor) {
  ForwardPipeline::scale(t, row, factor);
}

/// What out is multiplied with, for 32 rows at least, and their log-sum-exps.
inline void finish_rows(const ForwardTile& t, float* factors, float* lse, std::int64_t lse_stride) {
  for (int row = 0; row < to_pairs(t.pairs.q_rows); ++row) {
    const bool empty = row >= t.pairs.q_rows || t.sum[row] == 0;
    factors[row] = empty ? 0 : 1 / t.sum[row];
    if (row >= t.pairs.q_rows) continue;
    lse[row * lse_stride] = empty ? -kInf : t.max[row] * kLn2 + __builtin_logf(t.sum[row]);
  }
}

/// As write_of.
template <class E>
inline void write_amx_of(const ForwardTile& t, void* out, std::int64_t out_stride, float* lse,
                         std::int64_t lse_stride) {
  float factors[kAmxForwardQ];
  finish_rows(t, factors, lse, lse_stride);
  for_each_row_of(t.out, t.pairs.q_rows, t.value_dim,
                  [&](int row, int first, int columns, Float x) ARMILLARY_LAMBDA {
                    store_all(static_cast<E*>(out) + row * out_stride + first, columns,
                              [&](int) ARMILLARY_LAMBDA { return mul(x, all(factors[row])); });
                  });
}

/// The same of bf16: two columns are a word before they are turned round.
template <>
inline void write_amx_of<Bf16>(const ForwardTile& t, void* out, std::int64_t out_stride, float* lse,
                               std::int64_t lse_stride) {
  float factors[kAmxForwardQ];
  finish_rows(t, factors, lse, lse_stride);
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
