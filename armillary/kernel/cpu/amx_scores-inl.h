// amx_scores-inl.h: from packed rows to the weights of softmax on AMX, for both passes: products of
// tiles, scores of a chunk of 32 keys and 32 queries, what hides some of them, and weights.
//
// A chunk is S^T: keys x queries, four tiles [keys / 16][queries / 16], so one vector has the
// scores of one key and 16 queries.
#pragma once

#include "armillary/kernel/cpu/amx-inl.h"
#include "armillary/kernel/cpu/forward_tile-inl.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

// The GEMM microkernel of AMX: 32 x 32 accumulators in four tiles, and how they reach memory.
//
// Each step of 32 terms loads two tiles of A and two of B for four products (or six times as many
// for floats in parts). Two kinds of work are interleaved with the products: vector work of the
// caller, by beside.step(), and the stores of the previous accumulators (PendingSums).

struct Nothing {
  ARMILLARY_INLINE void step() {}
};

/// Four tiles of accumulators in registers that are still to be stored: tiles one after the other,
/// in the order of their registers. A tile that is stored right after its last product would
/// keep the tile unit waiting, so each is stored just before its register is reused by the next
/// accumulators.
class PendingSums {
 public:
  explicit PendingSums(float* nowhere) : to_(nowhere), nowhere_(nowhere) {}

  ARMILLARY_INLINE void put(float* to) { to_ = to; }
  template <int kTile>
  ARMILLARY_INLINE void store() const {
    tile_store<kTile>(to_ + kTile * kTileFloats);
  }
  /// Stores all four now, so that vector code can read them.
  ARMILLARY_INLINE void flush() {
    store<0>();
    store<1>();
    store<2>();
    store<3>();
    to_ = nowhere_;
  }

 private:
  float* to_;
  float* nowhere_;  ///< four tiles of scratch: the target when nothing is pending
};

/// Two neighbouring tiles of a factor, and the distances to the next ones, in floats.
struct TilesOf {
  const float* data = nullptr;
  int other = kTileFloats;     ///< to the second tile
  int step = 2 * kTileFloats;  ///< to the next 32 terms of the sum
  int part = 0;                ///< to the next part
};

/// A product of 2 x 2 tiles: `to` = `from` + A B over `steps` steps of 32 terms.
struct TileGemm {
  TilesOf a;
  TilesOf b;
  int steps = 0;
  const float* from = nullptr;  ///< four tiles of accumulators; null: zeros
  float* to = nullptr;          ///< four tiles
};

/// Initialises an accumulator: 0, or a tile in memory.
template <int kTile>
ARMILLARY_INLINE void begin_sum(const float* from) {
  if (from == nullptr) return tile_zero<kTile>();
  tile_load<kTile>(from + kTile * kTileFloats);
}

/// The factor that streams from the second cache level: a product loads a tile once.
enum class Streamed : std::uint8_t { A, B };

template <Streamed kStreamed, int kTile>
ARMILLARY_INLINE void load_factor(const float* from) {
  if constexpr ((kTile < 6) == (kStreamed == Streamed::A)) {
    tile_stream<kTile>(from);
  } else {
    tile_load<kTile>(from);
  }
}

/// The factors of a product that must be loaded into their registers first.
enum class Load : std::uint8_t { Both, A, B };

/// The products of 2 x 2 tiles of accumulators, step by step.
template <Streamed kStreamed, class Beside>
class TileProducts {
 public:
  TileProducts(const TileGemm& gemm, PendingSums& pending, Beside& beside)
      : a_(gemm.a), b_(gemm.b), from_(gemm.from), pending_(pending), beside_(beside) {}

  /// The products of one step of 32 terms. With parts, the small products come first and that of
  /// the two first parts last; each part of the streamed factor is loaded once.
  template <int kParts>
  ARMILLARY_INLINE void add(int step) {
    constexpr bool kA = kStreamed == Streamed::A;
    constexpr Load kStream = kA ? Load::A : Load::B;
    constexpr Load kStay = kA ? Load::B : Load::A;
    const bool first = step == 0;
    if constexpr (kParts == 1) {
      multiply<Load::Both, kA>(0, 0, first);
    } else {
      static_assert(kParts == 3);
      multiply<Load::Both, kA>(2, 0, first);
      multiply<kStream, kA>(1, 0, false);
      multiply<kStay, kA>(1, 1, false);
      multiply<kStream, kA>(0, 1, false);
      multiply<kStay, kA>(0, 2, false);
      multiply<kStay, kA>(0, 0, false);
    }
    a_.data += a_.step;
    b_.data += b_.step;
  }

