// modulation.cpp: ATen's layer norm row by row: 1 + scale and shift of a row take the place of its
// parameters, and their gradients are its. Many rows of few tokens are computed together, with
// tables that are spread over the tokens.
#include "armillary/model/modulation.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <tuple>

#include "armillary/core/error.h"

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// The dtype in which values of x are computed.
at::ScalarType wide_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// A row of a table and its tokens.
struct RowOfTokens {
  std::int64_t row;
  std::int64_t begin;
  std::int64_t size;

  at::Tensor of_table(const at::Tensor& table_RE) const { return table_RE.select(0, row); }
  at::Tensor of_tokens(const at::Tensor& x_NE) const { return x_NE.narrow(0, begin, size); }
};

/// Calls `see` for each row that has tokens.
template <class See>
void for_each_row_of_tokens(const TokensOfRow& tokens_of_row, const See& see) {
  std::int64_t begin = 0;
  for (std::size_t row = 0; row < tokens_of_row.size(); ++row) {
    const std::int64_t size = tokens_of_row[row];
    if (size > 0) see(RowOfTokens{static_cast<std::int64_t>(row), begin, size});
    begin += size;
  }
}

/// Whether rows are computed together: calls for each would take longer than the work.
bool is_spread(const TokensOfRow& tokens_of_row, std::int64_t tokens) {
  constexpr std::int64_t kLongRow = 128;
  const auto rows = static_cast<std::int64_t>(tokens_of_row.size());
  return rows > 1 && tokens > 0 && tokens < kLongRow * rows;
}

/// The row of each token: [N, E].
at::Tensor spread(const at::Tensor& table_RE, const TokensOfRow& tokens_of_row) {
  return table_RE.repeat_interleave(at::tensor(tokens_of_row, at::kLong), 0);
}

/// Fills a table with sums over the tokens of each row.
void sum_rows(const at::Tensor& values_NE, const TokensOfRow& tokens_of_row,
              const at::Tensor& table_RE) {
  for_each_row_of_tokens(tokens_of_row, [&](const RowOfTokens& row) {
    row.of_table(table_RE).copy_(row.of_tokens(values_NE).sum(0));
  });
}

/// x as a row per token; as many as the rows of the table have.
at::Tensor by_token(const at::Tensor& x_BLE, const TokensOfRow& tokens_of_row) {
  at::Tensor x_NE = x_BLE.reshape({-1, x_BLE.size(-1)});
  ARMILLARY_CHECK(std::accumulate(tokens_of_row.begin(), tokens_of_row.end(), std::int64_t{0}) ==
                  x_NE.size(0));
  return x_NE;
}

/// Zeros for the gradient of a table.
at::Tensor zero_table(const at::Tensor& table_RE) {
  return at::zeros(table_RE.sizes(), table_RE.options());
}

/// State of a norm that backward needs beside the saved tensors.
struct SavedModulation : torch::CustomClassHolder {
  TokensOfRow tokens_of_row;
  double eps = 0;
  NormNumbers numbers;
};

class ModulatedNormFunction : public torch::autograd::Function<ModulatedNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_BLE,
                            const at::Tensor& scale_RE, const at::Tensor& shift_RE,
                            const c10::intrusive_ptr<SavedModulation>& saved) {
    const at::Tensor x = x_BLE.contiguous();
    ctx->save_for_backward({x, scale_RE, shift_RE});
    ctx->saved_data["modulation"] = c10::IValue::make_capsule(saved);
    return modulated_values(x, {scale_RE, shift_RE, saved->tokens_of_row}, saved->eps,
                            saved->numbers);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list tensors = ctx->get_saved_variables();
    const auto saved = c10::static_intrusive_pointer_cast<SavedModulation>(
        ctx->saved_data["modulation"].toCapsule());
    const ModulationGrads result =
        modulation_grads(grads[0].contiguous(), tensors[0],
                         {tensors[1], tensors[2], saved->tokens_of_row}, saved->numbers);
    return {result.dx_BLE, result.dscale_RE, result.dshift_RE, Variable()};
  }
};

