// decoder_layer.cpp: Q, K and V come from one call of linear_of_norm(), which makes K, V and Q in
// this order; K and V are handed to attention as soon as they are made.
#include "armillary/model/decoder_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "armillary/model/decoder_parameters.h"
#include "armillary/model/row_ops.h"
#include "armillary/model/tensor_parallel_ops.h"

namespace armillary::model {

std::shared_ptr<const LayerOps> layer_ops(const DecoderOptions& options,
                                          const TokenShards& shards) {
  const auto on = [&](const TokenShards& tokens) {
    const LinearOptions linear{.native_bf16 = options.native_bf16(),
                               .shards = tokens,
                               .keep_gathered = options.keep_gathered_inputs()};
    return options.fused() ? fused_cpu_ops(linear) : separate_ops(linear);
  };
  return shards ? tensor_parallel_ops(on(shards), on({}), shards) : on({});
}

Norm decoder_norm(const DecoderOptions& options, const Weights& weights, const std::string& name) {
  Norm norm{.weight_E = weights.at(name + ".weight"), .eps = options.norm_eps()};
  if (options.norm() == NormKind::Layer) norm.bias_E = weights.at(name + ".bias");
  return norm;
}

at::Tensor DecoderLayer::run(const at::Tensor& x_BLE, const Attend& attend) const {
  const at::Tensor h_BLE = x_BLE + attention(x_BLE, norm("attention_norm"), attend);
  return has_experts(options) ? h_BLE : h_BLE + feed_forward(h_BLE, norm("ffn_norm"));
}

const at::Tensor& DecoderLayer::weight(const char* of) const {
  return weights.at(name + "." + of + ".weight");
}

std::vector<at::Tensor> DecoderLayer::biases(bool there, const std::vector<const char*>& of) const {
  std::vector<at::Tensor> all;
  if (!there) return all;
  for (const char* one : of) all.push_back(weights.at(name + "." + one + ".bias"));
  return all;
}

std::vector<at::Tensor> DecoderLayer::head_norms() const {
  if (!options.qk_norm()) return {};
  return {weight("attention.q_norm"), weight("attention.k_norm"), {}};
}

at::Tensor DecoderLayer::plus_bias(const at::Tensor& product_BLE, const char* of) const {
  if (!options.bias()) return product_BLE;
  return product_BLE + weights.at(name + "." + of + ".bias").to(product_BLE.scalar_type());
}

Norm DecoderLayer::norm(const char* of) const {
  return decoder_norm(options, weights, name + "." + of);
}

at::Tensor DecoderLayer::attention(const at::Tensor& x_BLE, const Norm& norm,
                                   const Attend& attend) const {
  // Indices of the three products.
  constexpr std::size_t kQ = 0;
  constexpr std::size_t kK = 1;
  constexpr std::size_t kV = 2;
  const std::int64_t head_dim = head_dim_of(options);
  const auto heads_of = [&](const char* of) { return weight(of).size(0) / head_dim; };
  const Attend::InProgress call =
      attend.begin({x_BLE.size(0), tokens, heads_of("attention.wq"), heads_of("attention.wk"),
                    head_dim, x_BLE.scalar_type()});

  // Splits a product into heads, rotates q and k if positions are rotary, and hands k and v to
  // attention at once.
  const bool is_rotary = angles.cos_LC.defined();
  const auto rotate_and_feed = [&](std::size_t i, const at::Tensor& product) {
    const std::int64_t heads = product.size(2) / head_dim;
    const at::Tensor x = product.view({product.size(0), product.size(1), heads, head_dim});
    at::Tensor value = i == kV || !is_rotary ? x : rotated(x, angles.cos_LC, angles.sin_LC);
    if (i == kK) call.take_k(value);
    if (i == kV) call.take_v(value);
    return value;
  };
  const auto rotate_grad = [angles = angles](std::size_t i, const at::Tensor& dvalue) {
    if (i == kV || !angles.cos_LC.defined()) return dvalue;
    return rotated_back(dvalue, angles.cos_LC, angles.sin_LC);
  };
  const EachProduct each{.order = {kK, kV, kQ},
                         .biases = biases(options.bias() || options.qkv_bias(),
                                          {"attention.wq", "attention.wk", "attention.wv"}),
                         .head_norms = head_norms(),
                         .head_norm_eps = options.norm_eps(),
                         .transform = rotate_and_feed,
                         .transform_grad = rotate_grad};
  const auto qkv = ops->linear_of_norm(
      x_BLE, norm, {weight("attention.wq"), weight("attention.wk"), weight("attention.wv")}, each);
  const at::Tensor out_BLHD = call.finish(qkv[kQ], qkv[kK], qkv[kV]);
  return plus_bias(ops->linear(out_BLHD.flatten(2), weight("attention.wo")), "attention.wo");
}

at::Tensor DecoderLayer::feed_forward(const at::Tensor& x_BLE, const Norm& norm) const {
  const at::Tensor& w1 = weight("feed_forward.w1");
  const at::Tensor& w2 = weight("feed_forward.w2");
  // SwiGLU: gate and up are products of the same norm(x).
  if (options.feed_forward() == FeedForwardKind::SwiGlu) {
    const auto gate_and_up =
        ops->linear_of_norm(x_BLE, norm, {w1, weight("feed_forward.w3")},
                            biases(options.bias(), {"feed_forward.w1", "feed_forward.w3"}));
    return plus_bias(ops->linear(swiglu(gate_and_up[0], gate_and_up[1]), w2), "feed_forward.w2");
  }
  // GELU.
  const auto wide =
      ops->linear_of_norm(x_BLE, norm, {w1}, biases(options.bias(), {"feed_forward.w1"}));
  return plus_bias(ops->linear_of_gelu(wide[0], w2), "feed_forward.w2");
}

}  // namespace armillary::model
