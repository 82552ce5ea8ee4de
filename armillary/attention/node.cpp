#include "armillary/attention/node.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace armillary::attention {
namespace {

using torch::autograd::AutogradContext;

/// A function as a value of the graph.
struct BackwardHolder : torch::CustomClassHolder {
  explicit BackwardHolder(NodeBackward run) : run(std::move(run)) {}
  NodeBackward run;
};

class AttentionNode : public torch::autograd::Function<AttentionNode> {
 public:
  static Tensors forward(AutogradContext* ctx, at::TensorList /*tensors*/,
                         const std::optional<at::Tensor>& /*sinks_H*/,
                         const std::function<NodeOutcome()>& forward) {
    NodeOutcome outcome = forward();
    const auto rest = outcome.results.begin() + static_cast<std::ptrdiff_t>(outcome.differentiable);
    ctx->mark_non_differentiable({rest, outcome.results.end()});
    ctx->save_for_backward(std::move(outcome.saved));
    ctx->saved_data["backward"] =
        c10::IValue::make_capsule(c10::make_intrusive<BackwardHolder>(std::move(outcome.backward)));
    return std::move(outcome.results);
  }

  static Tensors backward(AutogradContext* ctx, const Tensors& grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<BackwardHolder>(ctx->saved_data["backward"].toCapsule());
    Tensors gradients = holder->run([ctx] { return ctx->get_saved_variables(); }, grads.front());
    gradients.emplace_back();  // For the argument `forward`.
    return gradients;
  }
};

}  // namespace

Tensors in_graph(at::TensorList tensors, const std::optional<at::Tensor>& sinks_H,
                 const std::function<NodeOutcome()>& forward) {
  return AttentionNode::apply(tensors, sinks_H, forward);
}

}  // namespace armillary::attention