 private:
  /// Four products: part `streamed` of the streamed factor by part `other` of the other one.
  template <Load kLoad, bool kStreamedA>
  ARMILLARY_INLINE void multiply(int streamed, int other, bool first) {
    constexpr bool kLoadA = kLoad != Load::B;
    constexpr bool kLoadB = kLoad != Load::A;
    const float* const a = a_.data + (kStreamedA ? streamed : other) * a_.part;
    const float* const b = b_.data + (kStreamedA ? other : streamed) * b_.part;
    if constexpr (kLoadA) load_factor<kStreamed, 4>(a);
    if constexpr (kLoadB) load_factor<kStreamed, 6>(b);
    add_to<0, 4, 6>(first);
    if constexpr (kLoadB) load_factor<kStreamed, 7>(b + b_.other);
    add_to<1, 4, 7>(first);
    if constexpr (kLoadA) load_factor<kStreamed, 5>(a + a_.other);
    add_to<2, 5, 6>(first);
    add_to<3, 5, 7>(first);
  }
  template <int kSum, int kA, int kB>
  ARMILLARY_INLINE void add_to(bool first) {
    if (first) pending_.store<kSum>();
    if (first) begin_sum<kSum>(from_);
    tile_dot<kSum, kA, kB>();
    beside_.step();
  }

  TilesOf a_;
  TilesOf b_;
  const float* from_;
  PendingSums& pending_;
  Beside& beside_;
};

/// Products of parts for one product of elements: 1 for bf16, 6 for three parts.
constexpr int products_per_step(int parts) {
  return parts * (parts + 1) / 2;
}

/// Computes the product. Its accumulators stay pending for `gemm.to`. `beside.step()` follows each
/// product of tiles: 4 * gemm.steps * products_per_step(kParts) times.
template <int kParts, Streamed kStreamed, class Beside>
ARMILLARY_INLINE void multiply_tiles(const TileGemm& gemm, PendingSums& pending, Beside& beside) {
  TileProducts<kStreamed, Beside> products(gemm, pending, beside);
  const int steps = gemm.steps;
  for (int i = 0; i < steps; ++i) products.template add<kParts>(i);
  pending.put(gemm.to);
}

// Scores of a chunk of 32 keys and 32 queries: features of score.h, maxima and NaN.

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

// The products of tiles, computed by vectors, for factors with NaN or Inf.
//
// Tile products cover whole chunks, so they would multiply hidden pairs by a weight of 0, and 0 *
// NaN is NaN. With floats in parts, Inf also has parts that are 0, and 0 * Inf is NaN. Results go
// to the same places in the same layouts as those of the tile products.

/// A vector of elements, added up from `kParts` words of two bf16 that are `part` floats apart; the
/// lower halves or the upper halves of the words.
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
/// The same for one element: number `index` of tiles of bf16 that are `part` floats apart.
template <int kParts>
ARMILLARY_INLINE float joined_at(const float* tiles, int part, int index) {
  float x = 0;
  for (int p = kParts - 1; p >= 0; --p) {
    x += static_cast<float>(reinterpret_cast<const Bf16*>(tiles + p * part)[index]);
  }
  return x;
}

/// Marks the rows of 32 keys and the columns of 32 queries (in words) that have a NaN or Inf.
inline void find_nonfinite(const float* keys, const float* queries, int steps, bool* nonfinite_keys,
                           bool* nonfinite_queries) {
  const auto is_nonfinite = [](const float* tiles, int half) {
    return (reinterpret_cast<const Bf16*>(tiles)[half].bits & 0x7f80) == 0x7f80;
  };
  for (int i = 0; i < kDoubleSide; ++i) {
    nonfinite_keys[i] = nonfinite_queries[i] = false;
    for (int step = 0; step < steps; ++step) {
      const float* const key = keys + (i / kSide * steps + step) * kTileFloats;
      const float* const query = queries + (2 * step + i / kSide) * kTileFloats;
      for (int x = 0; x < kDoubleSide; ++x) {
        nonfinite_keys[i] |= is_nonfinite(key, i % kSide * kDoubleSide + x);
        nonfinite_queries[i] |= is_nonfinite(query, x / 2 * kDoubleSide + i % kSide * 2 + x % 2);
      }
    }
  }
}

