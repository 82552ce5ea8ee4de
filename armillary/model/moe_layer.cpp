#include "armillary/model/moe_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "armillary/model/decoder_layer.h"
#include "armillary/model/routed_experts.h"
#include "armillary/model/row_ops.h"

namespace armillary::model {

at::Tensor MoeLayer::run(const at::Tensor& h_BLE) const {
  const Norm norm = decoder_norm(options, weights, name + ".ffn_norm");
  at::Tensor shared_BLE;
  const auto beside = [&] {
    if (options.moe().num_shared_experts > 0) shared_BLE = shared(h_BLE, norm);
  };
  const at::Tensor out_BLE = h_BLE + routed(ops->norm(h_BLE, norm), beside);
  return shared_BLE.defined() ? out_BLE + shared_BLE : out_BLE;
}

const at::Tensor& MoeLayer::weight(const char* of) const {
  return weights.at(name + ".moe." + of);
}

at::Tensor MoeLayer::routed(const at::Tensor& n_BLE, const std::function<void()>& beside) const {
  const MoeOptions& moe = options.moe();
  const at::Tensor x_TE = n_BLE.flatten(0, 1);
  RouterWeights router{.gate_XE = weight("router.gate.weight")};
  if (moe.load_balance_coeff > 0) router.bias_X = weight("expert_bias");
  const Routes routes = route(x_TE, router, moe, place);
  const ExpertWeights experts{weight("experts.w1"), weight("experts.w2"), weight("experts.w3")};
  return routed_experts(x_TE, routes, experts,
                        {.num_experts = moe.num_experts,
                         .ranks = place.ranks,
                         .native_bf16 = options.native_bf16(),
                         .beside = beside})
      .view(n_BLE.sizes());
}

at::Tensor MoeLayer::shared(const at::Tensor& h_BLE, const Norm& norm) const {
  const auto gate_and_up = ops->linear_of_norm(
      h_BLE, norm, {weight("shared_experts.w1.weight"), weight("shared_experts.w3.weight")});
  return ops->linear(swiglu(gate_and_up[0], gate_and_up[1]), weight("shared_experts.w2.weight"));
}

}  // namespace armillary::model
