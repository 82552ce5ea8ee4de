// isa_kernels.h: the interface between the drivers and the kernels of one instruction set.
//
// Drivers (forward.cpp, backward.cpp) are compiled once; kernels are compiled once per instruction
// set and reached through a table of functions, IsaKernels. A kernel call gets one tile: a query
// row block against a key row block, both packed. All of it is plain data, so this header is safe
// to include in sources with special compiler flags (simd-inl.h).
//
//   S = scale Q K^T      P = softmax weights of S      O = P V
//   dP = dO V^T          dS = P (dP - delta)
//
// Packed layouts, in panels of W columns, where W is the panel width of the set:
//
//   columns      [X / W][rows][W]   Q, V, K and dO: panels of W elements of a row
//   transposed   [rows / W][X][W]   K^T and V^T: panels of W keys
//
// The last panel is W wide too; missing elements are zero.
//
// GemmOps with `terms` of 2 multiply bf16: a word of two bf16, two neighbouring terms of a dot
// product, takes the place of a float (bf16_dot-inl.h). The two terms are neighbours within a row
// where the sum runs over D or E, and neighbours within a column where it runs over rows: V
// forward; Q, dO and K for the gradients. AMX has packed layouts of its own, and splits fp32 into
// three bf16 parts (amx-inl.h).
#pragma once

#include <cstdint>

#include "armillary/core/half_floats.h"

namespace armillary::kernel {
class DropoutStream;
}