/// Scores of a key and 16 queries, by vectors.
template <int kParts>
inline Float scores_of_key(const float* keys, const float* queries, int steps, int key, int half) {
  const int part = steps * 2 * kTileFloats;
  Float sum = all(0.0f);
  for (int step = 0; step < steps; ++step) {
    const float* const tile = keys + (key / kSide * steps + step) * kTileFloats;
    const float* const words = queries + (2 * step + half / kSide) * kTileFloats;
    for (int x = 0; x < kDoubleSide; ++x) {
      sum = fma(all(joined_at<kParts>(tile, part, key % kSide * kDoubleSide + x)),
                joined<kParts>(words + x / 2 * kWidth, part, x % 2), sum);
    }
  }
  return sum;
}

/// Recomputes S^T = K Q^T of a chunk of 32 keys (rows) and 32 queries (words) where a factor is not
/// finite. All other scores keep the bits that tiles gave them, in both passes.
template <int kParts>
inline void mend_scores(const float* keys, const float* queries, int steps, float* scores) {
  bool nonfinite_keys[kDoubleSide];
  bool nonfinite_queries[kDoubleSide];
  find_nonfinite(keys, queries, steps, nonfinite_keys, nonfinite_queries);
  for (int half = 0; half < kDoubleSide; half += kSide) {
    bool any = false;
    for (int q = 0; q < kSide; ++q) any |= nonfinite_queries[half + q];
    for (int key = 0; key < kDoubleSide; ++key) {
      if (!any && !nonfinite_keys[key]) continue;
      float* const row =
          scores + (key / kSide * 2 + half / kSide) * kTileFloats + key % kSide * kWidth;
      float mended[kSide];
      store(mended, scores_of_key<kParts>(keys, queries, steps, key, half));
      for (int q = 0; q < kSide; ++q) {
        if (nonfinite_keys[key] || nonfinite_queries[half + q]) row[q] = mended[q];
      }
    }
  }
}

/// Accumulators of 32 queries += X^T P^T over 32 keys. X has `columns` columns of tiles; P is in
/// words, two tiles of 16 queries for each part, which are `words_part` floats apart.
struct ExactColumns {
  const float* x = nullptr;
  int columns = 0;
  const float* words = nullptr;
  int words_part = 0;
  const std::uint32_t* visible = nullptr;  ///< keys that each query sees; null: all of them
  float* sums = nullptr;
};
template <int kParts>
inline void add_columns_exactly(const ExactColumns& of) {
  for (int half = 0; half < kDoubleSide; half += kSide) {
    Float p[kDoubleSide];
    for (int key = 0; key < kDoubleSide; ++key) {
      p[key] = joined<kParts>(of.words + half / kSide * kTileFloats + key / 2 * kWidth,
                              of.words_part, key % 2);
    }
    for (int column = 0; column < of.columns * kSide; ++column) {
      float* const row =
          of.sums + (column / kSide * 2 + half / kSide) * kTileFloats + column % kSide * kWidth;
      const float* const tile = of.x + column / kSide * kTileFloats;
      Float sum = load(row);
      for (int key = 0; key < kDoubleSide; ++key) {
        const float factor =
            joined_at<kParts>(tile, of.columns * kTileFloats, column % kSide * kDoubleSide + key);
        const Float with = fma(all(factor), p[key], sum);
        sum = of.visible == nullptr ? with : if_visible(of.visible + half, key, with, sum);
      }
      store(row, sum);
    }
  }
}

/// Accumulators of 32 keys += P X over `queries` queries. P is in halves of rows of 32 queries, in
/// two tiles of 16 keys that are `next` floats apart; X is in row words, two tiles for each of
/// `steps` steps of 32 elements. Parts are `p_part` and `x_part` floats apart.
struct ExactRows {
  const float* x = nullptr;
  int x_part = 0;
  const float* p = nullptr;
  int next = 0;
  int p_part = 0;
  const std::uint32_t* visible = nullptr;  ///< keys that each query sees; null: all of them
  int queries = 0;
  int steps = 0;
  float* sums = nullptr;
};
template <int kParts>
inline void add_rows_exactly(const ExactRows& of) {
  for (int key = 0; key < kDoubleSide; ++key) {
    const float* const weights = of.p + key / kSide * of.next;
    for (int column = 0; column < 2 * of.steps; ++column) {
      float* const row = of.sums + ((column / 2 * 2 + key / kSide) * 2 + column % 2) * kTileFloats +
                         key % kSide * kWidth;
      const float* const tile = of.x + column * kTileFloats;
      Float sum = load(row);
      for (int q = 0; q < of.queries; ++q) {
        if (of.visible != nullptr && (of.visible[q] >> key & 1) == 0) continue;
        const float weight = joined_at<kParts>(weights, of.p_part, key % kSide * kDoubleSide + q);
        sum = fma(all(weight), joined<kParts>(tile + q / 2 * kWidth, of.x_part, q % 2), sum);
      }
      store(row, sum);
    }
  }
}

