// row_loops.h: the loops of row_ops.h over raw memory, compiled for AVX2 and for what every machine
// has; the program takes its own when it starts.
//
// T is float or c10::BFloat16; all is computed in fp32 and rounded once. Rows are contiguous.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace armillary::train {

struct RowsShape {
  std::int64_t rows;
  std::int64_t dim;
};

/// inverse[row] = 1 / sqrt(mean(x^2) + eps).
template <class T>
void inverse_rms_rows(RowsShape shape, const T* x, double eps, float* inverse);

/// y = x * inverse[row] * weight.
template <class T>
void norm_rows(RowsShape shape, const T* x, const float* inverse, const float* weight, T* y);

/// dx, and dweight += the gradient of norm_rows for its weight.
template <class T>
void norm_grad_rows(RowsShape shape, const T* dy, const T* x, const float* inverse,
                    const float* weight, T* dx, double* dweight);

/// Each row is `heads` heads of `dim`; all turn by the row's angles, cos and sin of dim / 2, or
/// back with `direction` -1.
template <class T>
void rotate_row(RowsShape heads, const T* x, const float* cos, const float* sin, float direction,
                T* y);

/// In place: the nearest values that bf16 has.
void round_to_bf16(std::int64_t n, float* x);

}  // namespace armillary::train
