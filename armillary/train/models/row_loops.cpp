#include "armillary/train/models/row_loops.h"

#include <array>
#include <cmath>

#if defined(__x86_64__)
#define ARMILLARY_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define ARMILLARY_CLONES
#endif
/// A function that is not part of its caller is not compiled for the caller's instruction set.
#define ARMILLARY_PART [[gnu::always_inline]] inline

namespace armillary::train {
namespace {

/// Sums of many lanes: without permission to reorder a sum no compiler makes a vector of it.
constexpr std::int64_t kLanes = 16;
using Lanes = std::array<float, kLanes>;

ARMILLARY_PART float sum_of(const Lanes& lanes) {
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

template <class T>
ARMILLARY_PART void inverse_rms_part(RowsShape shape, const T* x, double eps, float* inverse) {
  for (std::int64_t row = 0; row < shape.rows; ++row, x += shape.dim) {
    Lanes squares{};
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
ARMILLARY_PART void norm_part(RowsShape shape, const T* x, const float* inverse,
                              const float* weight, T* y) {
  for (std::int64_t row = 0; row < shape.rows; ++row, x += shape.dim, y += shape.dim) {
    const float r = inverse[row];
    for (std::int64_t i = 0; i < shape.dim; ++i) {
      y[i] = static_cast<T>(static_cast<float>(x[i]) * r * weight[i]);
    }
  }
}

template <class T>
ARMILLARY_PART float grad_along(std::int64_t dim, const T* dy, const T* x, const float* weight) {
  Lanes along{};
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

template <class T>
ARMILLARY_PART void norm_grad_part(RowsShape shape, const T* dy, const T* x, const float* inverse,
                                   const float* weight, T* dx, double* dweight) {
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
ARMILLARY_PART void rotate_part(RowsShape heads, const T* x, const float* cos, const float* sin,
                                float direction, T* y) {
  const std::int64_t half = heads.dim / 2;
  for (std::int64_t head = 0; head < heads.rows; ++head, x += heads.dim, y += heads.dim) {
    for (std::int64_t i = 0; i < half; ++i) {
      const auto a = static_cast<float>(x[i]);
      const auto b = static_cast<float>(x[i + half]);
      const float turn = direction * sin[i];
      y[i] = static_cast<T>(a * cos[i] - b * turn);
      y[i + half] = static_cast<T>(b * cos[i] + a * turn);
    }
  }
}

}  // namespace

#define ARMILLARY_LOOPS(T)                                                                  \
  template <>                                                                               \
  ARMILLARY_CLONES void inverse_rms_rows<T>(RowsShape shape, const T* x, double eps,        \
                                            float* inverse) {                               \
    inverse_rms_part(shape, x, eps, inverse);                                               \
  }                                                                                         \
  template <>                                                                               \
  ARMILLARY_CLONES void norm_rows<T>(RowsShape shape, const T* x, const float* inverse,     \
                                     const float* weight, T* y) {                           \
    norm_part(shape, x, inverse, weight, y);                                                \
  }                                                                                         \
  template <>                                                                               \
  ARMILLARY_CLONES void norm_grad_rows<T>(RowsShape shape, const T* dy, const T* x,         \
                                          const float* inverse, const float* weight, T* dx, \
                                          double* dweight) {                                \
    norm_grad_part(shape, dy, x, inverse, weight, dx, dweight);                             \
  }                                                                                         \
  template <>                                                                               \
  ARMILLARY_CLONES void rotate_row<T>(RowsShape heads, const T* x, const float* cos,        \
                                      const float* sin, float direction, T* y) {            \
    rotate_part(heads, x, cos, sin, direction, y);                                          \
  }

ARMILLARY_LOOPS(float)
ARMILLARY_LOOPS(c10::BFloat16)

ARMILLARY_CLONES void round_to_bf16(std::int64_t n, float* x) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(c10::BFloat16(x[i]));
}

}  // namespace armillary::train