// The visible pairs of a tile as bits, for chunks of 32 keys and groups of 32 queries: one word for
// each query and chunk, one bit for each key.
//
// Every chunk of a group is classified, so that hidden chunks are skipped and whole ones need no
// masking.

/// The bits of one tile. The caller gives memory for `floats` floats. Without ranges only the last
/// chunk needs words, which are the same for all queries.
class TileVisibility {
 public:
  /// No pair of a chunk and group is visible, some are, or all are.
  enum class Kind : std::uint8_t { None, Partial, Whole };

  /// Floats of memory for the words and kinds of a tile.
  static constexpr int floats(int groups, int chunks) {
    return groups * chunks * (kDoubleSide + 1);
  }

  TileVisibility(const TilePairs& pairs, float* memory)
      : pairs_(pairs),
        chunks_((pairs.k_rows + kDoubleSide - 1) / kDoubleSide),
        groups_((pairs.q_rows + kDoubleSide - 1) / kDoubleSide),
        words_(reinterpret_cast<std::uint32_t*>(memory)),
        kinds_(reinterpret_cast<Kind*>(memory + groups_ * chunks_ * kDoubleSide)) {
    if (pairs.ranges != nullptr) {
      mark();
    } else if (pairs.k_rows % kDoubleSide != 0) {
      const std::uint32_t tail = (1u << pairs.k_rows % kDoubleSide) - 1;
      for (int i = 0; i < kDoubleSide; ++i) words_[i] = tail;
    }
  }

  int chunks() const { return chunks_; }
  int groups() const { return groups_; }

  /// The words of the 32 queries of a group, for one chunk.
  const std::uint32_t* words(int group, int chunk) const {
    return pairs_.ranges == nullptr ? words_ : words_ + (group * chunks_ + chunk) * kDoubleSide;
  }

  Kind kind(int group, int chunk) const {
    if (pairs_.ranges == nullptr) {
      return (chunk + 1) * kDoubleSide <= pairs_.k_rows ? Kind::Whole : Kind::Partial;
    }
    return kinds_[group * chunks_ + chunk];
  }

 private:
  /// Sets the bits of all ranges. The first range of each row is marked in vectors, 16 rows at
  /// once; further ranges of a row, which are few, one by one.
  void mark() {
    const RowRange* range = pairs_.ranges;
    const RowRange* const end = range + pairs_.range_count;
    for (int group = 0; group < groups_; ++group) {
      std::int32_t begins[kDoubleSide] = {};
      std::int32_t ends[kDoubleSide] = {};
      const RowRange* const first = range;
      for (; range != end && range->row < (group + 1) * kDoubleSide; ++range) {
        if (range != first && range->row == range[-1].row) continue;
        begins[range->row % kDoubleSide] = range->begin;
        ends[range->row % kDoubleSide] = range->end;
      }
      mark_group(group, begins, ends);
      for (const RowRange* later = first; later != range; ++later) {
        if (later != first && later->row == later[-1].row) mark_range(*later);
      }
      find_kinds(group);
    }
  }
  /// Marks one range [begins[i], ends[i]) for each row i of a group.
  void mark_group(int group, const std::int32_t* begins, const std::int32_t* ends) {
    std::uint32_t* word = words_ + group * chunks_ * kDoubleSide;
    for (int key = 0; key < chunks_ * kDoubleSide; key += kDoubleSide, word += kDoubleSide) {
      for (int i = 0; i < kDoubleSide; ++i)
        word[i] = below(ends[i] - key) & ~below(begins[i] - key);
    }
  }
  /// The lowest `keys` bits, clamped to 0 .. 32.
  ARMILLARY_INLINE static std::uint32_t below(std::int32_t keys) {
    const std::uint32_t some = (1u << (keys & (kDoubleSide - 1))) - 1;
    return keys <= 0 ? 0 : keys >= kDoubleSide ? ~0u : some;
  }
  /// Adds one range to the words of its row.
  void mark_range(const RowRange& range) {
    std::uint32_t* const word =
        words_ + range.row / kDoubleSide * chunks_ * kDoubleSide + range.row % kDoubleSide;
    for (int chunk = range.begin / kDoubleSide; chunk * kDoubleSide < range.end; ++chunk) {
      word[chunk * kDoubleSide] |=
          below(range.end - chunk * kDoubleSide) & ~below(range.begin - chunk * kDoubleSide);
    }
  }
  /// Classifies the chunks of a group, over its rows that exist.
  void find_kinds(int group) {
    const int left = pairs_.q_rows - group * kDoubleSide;
    const int rows = left < kDoubleSide ? left : kDoubleSide;
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      const std::uint32_t* const of_group = words(group, chunk);
      std::uint32_t any = 0;
      std::uint32_t every = ~0u;
      for (int i = 0; i < kDoubleSide; ++i) any |= of_group[i];
      if (rows == kDoubleSide) {
        for (int i = 0; i < kDoubleSide; ++i) every &= of_group[i];
      } else {
        for (int i = 0; i < rows; ++i) every &= of_group[i];
      }
      kinds_[group * chunks_ + chunk] = any == 0       ? Kind::None
                                        : every == ~0u ? Kind::Whole
                                                       : Kind::Partial;
    }
  }

  const TilePairs& pairs_;
  int chunks_;
  int groups_;
  std::uint32_t* words_;
  Kind* kinds_;
};