namespace armillary::kernel::cpu {

/// dtype of elements in memory. Accumulators are always fp32.
enum class Element : std::uint8_t { Float32, BFloat16, Float16 };
inline constexpr int kElements = 3;

inline std::size_t index_of(Element element) {
  return static_cast<std::size_t>(element);
}
inline std::int64_t bytes_of(Element element) {
  return element == Element::Float32 ? 4 : 2;
}

/// Rows of a tensor, of one head of one batch entry; the elements of a row are neighbours.
struct Rows {
  const void* data = nullptr;
  Element element = Element::Float32;
  std::int64_t stride = 0;  ///< elements from row to row
  std::int64_t count = 0;
  int width = 0;
};

/// Keys [begin, end) of a key row block that query `row` of a query row block sees; all counted
/// from the start of their row block.
struct RowRange {
  std::int16_t row = 0;
  std::int16_t begin = 0;
  std::int16_t end = 0;
};

/// Keys [first, first + count) of a key row block, for query `row` of a query row block.
struct RowKeys {
  int row = 0;
  int first = 0;
  int count = 0;
};

/// Features of the score (score.h) for one head and one tile, without the scale.
struct TileScore {
  /// 0: no softcap. Otherwise packed queries are scaled by 1 / softcap as well, so that kernels get
  /// the argument of tanh.
  float softcap = 0;
  float slope = 0;         ///< ALiBi slope of the head; 0: none
  std::int64_t shift = 0;  ///< kv_len - q_len of the mask
  /// Global positions, from the first row of the row block on.
  const std::int64_t* q_positions = nullptr;
  const std::int64_t* k_positions = nullptr;
  const DropoutStream* dropout = nullptr;  ///< null: no dropout
  /// Whether scores are nothing but scaled products.
  bool plain() const { return softcap == 0 && slope == 0 && dropout == nullptr; }
};

/// Visible (query, key) pairs of a tile.
struct TilePairs {
  int q_rows = 0;
  int k_rows = 0;
  const RowRange* ranges = nullptr;  ///< by row, then key; null if every pair is visible
  int range_count = 0;
  /// A packed factor contains NaN or Inf. Hidden pairs must not be multiplied then: a weight of 0
  /// would not hide 0 * NaN.
  bool nonfinite = false;
};

/// Arguments of GemmOps::forward: merges a tile into the online softmax state of its queries.
///
/// The state of a row is (out, max, sum): out = sum over keys of exp(s - max) v, not yet divided by
/// sum = sum of exp(s - max). Without a key it is (0, -inf, 0). A carry-in (out, lse) is the state
/// (out, lse, 1). `max` is in the unit of GemmOps::log_unit.
struct ForwardTile {
  TilePairs pairs;
  TileScore score;
  int head_dim = 0;
  int value_dim = 0;
  /// Factor that kernels apply to scores of bf16 inputs: bf16 queries are packed as they are, while
  /// fp32 queries are scaled when they are packed.
  float scale = 1;
  const float* q = nullptr;  ///< columns; fp32 is scaled, bf16 is not
  const float* k = nullptr;  ///< transposed
  const float* v = nullptr;  ///< columns
  float* scores = nullptr;   ///< scratch of PassSizes::scores floats
  // State of the queries, updated.
  float* out = nullptr;  ///< columns
  float* max = nullptr;
  float* sum = nullptr;
  float* max_logit = nullptr;  ///< raised to the largest visible score of the tile; may be null
};

/// Arguments of GemmOps::backward and backward_dq: the gradient of a tile.
///
/// The same matrices are packed twice if `terms` is 2: q, dout, k_transposed and v_transposed are
/// factors of S and dP, summed over D and E; q_values, dout_values and k_values are factors of dK,
/// dV and dQ, summed over rows. If `terms` is 1, q_values and dout_values are q and dout
/// themselves.
struct BackwardTile {
  TilePairs pairs;
  TileScore score;
  int head_dim = 0;
  int value_dim = 0;
  /// Factor of dS K in dq.
  float scale = 0;
  /// Factor of scores that kernels apply themselves; see ForwardTile::scale.
  float score_scale = 1;
  // Factors of S and dP.
  const float* q = nullptr;             ///< columns; fp32 is scaled, bf16 is not
  const float* dout = nullptr;          ///< columns
  const float* k_transposed = nullptr;  ///< transposed
  const float* v_transposed = nullptr;  ///< transposed
  // Factors of dK, dV and dQ.
  const float* q_values = nullptr;     ///< columns
  const float* dout_values = nullptr;  ///< columns
  const float* k_values = nullptr;     ///< columns
  /// Of each query row: log-sum-exp over all its keys (inf in padding rows) and rowsum(dout * out).
  const float* lse = nullptr;
  const float* delta = nullptr;
  /// Scratch of PassSizes::scores floats: P, then P with dropout; if `terms` is 2, then words of P
  /// and dS. It is valid until backward_dq() of the same tile, as is `dscores`.
  float* weights = nullptr;
  /// Scratch of PassSizes::dscores floats: dP, then dS; if `terms` is 2, then words of dS.
  float* dscores = nullptr;
  /// Accumulators of the key row block, updated: dS^T Q and P^T dO in packed columns. They are
  /// private to the thread until GemmOps::write_sums or add_sums.
  float* dk = nullptr;
  float* dv = nullptr;
  /// Rows of dq, not packed, `dq_stride` floats apart; updated by backward_dq() only.
  float* dq = nullptr;
  std::int64_t dq_stride = 0;
};

/// Up to kCount rows of a row op, by address, so that kernels know nothing of strides. Rows of
/// log-sum-exps and deltas are single floats.
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

/// Accumulators of keys (dk, dv) as kernels keep them, and the factor that they still lack.
struct PackedSums {
  const float* data = nullptr;
  int padded = 0;  ///< packed rows, a multiple of Units::rows
  int rows = 0;    ///< rows that exist
  int width = 0;
  float factor = 1;
};

/// Largest row blocks of a pass, and floats of the scratch of a tile.
struct PassSizes {
  int q_rows = 0;
  int k_rows = 0;
  int scores = 0;   ///< ForwardTile::scores or BackwardTile::weights
  int dscores = 0;  ///< BackwardTile::dscores
};

/// Multiples that packed row blocks are padded to, in rows or elements.
struct Units {
  int rows = 1;     ///< rows of packed queries, and of accumulators for queries and keys
  int keys = 1;     ///< rows of packed keys
  int width = 1;    ///< elements of a row of packed keys
  int words = 1;    ///< words of a row of packed queries
  int columns = 1;  ///< elements of a row of packed values, and of accumulators
};

/// GEMM functions of one way to multiply, and the packing that they need.
///
/// Pack functions pad to `padded` rows with zeros, round nothing but parts of fp32, and return
/// whether all elements were finite. They multiply by `scale` where they pack fp32 in words of one
/// term, and pack_queries wherever it packs fp32; bf16 is packed as it is.
struct GemmOps {
  /// Terms of a dot product in one packed word: 1 (a float) or 2 (bf16, or bf16 parts of floats).
  int terms = 1;
  /// bf16 numbers that add up to an element: 3 for floats on AMX, otherwise 1.
  int parts = 1;
  /// Whether rows of keys are read as words of two bf16: they then need even widths and strides and
  /// an address that is a multiple of 4.
  bool needs_words = false;
  Units units;
  PassSizes forward_sizes;
  PassSizes backward_sizes;
  /// Floats that are packed of several heads at once, at most, so that they stay in the second
  /// cache level; 0: no limit but kPackedFloats.
  std::int64_t heads_floats = 0;
  /// ForwardTile::max times log_unit is a natural logarithm, in the unit of log-sum-exps.
  float log_unit = 1;
  /// Left factors of sums over D or E, in columns: Q; in backward also dO.
  bool (*pack_queries)(const Rows& rows, float scale, int padded, float* packed) = nullptr;
  /// Right factors of sums over D or E, transposed: K; in backward also V.
  bool (*pack_keys)(const Rows& rows, float* packed) = nullptr;
  /// Factors of sums over keys, in columns: V forward, K backward.
  bool (*pack_values)(const Rows& rows, float scale, int padded, float* packed) = nullptr;
  /// Factors of sums over queries, in columns: Q and dO.
  bool (*pack_query_values)(const Rows& rows, float scale, int padded, float* packed) = nullptr;
  /// fp32 rows as accumulators of queries, in the layout of ForwardTile::out.
  bool (*pack_sums)(const Rows& rows, float scale, int padded, float* packed) = nullptr;
  /// Merges a tile into the state of its queries. Requires a visible pair.
  void (*forward)(const ForwardTile& tile) = nullptr;
  /// P and dS of a tile, added up into dk and dv.
  void (*backward)(const BackwardTile& tile) = nullptr;
  /// dq += scale dS K, after `backward` of the same tile; a call of its own, so that drivers can
  /// order the tiles that add to the same rows.
  void (*backward_dq)(const BackwardTile& tile) = nullptr;
  /// Multiplies `out` of one query row by a factor.
  void (*scale_row)(const ForwardTile& tile, int row, float factor) = nullptr;
  /// Writes the state of queries as rows: out / sum and max + log(sum), or (0, -inf) without a key.
  /// Indexed by the dtype of `out`, which is rounded once. Strides in elements.
  void (*write[kElements])(const ForwardTile& tile, void* out, std::int64_t out_stride, float* lse,
                           std::int64_t lse_stride) = {};
  /// Writes accumulators of keys as rows, `stride` elements apart: to = factor * sums. Indexed by
  /// the dtype of `to`, which is rounded once.
  void (*write_sums[kElements])(const PackedSums& sums, void* to, std::int64_t stride) = {};
  /// Adds accumulators of keys to fp32 rows: grad += factor * sums.
  void (*add_sums)(const PackedSums& sums, float* grad, std::int64_t stride) = nullptr;
};

/// Functions and sizes of one instruction set. Immutable; lives as long as the program.
struct IsaKernels {
  const char* name = nullptr;  ///< as ARMILLARY_ISA and isa.h have it
  bool avx2 = false;           ///< compiled with AVX2, so other AVX2 code runs wherever it does
  /// Multiplies elements of any dtype as fp32.
  GemmOps floats;
  /// Multiplies bf16 without widening it; `forward` is null in sets that cannot.
  GemmOps bf16_dot;
  /// Writes fp32 rows to rows that are `stride` elements apart. Indexed by the dtype of `to`, which
  /// is rounded once.
  void (*write_rows[kElements])(const Rows& rows, void* to, std::int64_t stride) = {};

  /// kernel::merge, add and delta over rows of `width` elements. Indexed by the dtype of the side
  /// that is only read.
  void (*merge[kElements])(const MergeRows& rows, int width) = {};
  void (*add[kElements])(const AddRows& rows, int width) = {};
  void (*delta[kElements])(const DeltaRows& rows, int width) = {};

  /// Vector functions on their own, for tests of accuracy. `count` is a multiple of 16.
  /// exp2_to_round is null in sets without a bf16 dot product.
  void (*exp)(const float* x, float* y, int count) = nullptr;
  void (*tanh)(const float* x, float* y, int count) = nullptr;
  void (*exp2_to_round)(const float* x, float* y, int count) = nullptr;
};

/// The smallest multiple of `unit` that is at least x: round_up(70, 32) -> 96.
inline int round_up(int x, int unit) {
  return (x + unit - 1) / unit * unit;
}

}  // namespace armillary::kernel::cpu
