// recompute.cpp: an autograd function whose forward leaves no graph and whose backward makes one,
// differentiates it and drops it.
#include "armillary/model/recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The second function, as autograd keeps it until backward.
struct Again : torch::CustomClassHolder {
  Layer layer;
};

class RecomputedFunction : public torch::autograd::Function<RecomputedFunction> {
 public:
  // Autograd runs forward functions without a graph, so `first` leaves none. Parameters are inputs
  // only so that their gradients reach them.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList parameters,
                            const Layer& first, const c10::intrusive_ptr<Again>& again) {
    variable_list saved{x};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["again"] = c10::IValue::make_capsule(again);
    return first(x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto again =
        c10::static_intrusive_pointer_cast<Again>(ctx->saved_data["again"].toCapsule());
    variable_list inputs = ctx->get_saved_variables();
    // x becomes a leaf, so the new graph ends there.
    inputs[0] = inputs[0].detach().requires_grad_(true);
    variable_list outputs;
    {
      const at::AutoGradMode with_graph(true);
      outputs = {again->layer(inputs[0])};
    }
    // Gradients of x and of the parameters; a parameter that `again` did not use has none.
    variable_list results =
        torch::autograd::grad(outputs, inputs, grads, /*retain_graph=*/std::nullopt,
                              /*create_graph=*/false, /*allow_unused=*/true);
    results.resize(results.size() + 2);  // `first` and `again`
    return results;
  }
};

}  // namespace

Section section_of(RecomputeOptions& recompute) {
  return {"activation_checkpoint",
          {{"mode", &recompute.mode,
            "what backward makes again of a layer: nothing, all, or all but attention's output",
            cost::recompute_names()}}};
}

cost::Recompute parse_recompute(const std::string& name) {
  const std::vector<std::string>& names = cost::recompute_names();
  const auto entry = std::find(names.begin(), names.end(), name);
  if (entry == names.end()) {
    const std::string nearest = nearest_name(name, names);
    fail<InvalidArgument>("recompute: policy {} is not known; {} is required{}", quote(name),
                          list_names(names), nearest.empty() ? "" : "; nearest: " + nearest);
  }
  return static_cast<cost::Recompute>(entry - names.begin());
}

at::Tensor recomputed(const at::Tensor& x, const std::vector<at::Tensor>& parameters,
                      const Layer& first, const Layer& again) {
  auto holder = c10::make_intrusive<Again>();
  holder->layer = again;
  return RecomputedFunction::apply(x, at::TensorList(parameters), first, holder);
}

}  // namespace armillary::model