// How scores of a chunk become weights, and when maxima move.
//
// The vector work of softmax is spread over the products of the tile unit: Weighing does a share of
// it after each product, at the pace that finishes both together.

/// Portions of weighing in a chunk: two rows of 16 queries each.
constexpr int kChunkUnits = kDoubleSide;

/// 2^x of `N` vectors, also for 0 and for what overflows: within 2^-18.5 for weights of one part,
/// which are rounded to bf16 (2^-9) at once, otherwise within 1.1 ulp.
template <int kParts, int N>
ARMILLARY_INLINE void power_of_two(Float (&x)[N]) {
  constexpr int kDegree = kParts == 1 ? 4 : 6;
  constexpr float kCoefficients[2][7] = {
      {0x1.00002cp+0f, 0x1.62d166p-1f, 0x1.ee798ap-3f, 0x1.aa13f2p-5f, 0x1.bb7cdap-7f, 0, 0},
      {1, 0x1.62e42ap-1f, 0x1.ebfd9ep-3f, 0x1.c68500p-5f, 0x1.3d2800p-7f, 0x1.461954p-10f,
       0x1.c72118p-13f}};
  const float(&c)[7] = kCoefficients[kParts == 1 ? 0 : 1];
  Float r[N];
  Float p[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) r[i] = fraction(x[i]);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    p[i] = all(c[kDegree]);
#pragma GCC unroll 8
    for (int k = kDegree - 1; k >= 0; --k) p[i] = fma(p[i], r[i], all(c[k]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) x[i] = times_power(p[i], x[i]);
}

/// GemmOps::log_unit. Maxima of bf16 are in units of log 2, which saves one multiplication for each
/// weight; those of floats are in the unit of scores, so that no rounding is added.
constexpr float log_unit(int parts) {
  return parts == 1 ? kLn2 : 1;
}

/// The maximum, or 0 where there is no score.
inline Float finite_or_0(Float max) {
  return if_less(max, all(kNoScore), all(0.0f), max);
}

/// Applies the scale to the scores beforehand if a maximum is large: scores are then rounded as the
/// maximum was before their difference is taken. Elsewhere the scale is part of the fma that takes
/// the difference, which is faster.
inline void scale_if_large(float* x, int chunks, const float* max, float& scale) {
  constexpr float kLarge = 0x1p10f;
  if (!any_above(abs(finite_or_0(load(max))), kLarge) &&
      !any_above(abs(finite_or_0(load(max + kSide))), kLarge)) {
    return;
  }
  for (int i = 0; i < chunks * kChunkFloats; i += kWidth)
    store(x + i, mul(load(x + i), all(scale)));
  scale = 1;
}

/// Raises the maxima of 32 queries to their largest scores where that matters, and rescales sums.
/// Returns whether one of `factors`, by which other accumulators must be multiplied, is not 1.
template <int kParts>
bool raise_maxima(const float* tops, float scale, float* max, float* sums, float* factors) {
  constexpr float kShare = 64;    // above: a weight of less than a 64th of the sum may exceed 1
  constexpr float kLargest = 20;  // units of log 2: a weight above that moves any maximum
  bool moved = false;
  for (int half = 0; half < kDoubleSide; half += kSide) {
    const Float before = load(max + half);
    const Float sum = load(sums + half);
    const Float top = mul(load(tops + half), all(scale));
    const Float above = mul(sub(top, before), all(log_unit(kParts) * kLog2E));
    Float weight[1] = {above};
    power_of_two<kParts>(weight);
    Float raised = if_less(sum, mul(weight[0], all(kShare)), top, before);
    raised = if_less(all(kLargest), above, top, raised);
    raised = if_less(before, raised, raised, before);
    // Nothing is summed where there was no maximum.
    const Float by = if_less(before, all(kNoScore), all(0.0f), sub(before, raised));
    const Float factor = exp(mul(by, all(log_unit(kParts))));
    store(max + half, raised);
    store(sums + half, mul(sum, factor));
    store(factors + half, factor);
    moved |= any_above(sub(all(1.0f), factor), 0);
  }
  return moved;
}

/// Weights of scores from which their maximum is subtracted.
template <int kParts, int N>
ARMILLARY_INLINE void weigh_differences(Float (&x)[N]) {
  if constexpr (kParts > 1) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) x[i] = mul(x[i], all(kLog2E));
  }
  power_of_two<kParts>(x);
}

