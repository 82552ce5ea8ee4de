#include "armillary/model/narrow_parameters.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <torch/csrc/autograd/custom_function.h>

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

class WidenedFunction : public torch::autograd::Function<WidenedFunction> {
 public:
  static at::Tensor forward(AutogradContext*, const at::Tensor& parameter) {
    return parameter.to(gradient_dtype(parameter));
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) { return grads; }
};

class TableFunction : public torch::autograd::Function<TableFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table_VE,
                            const at::Tensor& rows) {
    ctx->save_for_backward({rows});
    ctx->saved_data["words"] = table_VE.size(0);
    return at::embedding(table_VE, rows).to(gradient_dtype(table_VE));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {at::embedding_dense_backward(grads[0].contiguous(), saved[0],
                                         ctx->saved_data["words"].toInt(), /*padding_idx=*/-1,
                                         /*scale_grad_by_freq=*/false),
            Variable()};
  }
};

}  // namespace

at::Tensor widened(const at::Tensor& parameter) {
  if (parameter.scalar_type() != at::kBFloat16) return parameter;
  return WidenedFunction::apply(parameter);
}

at::Tensor rows_of_table(const at::Tensor& table_VE, const at::Tensor& rows) {
  if (table_VE.scalar_type() != at::kBFloat16) return at::embedding(table_VE, rows);
  return TableFunction::apply(table_VE, rows);
}

}  // namespace armillary::model
