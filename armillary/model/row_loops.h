// row_loops.h: the loops of row_ops.h over raw memory, compiled once per instruction set.
//
//   row_ops.cpp --> row_loops<T>() --> avx2::kRowLoops       row_loops_avx2.cpp
//                                  or  portable::kRowLoops   row_loops_portable.cpp
//
// Both sources are row_loops-inl.h with flags of their own, as in kernel/cpu.
// T is float or c10::BFloat16. Everything is computed in fp32 and rounded once. Rows are
// contiguous. Both sets give the same bits: neither reorders a sum or fuses a product with a sum.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <type_traits>

namespace armillary::model {

/// A matrix as it lies in memory.
struct RowsShape {
  std::int64_t rows;
  std::int64_t dim;
};

/// Arguments of RowLoops::norm_grad: dy, x and dx are [rows, dim], inverse [rows], the others
/// [dim].
template <class T>
struct NormGradRows {
  RowsShape shape;
  const T* dy;
  const T* x;
  const float* inverse;
  const float* weight;
  T* dx;
  double* dweight;
};

/// Arguments of RowLoops::rotate: `heads` heads of one token, each of `dim`, a row each.
template <class T>
struct RotatedHeads {
  std::int64_t heads;
  std::int64_t dim;
  const T* x;
  const float* cos;  ///< Angles of the token, dim / 2 of them, the same for all heads.
  const float* sin;
  float direction;  ///< 1, or -1 to rotate back.
  T* y;
};

/// Loops over rows of T.
template <class T>
struct RowLoops {
  /// inverse[row] = 1 / sqrt(mean(x^2) + eps).
  void (*inverse_rms)(RowsShape shape, const T* x, double eps, float* inverse);
  /// y = x * inverse[row] * weight.
  void (*norm)(RowsShape shape, const T* x, const float* inverse, const float* weight, T* y);
  /// dx = the gradient of `norm` for x, with `inverse` as a function of x, and dweight += that for
  /// the weight.
  void (*norm_grad)(const NormGradRows<T>& rows);
  /// Rotates the pairs (x_i, x_{i + dim/2}) of each head by the angles.
  void (*rotate)(const RotatedHeads<T>& rows);
};

/// All loops of one instruction set.
struct RowLoopSet {
  RowLoops<float> fp32;
  RowLoops<c10::BFloat16> bf16;
  /// Rounds n values to the nearest bf16, in place.
  void (*round_to_bf16)(std::int64_t n, float* x);
};

/// The set that runs: AVX2 if the attention kernels of this process use it (current_isa() of
/// kernel/cpu/isa.h, which ARMILLARY_ISA may name). Chosen once, at the first call. Threads: any.
/// @throws as cpu::current_isa.
const RowLoopSet& row_loop_set();

/// Its loops for T.
template <class T>
const RowLoops<T>& row_loops() {
  if constexpr (std::is_same_v<T, float>) {
    return row_loop_set().fp32;
  } else {
    return row_loop_set().bf16;
  }
}

}  // namespace armillary::model
