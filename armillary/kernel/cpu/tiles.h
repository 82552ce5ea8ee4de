// tiles.h: what a kernel of one instruction set is given: a block of queries against a block of
// keys, both packed. Plain data between the drivers (forward.cpp, backward.cpp), compiled once, and
// the tiles, compiled once per instruction set.
//
// Packed blocks, W = panel width of the set:
//
//   columns      [X / W][rows][W]   Q, V, K and dO, cut into panels of W columns
//   transposed   [rows / W][X][W]   K^T and V^T, cut into panels of W keys
//
// The last panel is W wide too; what it lacks is zero. Where bf16 is multiplied as such, two terms
// of a sum are one word in place of a float (pairs.h): neighbours of a row where the sum is over D
// or E, and of a column where it is over rows, in V forward and in Q, dO and K for the gradients.
#pragma once

#include <cstdint>

namespace armillary::kernel {
class DropoutStream;
}

namespace armillary::kernel::cpu {

enum class Element : std::uint8_t { Float32, BFloat16, Float16 };
inline constexpr int kElements = 3;

inline std::size_t index_of(Element element) {
  return static_cast<std::size_t>(element);
}
inline std::int64_t bytes_of(Element element) {
  return element == Element::Float32 ? 4 : 2;
}

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

/// Rows of a tensor, one head of one batch entry; elements of a row are neighbours.
struct Rows {
  const void* data = nullptr;
  Element element = Element::Float32;
  std::int64_t stride = 0;  ///< Elements from row to row.
  std::int64_t count = 0;
  int width = 0;
};

/// Keys [begin, end) of a block that query `row` of a block sees.
struct RowRange {
  std::int16_t row = 0;
  std::int16_t begin = 0;
  std::int16_t end = 0;
};

/// What of score.h a head has; positions are those of the blocks.
struct TileScore {
  float softcap = 0;       ///< 0 is none; else packed queries are scaled by 1 / softcap too.
  float slope = 0;         ///< 0 is none.
  std::int64_t shift = 0;  ///< kv_len - q_len
  const std::int64_t* q_positions = nullptr;
  const std::int64_t* k_positions = nullptr;
  const DropoutStream* dropout = nullptr;
  bool plain() const { return softcap == 0 && slope == 0 && dropout == nullptr; }
};

/// The pairs of a block of queries and a block of keys.
struct TilePairs {
  int q_rows = 0;
  int k_rows = 0;
  const RowRange* ranges = nullptr;  ///< By row; null if every pair is visible.
  int range_count = 0;
  bool wild = false;  ///< A NaN or Inf is in what was packed: hidden pairs must not be multiplied.
};

struct ForwardTile {
  TilePairs pairs;
  TileScore score;
  int head_dim = 0;
  int value_dim = 0;
  float scale = 1;           ///< Of scores, for bf16: those queries are as they came.
  const float* q = nullptr;  ///< columns, times the scale
  const float* k = nullptr;  ///< transposed
  const float* v = nullptr;  ///< columns
  float* scores = nullptr;   ///< scratch: PassSizes::scores
  // The state of the queries: out is not divided by the sum.
  float* out = nullptr;  ///< columns
  float* max = nullptr;
  float* sum = nullptr;
  float* max_logit = nullptr;  ///< raised to the largest score of the tile, if not null
};

struct BackwardTile {
  TilePairs pairs;
  TileScore score;
  int head_dim = 0;
  int value_dim = 0;
  float scale = 0;        ///< Of dq.
  float score_scale = 1;  ///< Of scores, for bf16: those queries are as they came.
  // Factors of S and dP, summed over D and E.
  const float* q = nullptr;             ///< columns; of floats, times the scale
  const float* dout = nullptr;          ///< columns
  const float* k_transposed = nullptr;  ///< transposed
  const float* v_transposed = nullptr;  ///< transposed
  // Factors of dK, dV and dQ, summed over rows; of floats, the first two are those above.
  const float* q_values = nullptr;     ///< columns
  const float* dout_values = nullptr;  ///< columns
  const float* k_values = nullptr;     ///< columns
  const float* lse = nullptr;          ///< inf in rows that are padding
  const float* delta = nullptr;
  float* weights = nullptr;  ///< scratch: P, then P with dropout; of pairs, then words of P and dS
  float* dscores = nullptr;  ///< scratch: dP, then dS; of pairs, then its words
  float* dk = nullptr;       ///< columns; sums of dS^T Q
  float* dv = nullptr;       ///< columns; sums of P^T dO
  float* dq = nullptr;       ///< rows of the gradient, or of its sums, not packed
  std::int64_t dq_stride = 0;
};

/// Up to kCount rows of two partials, by address; and the same of other row ops.
struct MergeRows {
  static constexpr int kCount = 64;
  int count = 0;
  float* out[kCount];
  float* lse[kCount];
  const void* other_out[kCount];
  const float* other_lse[kCount];
};
struct AddRows {
  static constexpr int kCount = 64;
  int count = 0;
  float* sum[kCount];
  const void* part[kCount];
};
struct DeltaRows {
  static constexpr int kCount = 64;
  int count = 0;
  const void* dout[kCount];
  const void* out[kCount];
  float* delta[kCount];
};

/// The largest blocks of a pass, and floats of the scratch of a tile.
struct PassSizes {
  int q_rows = 0;
  int k_rows = 0;
  int scores = 0;   ///< ForwardTile::scores, BackwardTile::weights
  int dscores = 0;  ///< BackwardTile::dscores
};

/// What packed blocks are padded to a multiple of.
struct Units {
  int rows = 1;     ///< Rows of queries, and of sums for queries or keys.
  int keys = 1;     ///< Rows of packed keys.
  int width = 1;    ///< Elements of a row of packed keys.
  int words = 1;    ///< Words of a row of packed queries.
  int columns = 1;  ///< Elements of a row of what is summed over rows, and of sums.
};

/// How tiles are multiplied, and packed for it. Packing pads to `padded` rows with zeros, and is
/// true if all is finite.
struct Products {
  int terms = 1;  ///< Of a word: 1 of floats, 2 of bf16. Then values of queries are not scaled.
  int parts = 1;  ///< bf16 that add up to an element.
  bool needs_words = false;  ///< Keys have even widths and strides.
  Units units;
  PassSizes forward_sizes;
  PassSizes backward_sizes;
  std::int64_t heads_floats = 0;  ///< What is packed of several heads at once, at most; 0 is any.
  float log_unit = 1;             ///< ForwardTile::max times it is in the unit of log-sum-exps.
  /// Columns and transposed: what is summed over elements of a row. For backward also dO and V.
  bool (*pack_queries)(const Rows& rows, float scale, int padded, float* packed) = nullptr;
  bool (*pack_keys)(const Rows& rows, float* packed) = nullptr;
  /// Columns: what is summed over rows: V forward, K backward; and Q and dO.
  bool (*pack_values)(const Rows& rows, float scale, int padded, float* packed) = nullptr;
  bool (*pack_query_values)(const Rows& rows, float scale, int padded, float* packed) = nullptr;
  /// Sums of queries in the order of ForwardTile::out.
  bool (*pack_sums)(const Rows& rows, float scale, int padded, float* packed) = nullptr;
  /// Merges a tile into the state of its queries.
  void (*forward)(const ForwardTile& tile) = nullptr;
  /// P and dS of a tile, and what they add to dk and dv; then dq.
  void (*backward)(const BackwardTile& tile) = nullptr;
  void (*backward_dq)(const BackwardTile& tile) = nullptr;
  /// out of one row *= factor
  void (*scale_row)(const ForwardTile& tile, int row, float factor) = nullptr;
  // By the dtype of what is written, which is rounded once.
  /// Writes the state of queries as out / sum and max + log sum; (0, -inf) where nothing was seen.
  void (*write[kElements])(const ForwardTile& tile, void* out, std::int64_t out_stride, float* lse,
                           std::int64_t lse_stride) = {};
  /// rows of `to` = factor * sums for keys
  void (*write_sums[kElements])(const float* sums, int padded, int rows, int width, float factor,
                                void* to, std::int64_t stride) = {};
  /// rows of `grad` += factor * sums for keys
  void (*add_sums)(const float* sums, int padded, int rows, int width, float factor, float* grad,
                   std::int64_t stride) = nullptr;
};

/// The functions and sizes of one instruction set.
struct Tiles {
  const char* name = nullptr;
  Products floats;  ///< Of any dtype.
  Products pairs;   ///< Of bf16, multiplied as such; empty if the set cannot.
  /// rows of `to` = rows of floats, by the dtype of what is written, which is rounded once
  void (*write_rows[kElements])(const float* from, std::int64_t from_stride, int rows, int width,
                                void* to, std::int64_t stride) = {};

  /// kernel::merge, add and delta of rows of `width` elements; by the dtype of what is only read.
  void (*merge[kElements])(const MergeRows& rows, int width) = {};
  void (*add[kElements])(const AddRows& rows, int width) = {};
  void (*delta[kElements])(const DeltaRows& rows, int width) = {};

  void (*exp)(const float* x, float* y, int count) = nullptr;            ///< For tests of accuracy.
  void (*tanh)(const float* x, float* y, int count) = nullptr;           ///< The same.
  void (*exp2_to_round)(const float* x, float* y, int count) = nullptr;  ///< Of sets with pairs.
};

inline int round_up(int x, int unit) {
  return (x + unit - 1) / unit * unit;
}

}  // namespace armillary::kernel::cpu
