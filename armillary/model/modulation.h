// modulation.h: a norm whose scale and shift, and a residual whose gate, are rows of tables: those
// of the condition of a token, such as the time of its picture (DiT, arXiv:2212.09748,
// section 3.2).
//
//   layer_norm(x) (1 + scale) + shift          x + gate y
//
// Tokens that have a row lie side by side, so a long sequence with one condition costs as much as
// with parameters. Dtypes: fp32, bf16 or fp64, tables as x; computed in fp32 (fp64) and rounded
// once. Gradients of tables are sums over the tokens that are here.
//
//   B batch, L tokens, N = B L, E dim, R rows
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace armillary::model {

/// Row i of a table is that of the next `tokens_of_row[i]` tokens, perhaps of none. Their sum is N.
using TokensOfRow = std::vector<std::int64_t>;

struct Modulation {
  at::Tensor scale_RE;
  at::Tensor shift_RE;
  TokensOfRow tokens_of_row;
};

/// Mean and 1 / deviation of each token, fp32 (fp64).
struct NormNumbers {
  at::Tensor mean_N;
  at::Tensor inverse_N;
};

/// The norm, differentiable. Backward keeps x, the tables and the numbers.
at::Tensor modulated_norm(const at::Tensor& x_BLE, const Modulation& modulation, double eps);

/// Its parts without a graph, for autograd functions that keep x alone. x contiguous. `numbers` is
/// written.
at::Tensor modulated_values(const at::Tensor& x_BLE, const Modulation& modulation, double eps,
                            NormNumbers& numbers);
struct ModulationGrads {
  at::Tensor dx_BLE;
  at::Tensor dscale_RE;
  at::Tensor dshift_RE;
};
ModulationGrads modulation_grads(const at::Tensor& dy_BLE, const at::Tensor& x_BLE,
                                 const Modulation& modulation, const NormNumbers& numbers);

/// x + gate y, differentiable. Backward keeps y and the table.
at::Tensor gated_sum(const at::Tensor& x_BLE, const at::Tensor& y_BLE, const at::Tensor& gate_RE,
                     const TokensOfRow& tokens_of_row);

}  // namespace armillary::model
