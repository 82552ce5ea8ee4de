#include "armillary/train/models/project.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

namespace armillary::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The dtype in which values of `dtype` are multiplied.
at::ScalarType product_dtype(at::ScalarType dtype, bool native_bf16) {
  return dtype == at::kBFloat16 && !native_bf16 ? at::kFloat : dtype;
}

/// The weight as `dtype` has it, in the dtype that is multiplied.
at::Tensor operand(const at::Tensor& weight, at::ScalarType dtype, bool native_bf16) {
  return weight.to(dtype).to(product_dtype(dtype, native_bf16));
}

at::Tensor rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

class ProjectFunction : public torch::autograd::Function<ProjectFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList weights,
                               bool native_bf16, bool gelu) {
    variable_list saved{x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["native_bf16"] = native_bf16;
    ctx->saved_data["gelu"] = gelu;
    const at::ScalarType product = product_dtype(x.scalar_type(), native_bf16);
    const at::Tensor a = rows(gelu ? at::gelu(x) : x).to(product);
    std::vector<std::int64_t> shape = x.sizes().vec();
    variable_list results;
    for (const at::Tensor& weight : weights) {
      shape.back() = weight.size(0);
      results.push_back(at::mm(a, operand(weight, x.scalar_type(), native_bf16).t())
                            .to(x.scalar_type())
                            .view(shape));
    }
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const bool native_bf16 = ctx->saved_data["native_bf16"].toBool();
    const bool gelu = ctx->saved_data["gelu"].toBool();
    const at::Tensor& x = saved[0];
    const at::ScalarType product = product_dtype(x.scalar_type(), native_bf16);
    const at::Tensor a = rows(gelu ? at::gelu(x) : x).to(product);
    variable_list results{{}};
    at::Tensor dx;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      const at::Tensor& weight = saved[i + 1];
      const at::Tensor dy = rows(grads[i]).to(product);
      const at::Tensor w = operand(weight, x.scalar_type(), native_bf16);
      if (dx.defined()) {
        at::addmm_out(dx, dx, dy, w);
      } else {
        dx = at::mm(dy, w);
      }
      results.push_back(at::mm(dy.t(), a).to(weight.scalar_type()));
    }
    dx = dx.view(x.sizes()).to(x.scalar_type());
    results[0] = gelu ? at::gelu_backward(dx, x) : dx;
    results.resize(results.size() + 2);  // the two flags
    return results;
  }
};

}  // namespace

std::vector<at::Tensor> project(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                const ProductOptions& options) {
  return ProjectFunction::apply(x, at::TensorList(weights), options.native_bf16, options.gelu);
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const ProductOptions& options) {
  return project(x, std::vector<at::Tensor>{weight}, options)[0];
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, bool native_bf16) {
  const at::ScalarType product = product_dtype(a.scalar_type(), native_bf16);
  return at::mm(a.to(product), b.to(product));
}

void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool native_bf16) {
  const at::ScalarType product = product_dtype(a.scalar_type(), native_bf16);
  if (sum.scalar_type() == product) {
    at::addmm_out(sum, sum, a.to(product), b.to(product));
  } else {
    sum.add_(at::mm(a.to(product), b.to(product)));
  }
}

}  // namespace armillary::train
