// experts.cpp: a loop over experts, whose products are written in place: nothing is copied but
// values that change their dtype.
#include "armillary/model/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <utility>

#include "armillary/model/linear.h"
#include "armillary/model/narrow_parameters.h"
#include "armillary/model/row_ops.h"

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// out = a b, of one dtype but for `out`.
void multiply_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool native_bf16) {
  if (out.scalar_type() == a.scalar_type() && a.scalar_type() != at::kBFloat16) {
    at::mm_out(out, a, b);
  } else {
    out.copy_(multiply(a, b, native_bf16));
  }
}

/// The sum as autograd keeps it until backward.
struct SavedGradient : torch::CustomClassHolder {
  explicit SavedGradient(std::shared_ptr<PartialGradient> gradient)
      : gradient(std::move(gradient)) {}
  std::shared_ptr<PartialGradient> gradient;
};

/// Calls `see` with each expert that has rows, their begin and their number.
template <class See>
void for_each_expert(at::IntArrayRef of_expert, std::int64_t experts, const See& see) {
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < experts; ++i) {
    const std::int64_t rows = of_expert[static_cast<std::size_t>(i)];
    if (rows > 0) see(i, begin, rows);
    begin += rows;
  }
}

class GroupedLinear : public torch::autograd::Function<GroupedLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight_XFE,
                            const std::vector<std::int64_t>& of_expert,
                            const GroupedLinearOptions& options) {
    const bool native_bf16 = options.native_bf16;
    const at::Tensor x_RE = x.contiguous();
    ctx->save_for_backward({x_RE, weight_XFE});
    ctx->saved_data["rows"] = of_expert;
    ctx->saved_data["native"] = native_bf16;
    auto gradient = options.gradient ? options.gradient : std::make_shared<PartialGradient>();
    ctx->saved_data["gradient"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedGradient>(std::move(gradient)));
    at::Tensor y_RF = at::empty({x_RE.size(0), weight_XFE.size(1)}, x_RE.options());
    for_each_expert(of_expert, weight_XFE.size(0),
                    [&](std::int64_t i, std::int64_t begin, std::int64_t rows) {
                      const at::Tensor w_FE = weight_XFE.select(0, i).to(x_RE.scalar_type());
                      multiply_into(y_RF.narrow(0, begin, rows), x_RE.narrow(0, begin, rows),
                                    w_FE.t(), native_bf16);
                    });
    return y_RF;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x_RE = saved[0];
    const at::Tensor& weight_XFE = saved[1];
    const std::vector<std::int64_t> of_expert = ctx->saved_data["rows"].toIntVector();
    const bool native_bf16 = ctx->saved_data["native"].toBool();
    const at::Tensor dy_RF = grads[0].contiguous();
    at::Tensor dx_RE = at::empty_like(x_RE);
    PartialGradient& dweight =
        *c10::static_intrusive_pointer_cast<SavedGradient>(ctx->saved_data["gradient"].toCapsule())
             ->gradient;
    if (!dweight.sum.defined()) {
      dweight.sum = at::zeros(weight_XFE.sizes(), x_RE.options().dtype(gradient_dtype(weight_XFE)));
    }
    for_each_expert(of_expert, weight_XFE.size(0),
                    [&](std::int64_t i, std::int64_t begin, std::int64_t rows) {
                      const at::Tensor w_FE = weight_XFE.select(0, i).to(x_RE.scalar_type());
                      const at::Tensor dy = dy_RF.narrow(0, begin, rows);
                      multiply_into(dx_RE.narrow(0, begin, rows), dy, w_FE, native_bf16);
                      at::Tensor sum_FE = dweight.sum.select(0, i);
                      add_product(sum_FE, dy.t(), x_RE.narrow(0, begin, rows), native_bf16);
                    });
    const bool is_last = ++dweight.terms == dweight.calls;
    if (is_last) dweight.terms = 0;
    return {dx_RE, is_last ? std::exchange(dweight.sum, {}) : Variable(), Variable(), Variable()};
  }
};

}  // namespace

at::Tensor grouped_linear(const at::Tensor& x_RE, const at::Tensor& weight_XFE,
                          const std::vector<std::int64_t>& of_expert,
                          const GroupedLinearOptions& options) {
  return GroupedLinear::apply(x_RE, weight_XFE, of_expert, options);
}

PartialGradients partial_gradients(int calls) {
  if (calls == 1) return {};
  PartialGradients gradients;
  for (auto& gradient : gradients) {
    gradient = std::make_shared<PartialGradient>(PartialGradient{.calls = calls});
  }
  return gradients;
}

at::Tensor expert_mlp(const at::Tensor& x_RE, const ExpertWeights& weights,
                      const std::vector<std::int64_t>& of_expert, const ExpertMlpOptions& options) {
  const auto product = [&](const at::Tensor& x, const at::Tensor& weight, std::size_t i) {
    return grouped_linear(x, weight, of_expert,
                          {.native_bf16 = options.native_bf16, .gradient = options.gradients[i]});
  };
  const at::Tensor gate_RF = product(x_RE, weights.w1_XFE, 0);
  return product(swiglu(gate_RF, product(x_RE, weights.w3_XFE, 2)), weights.w2_XEF, 1);
}

}  // namespace armillary::model