class GatedSumFunction : public torch::autograd::Function<GatedSumFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_BLE, const at::Tensor& y_BLE,
                            const at::Tensor& gate_RE,
                            const c10::intrusive_ptr<SavedModulation>& saved) {
    ctx->save_for_backward({y_BLE, gate_RE});
    ctx->saved_data["modulation"] = c10::IValue::make_capsule(saved);
    const at::Tensor x_NE = by_token(x_BLE, saved->tokens_of_row);
    const at::Tensor y_NE = by_token(y_BLE, saved->tokens_of_row);
    if (is_spread(saved->tokens_of_row, x_NE.size(0))) {
      return at::addcmul(x_NE, spread(gate_RE, saved->tokens_of_row), y_NE).view(x_BLE.sizes());
    }
    at::Tensor sum_NE = at::empty(x_NE.sizes(), x_NE.options());
    for_each_row_of_tokens(saved->tokens_of_row, [&](const RowOfTokens& row) {
      at::Tensor part = row.of_tokens(sum_NE);
      at::addcmul_out(part, row.of_tokens(x_NE), row.of_table(gate_RE), row.of_tokens(y_NE));
    });
    return sum_NE.view(x_BLE.sizes());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list tensors = ctx->get_saved_variables();
    const auto saved = c10::static_intrusive_pointer_cast<SavedModulation>(
        ctx->saved_data["modulation"].toCapsule());
    const at::Tensor y_NE = by_token(tensors[0], saved->tokens_of_row);
    const at::Tensor& gate_RE = tensors[1];
    const at::Tensor dsum_NE = by_token(grads[0], saved->tokens_of_row);
    const at::ScalarType wide = wide_dtype(y_NE);
    at::Tensor dgate_RE = zero_table(gate_RE);
    if (is_spread(saved->tokens_of_row, y_NE.size(0))) {
      sum_rows(dsum_NE.to(wide) * y_NE.to(wide), saved->tokens_of_row, dgate_RE);
      const at::Tensor dy_NE = dsum_NE * spread(gate_RE, saved->tokens_of_row);
      return {grads[0], dy_NE.view(tensors[0].sizes()), dgate_RE, Variable()};
    }
    at::Tensor dy_NE = at::empty(y_NE.sizes(), y_NE.options());
    for_each_row_of_tokens(saved->tokens_of_row, [&](const RowOfTokens& row) {
      const at::Tensor dsum = row.of_tokens(dsum_NE);
      at::Tensor dy = row.of_tokens(dy_NE);
      at::mul_out(dy, dsum, row.of_table(gate_RE));
      row.of_table(dgate_RE).copy_((dsum.to(wide) * row.of_tokens(y_NE).to(wide)).sum(0));
    });
    return {grads[0], dy_NE.view(tensors[0].sizes()), dgate_RE, Variable()};
  }
};

}  // namespace

at::Tensor modulated_norm(const at::Tensor& x_BLE, const Modulation& modulation, double eps) {
  auto saved = c10::make_intrusive<SavedModulation>();
  saved->tokens_of_row = modulation.tokens_of_row;
  saved->eps = eps;
  return ModulatedNormFunction::apply(x_BLE, modulation.scale_RE, modulation.shift_RE, saved);
}

