// amx_forward.h: the forward tile on AMX.
//
//   S^T = K Q^T        keys x queries, so that what belongs to a query is a column
//   P^T = exp(S^T)     two rows of S^T are one row of words, the B of the next product
//   O^T = V^T P^T
//
// Work is cut into items of 64 keys and 32 queries, whose S and P stay in the first cache, and runs
// in a pipeline over all items of the tile: beside the products of S of the next item and of O of
// the last one, vector units weigh the one between. They do so without looking for its maximum.
// A weight of 1 is rounded to itself, so what weighs much should be near its maximum: maxima move
// with the first item of a tile, and with items that add more than a quarter to the sum of a query,
// which are weighed again.
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
constexpr int kItemChunks = 2;                        ///< of 32 keys each
constexpr int kChunkFloats = 4 * kTileFloats;         ///< S of a chunk: 32 keys x 32 queries
constexpr int kChunkUnits = kPair;                    ///< Pairs of rows of 16 queries of a chunk.
constexpr int kChunksOfTile = kAmxForwardK / kPair;
constexpr int kGroupsOfTile = kAmxForwardQ / kPair;
constexpr int kItemsOfTile = kGroupsOfTile * kChunksOfTile;

/// Chunks of keys, which need not be neighbours, that a group of 32 queries sees.
struct Item {
  std::int16_t group = 0;
  std::int16_t count = 0;
  std::int16_t chunks[kItemChunks] = {};
  bool partial[kItemChunks] = {};
  bool first = false;  ///< Of its group in the tile.
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
    const int left = pairs_.q_rows - group * kPair;
    const std::uint32_t* const of_group = words(group, chunk);
    std::uint32_t any = 0;
    std::uint32_t every = ~0u;
    for (int i = 0; i < kPair && i < left; ++i) {
      any |= of_group[i];
      every &= of_group[i];
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
    for (int i = 0; i <= count_; ++i) {
      if (i == count_) {
        multiply_values(items_[i - 1], i - 1, nothing_);
        break;
      }
      prepare(items_[i], scores(i));
      weigh_beside_products(i);
    }
    pending_.flush();
  }

 private:
  float* scores(int i) const { return t_.scores + i % 2 * ForwardScratch::kScores; }
  float* weights(int i) const {
    return t_.scores + 2 * ForwardScratch::kScores + i % 2 * ForwardScratch::kWeights;
  }
  float* out(int group) const { return t_.out + group * columns_ * 2 * kTileFloats; }

