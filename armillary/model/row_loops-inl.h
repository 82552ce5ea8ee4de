// row_loops-inl.h: the loops of row_loops.h, for the one source of an instruction set.
//
// The source defines ARMILLARY_ISA, the name of its set, before it includes this file, and is
// compiled with the flags of the set. Everything here is in a namespace of that name, so the linker
// cannot take a function of one set for that of another. The compiler vectorises the loops, which
// are written so that no sum has to be reordered for it. The flags must not allow fused
// multiply-add, which would give other bits.
#pragma once

#include <cmath>

#include "armillary/model/row_loops.h"

namespace armillary::model::ARMILLARY_ISA {

/// Partial sums of a long sum. No compiler may reorder a sum of floats to make a vector of it, so
/// the order is written here: element i is added to lane i % kLanes.
constexpr std::int64_t kLanes = 16;

inline float sum_of(const float* lanes) {
  float sum = 0;
  for (std::int64_t j = 0; j < kLanes; ++j) sum += lanes[j];
  return sum;
}

template <class T>
void inverse_rms(RowsShape shape, const T* x, double eps, float* inverse) {
  for (std::int64_t row = 0; row < shape.rows; ++row, x += shape.dim) {
    float squares[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= shape.dim; i += kLanes) {
      for (std::int64_t j = 0; j < kLanes; ++j) {
        const auto value = static_cast<float>(x[i + j]);
        squares[j] += value * value;
      }
    }
    for (; i < shape.dim; ++i) {
      const auto value = static_cast<float>(x[i]);
      squares[i % kLanes] += value * value;
    }
    const double mean = static_cast<double>(sum_of(squares)) / static_cast<double>(shape.dim);
    inverse[row] = static_cast<float>(1 / std::sqrt(mean + eps));
  }
}

template <class T>
void norm(RowsShape shape, const T* x, const float* inverse, const float* weight, T* y) {
  for (std::int64_t row = 0; row < shape.rows; ++row, x += shape.dim, y += shape.dim) {
    const float r = inverse[row];
    for (std::int64_t i = 0; i < shape.dim; ++i) {
      y[i] = static_cast<T>(static_cast<float>(x[i]) * r * weight[i]);
    }
  }
}

/// Sum of dy * weight * x over a row.
template <class T>
float grad_along(std::int64_t dim, const T* dy, const T* x, const float* weight) {
  float along[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) {
      along[j] += static_cast<float>(dy[i + j]) * weight[i + j] * static_cast<float>(x[i + j]);
    }
  }
  for (; i < dim; ++i) {
    along[i % kLanes] += static_cast<float>(dy[i]) * weight[i] * static_cast<float>(x[i]);
  }
  return sum_of(along);
}

/// With u = x r: dx = r (dy weight - u mean(dy weight u)), dweight += dy u.
template <class T>
void norm_grad(const NormGradRows<T>& rows) {
  auto [shape, dy, x, inverse, weight, dx, dweight] = rows;
  const std::int64_t dim = shape.dim;
  for (std::int64_t row = 0; row < shape.rows; ++row, dy += dim, x += dim, dx += dim) {
    const float r = inverse[row];
    const float along = r * grad_along(dim, dy, x, weight) / static_cast<float>(dim);
    for (std::int64_t i = 0; i < dim; ++i) {
      const auto grad = static_cast<float>(dy[i]);
      const float unit = static_cast<float>(x[i]) * r;
      dx[i] = static_cast<T>(r * (grad * weight[i] - along * unit));
      dweight[i] += static_cast<double>(grad * unit);
    }
  }
}

template <class T>
void rotate(const RotatedHeads<T>& rows) {
  auto [heads, dim, x, cos, sin, direction, y] = rows;
  const std::int64_t half = dim / 2;
  for (std::int64_t head = 0; head < heads; ++head, x += dim, y += dim) {
    for (std::int64_t i = 0; i < half; ++i) {
      const auto a = static_cast<float>(x[i]);
      const auto b = static_cast<float>(x[i + half]);
      const float signed_sin = direction * sin[i];
      y[i] = static_cast<T>(a * cos[i] - b * signed_sin);
      y[i + half] = static_cast<T>(b * cos[i] + a * signed_sin);
    }
  }
}

inline void round_to_bf16(std::int64_t n, float* x) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(c10::BFloat16(x[i]));
}

extern const RowLoopSet kRowLoops;
const RowLoopSet kRowLoops = {
    .fp32 = {.inverse_rms = inverse_rms<float>,
             .norm = norm<float>,
             .norm_grad = norm_grad<float>,
             .rotate = rotate<float>},
    .bf16 = {.inverse_rms = inverse_rms<c10::BFloat16>,
             .norm = norm<c10::BFloat16>,
             .norm_grad = norm_grad<c10::BFloat16>,
             .rotate = rotate<c10::BFloat16>},
    .round_to_bf16 = round_to_bf16,
};

}  // namespace armillary::model::ARMILLARY_ISA