at::Tensor modulated_values(const at::Tensor& x_BLE, const Modulation& modulation, double eps,
                            NormNumbers& numbers) {
  const at::Tensor x_NE = by_token(x_BLE, modulation.tokens_of_row);
  const at::ScalarType wide = wide_dtype(x_NE);
  const TokensOfRow& tokens_of_row = modulation.tokens_of_row;
  if (is_spread(tokens_of_row, x_NE.size(0))) {
    at::Tensor n_NE;
    std::tie(n_NE, numbers.mean_N, numbers.inverse_N) =
        at::native_layer_norm(x_NE.to(wide), {x_NE.size(1)}, {}, {}, eps);
    return at::addcmul(spread(modulation.shift_RE.to(wide), tokens_of_row), n_NE,
                       spread(modulation.scale_RE.to(wide) + 1, tokens_of_row))
        .to(x_NE.scalar_type())
        .view(x_BLE.sizes());
  }
  at::Tensor y_NE = at::empty_like(x_NE);
  numbers.mean_N = at::empty({x_NE.size(0), 1}, x_NE.options().dtype(wide));
  numbers.inverse_N = at::empty_like(numbers.mean_N);
  for_each_row_of_tokens(tokens_of_row, [&](const RowOfTokens& row) {
    const auto [y, mean, inverse] = at::native_layer_norm(
        row.of_tokens(x_NE), {x_NE.size(1)}, row.of_table(modulation.scale_RE).to(wide) + 1,
        row.of_table(modulation.shift_RE).to(wide), eps);
    row.of_tokens(y_NE).copy_(y);
    row.of_tokens(numbers.mean_N).copy_(mean);
    row.of_tokens(numbers.inverse_N).copy_(inverse);
  });
  return y_NE.view(x_BLE.sizes());
}

ModulationGrads modulation_grads(const at::Tensor& dy_BLE, const at::Tensor& x_BLE,
                                 const Modulation& modulation, const NormNumbers& numbers) {
  const at::Tensor x_NE = by_token(x_BLE, modulation.tokens_of_row);
  const at::Tensor dy_NE = by_token(dy_BLE, modulation.tokens_of_row);
  const at::ScalarType wide = wide_dtype(x_NE);
  const TokensOfRow& tokens_of_row = modulation.tokens_of_row;
  ModulationGrads grads{{}, zero_table(modulation.scale_RE), zero_table(modulation.shift_RE)};
  if (is_spread(tokens_of_row, x_NE.size(0))) {
    const at::Tensor x = x_NE.to(wide);
    const at::Tensor dy = dy_NE.to(wide);
    sum_rows(dy * (x - numbers.mean_N) * numbers.inverse_N, tokens_of_row, grads.dscale_RE);
    sum_rows(dy, tokens_of_row, grads.dshift_RE);
    const at::Tensor dn = dy * spread(modulation.scale_RE.to(wide) + 1, tokens_of_row);
    grads.dx_BLE =
        std::get<0>(at::native_layer_norm_backward(dn, x, {x.size(1)}, numbers.mean_N,
                                                   numbers.inverse_N, {}, {}, {true, false, false}))
            .to(x_NE.scalar_type())
            .view(x_BLE.sizes());
    return grads;
  }
  const at::Tensor dx_NE = at::empty_like(x_NE);
  grads.dx_BLE = dx_NE.view(x_BLE.sizes());
  for_each_row_of_tokens(tokens_of_row, [&](const RowOfTokens& row) {
    const auto [dx, dscale, dshift] = at::native_layer_norm_backward(
        row.of_tokens(dy_NE), row.of_tokens(x_NE), {x_NE.size(1)}, row.of_tokens(numbers.mean_N),
        row.of_tokens(numbers.inverse_N), row.of_table(modulation.scale_RE).to(wide) + 1,
        row.of_table(modulation.shift_RE).to(wide), {true, true, true});
    row.of_tokens(dx_NE).copy_(dx);
    row.of_table(grads.dscale_RE).copy_(dscale);
    row.of_table(grads.dshift_RE).copy_(dshift);
  });
  return grads;
}

at::Tensor gated_sum(const at::Tensor& x_BLE, const at::Tensor& y_BLE, const at::Tensor& gate_RE,
                     const TokensOfRow& tokens_of_row) {
  auto saved = c10::make_intrusive<SavedModulation>();
  saved->tokens_of_row = tokens_of_row;
  return GatedSumFunction::apply(x_BLE, y_BLE, gate_RE, saved);
}

}  // namespace armillary::model