  void add_items(int group) {
    Item* item = nullptr;
    bool first = true;
    for (int chunk = 0; chunk < seen_.chunks(); ++chunk) {
      const Seen::Kind kind = seen_.kind(group, chunk);
      if (kind == Seen::Kind::None) continue;
      if (item == nullptr || item->count == kItemChunks) {
        item = &items_[count_++];
        *item = Item{};
        item->group = static_cast<std::int16_t>(group);
        item->first = first;
        first = false;
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
      multiply_tiles<Streamed::A>(keys, {q}, terms_, nullptr, pending_, scores(i) + c * kChunkFloats, beside);
    }
  }

  template <class Beside>
  ARMILLARY_INLINE void multiply_values(const Item& item, int i, Beside& beside) {
    if (t_.pairs.wild && (item.partial[0] || item.partial[1])) return add_exactly(item, i);
    const int chunk_floats = columns_ * kTileFloats;
    const int step = (item.chunks[item.count - 1] - item.chunks[0]) * chunk_floats;
    for (int column = 0; column < columns_; column += 2) {
      const float* const v = t_.v + item.chunks[0] * chunk_floats + column * kTileFloats;
      float* const sums = out(item.group) + column * 2 * kTileFloats;
      multiply_tiles<Streamed::A>({v, kTileFloats, step}, {weights(i)}, item.count, sums, pending_, sums,
                     beside);
    }
  }

  /// Item i is weighed beside S of the next item and O of the last one.
  void weigh_beside_products(int i) {
    const Item& item = items_[i];
    const int next_products = i + 1 < count_ ? items_[i + 1].count * 4 * terms_ : 0;
    const int last_products = i > 0 ? items_[i - 1].count * 2 * columns_ : 0;
    const int products = next_products + last_products;
    float* const max = t_.max + item.group * kPair;
    float sums[kPair];
    __builtin_memcpy(sums, t_.sum + item.group * kPair, sizeof sums);
    if (beside_) {
      Weighing weighing(scores(i), weights(i), item.count, item_scale_);
      const int units = item.count * kChunkUnits;
      weighing.begin(max, sums, products == 0 ? units : (units + products - 1) / products);
      if (next_products != 0) multiply_scores(items_[i + 1], i + 1, weighing);
      if (last_products != 0) multiply_values(items_[i - 1], i - 1, weighing);
      weighing.finish();
    } else {
      if (next_products != 0) multiply_scores(items_[i + 1], i + 1, nothing_);
      if (last_products != 0) multiply_values(items_[i - 1], i - 1, nothing_);
      weigh(item, i, sums);
    }
    if (last_products == 0) pending_.flush();  // the last chunk of S is read next
    if (!item.first && (dominates(item, sums, 0) || dominates(item, sums, kSide))) {
      pending_.flush();
      if (raise_max(item, scores(i), RaiseOf::All)) {
        scale_if_large(item, scores(i));
        __builtin_memcpy(sums, t_.sum + item.group * kPair, sizeof sums);
        weigh(item, i, sums);
      }
    }
    __builtin_memcpy(t_.sum + item.group * kPair, sums, sizeof sums);
  }

  /// Whether sums have grown by more than a quarter, of 16 queries that had some.
  bool dominates(const Item& item, const float* sums, int half) const {
    const Float before = load(t_.sum + item.group * kPair + half);
    const Float limit = if_less(all(0.0f), before, mul(before, all(1.25f)), all(kInf));
    return any_above(sub(load(sums + half), limit), 0);
  }

  /// The item by itself.
  void weigh(const Item& item, int i, float* sums) {
    if (t_.score.dropout != nullptr) return weigh_dropped(item, i, sums);
    Weighing weighing(scores(i), weights(i), item.count, item_scale_);
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
          Float x[2] = {fma(load(row), all(item_scale_), minus_base),
                        fma(load(row + kWidth), all(item_scale_), minus_base)};
          power_of_two(x);
          sum = add(sum, add(x[0], x[1]));
          store_words(words + half * kSide + key / 2 * kWidth,
                      mul(x[0], load(factors[key] + half)), mul(x[1], load(factors[key + 1] + half)));
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

  /// Scores with score.h in them, and -inf where they are hidden; their largest; and a maximum for
  /// queries that have none yet.
  void prepare(const Item& item, float* x) {
    item_scale_ = score_scale_;
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
    if (t_.max_logit != nullptr) raise_logit(item, x);
    raise_max(item, x, item.first ? RaiseOf::All : RaiseOf::Unset);
    scale_if_large(item, x);
  }

  /// Where a maximum is large, the product of score and scale is rounded before the difference is
  /// taken, as the maximum was; elsewhere that is not worth its time.
  void scale_if_large(const Item& item, float* x) {
    constexpr float kLarge = 0x1p10f;
    const float* const max = t_.max + item.group * kPair;
    if (item_scale_ == 1) return;
    if (!any_above(abs(finite_or_0(load(max))), kLarge) &&
        !any_above(abs(finite_or_0(load(max + kSide))), kLarge)) {
      return;
    }
    for (int i = 0; i < item.count * kChunkFloats; i += kWidth) {
      store(x + i, mul(load(x + i), all(item_scale_)));
    }
    item_scale_ = 1;
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

  void raise_logit(const Item& item, const float* x) const {
    float tops[kPair];
    find_tops(item, x, tops);
    const float scale = t_.score.plain() ? t_.scale : 1;
    for (int q = 0; q < kPair && item.group * kPair + q < t_.pairs.q_rows; ++q) {
      const float top = has_nan(item, x, q) ? __builtin_nanf("") : tops[q] * scale;
      if (top != top || top > *t_.max_logit) *t_.max_logit = top;
    }
  }

  /// Row `key` of an item, of 16 queries.
  static const float* score_row(const float* x, int key, int half) {
    return x + key / kPair * kChunkFloats +
           (key % kPair / kSide * 2 + half / kSide) * kTileFloats + key % kSide * kWidth;
  }

  /// The largest scores of queries that are numbers.
  static void find_tops(const Item& item, const float* x, float* tops) {
    for (int half = 0; half < kPair; half += kSide) {
      Float top = all(-kInf);
      for (int key = 0; key < item.count * kPair; ++key) {
        top = max(load(score_row(x, key, half)), top);
      }
      store(tops + half, top);
    }
  }
  static bool has_nan(const Item& item, const float* x, int q) {
    for (int key = 0; key < item.count * kPair; ++key) {
      const float y = score_row(x, key, q / kSide * kSide)[q % kSide];
      if (y != y) return true;
    }
    return false;
  }

  enum class RaiseOf : std::uint8_t { Unset, All };

  /// Raises maxima to the largest scores of an item: those that are not set yet, or all. Then true
  /// if one has moved. What is summed of such queries must be in memory.
  bool raise_max(const Item& item, const float* x, RaiseOf of) {
    float* const max = t_.max + item.group * kPair;
    const bool unset = any_equal(load(max), -kInf) || any_equal(load(max + kSide), -kInf);
    if (of == RaiseOf::Unset && !unset) return false;
    float tops[kPair];
    float factors[kPair];
    find_tops(item, x, tops);
    bool moved = false;
    bool had_sums = false;
    for (int q = 0; q < kPair; ++q) {
      const float top = tops[q] * item_scale_;
      const bool moves = top > max[q] && (of == RaiseOf::All || max[q] == -kInf);
      factors[q] = moves ? max[q] - top : 0;
      if (!moves) continue;
      moved = true;
      had_sums |= max[q] != -kInf;
      max[q] = top;
    }
    if (!had_sums) return moved;
    float* const sums = t_.sum + item.group * kPair;
    for (int half = 0; half < kPair; half += kSide) {
      store(factors + half, exp(mul(load(factors + half), all(kLn2))));
      store(sums + half, mul(load(sums + half), load(factors + half)));
    }
    for (float* row = out(item.group); row != out(item.group + 1); row += kWidth) {
      const int half = (row - out(item.group)) / kTileFloats % 2 * kSide;
      store(row, mul(load(row), load(factors + half)));
    }
    return true;
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
  int terms_;    ///< Tens of 32 elements of D.
  int columns_;  ///< Tens of 16 elements of E.
  bool beside_;  ///< Items are weighed beside products.
  float score_scale_;      ///< To units of log 2, of scores as they were computed.
  float item_scale_ = 1;   ///< The same of the item that is weighed, as it stands in memory.
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
    const int next = t.pairs.q_rows - first - kSide < kSide ? t.pairs.q_rows - first - kSide : kSide;
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