constexpr int kWeightFloats = 2 * kTileFloats;  ///< one part of P of a chunk

/// Stores a row of words of P, in its parts.
template <int kParts>
ARMILLARY_INLINE void store_weights_of(float* to, Float even, Float odd) {
  if constexpr (kParts == 1) {
    store_weights(to, even, odd);
  } else {
    store_word_parts<kParts>(to, kWeightFloats, even, odd);
  }
}

/// Weighs the scores of a chunk, one portion after the other: P^T as words, in parts, and the sums
/// of columns. step() is called beside products, over which the work is spread evenly.
template <int kParts>
class Weighing {
 public:
  Weighing(const float* scores, float* words, float scale)
      : scores_(scores), words_(words), scale_(all(scale)) {}

  /// Maxima and sums of 32 queries: `max` is finite where a score is; sums are added to. The last
  /// parameter is the number of products beside which the chunk is weighed; 0 if there are none.
  ARMILLARY_INLINE void begin(const float* max, float* sums, int products) {
    max_ = max;
    sums_ = sums;
    if (products != 0) pace_ = (left_ * kUnit + products - 1) / products;
  }
  /// Called after a product: weighs as many portions as are due.
  ARMILLARY_INLINE void step() {
    for (credit_ += pace_; credit_ >= kUnit && left_ != 0; credit_ -= kUnit) weigh_two_rows();
  }
  ARMILLARY_INLINE void finish() {
    while (left_ != 0) weigh_two_rows();
  }

 private:
  static constexpr int kUnit = 256;

  /// One portion: two rows of 16 queries.
  ARMILLARY_INLINE void weigh_two_rows() {
    if (left_ % kSide == 0) {  // 16 portions for the first 16 queries, then 16 for the others
      half_ = left_ == kChunkUnits ? 0 : kSide;
      const Float max = load(max_ + half_);
      minus_base_ = if_less(max, all(kNoScore), all(0.0f), sub(all(0.0f), max));
      even_ = all(0.0f);  // summed apart: the sum so far is much larger than one weight
      odd_ = all(0.0f);
    }
    Float x[2] = {fma(load(scores_), scale_, minus_base_),
                  fma(load(scores_ + kWidth), scale_, minus_base_)};
    weigh_differences<kParts>(x);
    even_ = add(even_, x[0]);
    odd_ = add(odd_, x[1]);
    store_weights_of<kParts>(words_, x[0], x[1]);
    scores_ += 2 * kWidth;
    words_ += kWidth;
    --left_;
    if (left_ % (kSide / 2) == 0) next_tile();
  }
  /// Moves from the first 16 keys of 16 queries to the next, and then to the other queries.
  ARMILLARY_INLINE void next_tile() {
    if (left_ % kSide != 0) {
      scores_ += kTileFloats;
      return;
    }
    scores_ -= 2 * kTileFloats;
    store(sums_ + half_, add(load(sums_ + half_), add(even_, odd_)));
  }

  const float* scores_;
  float* words_;
  int left_ = kChunkUnits;
  int pace_ = kUnit;  ///< portions a product, in units of 1 / kUnit
  int credit_ = 0;
  int half_ = 0;
  const float* max_ = nullptr;
  float* sums_ = nullptr;
  Float scale_;
  Float minus_base_ = all(0.0f);
  Float even_ = all(0.0f);
  Float odd_ = all(0.0f);
};

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
