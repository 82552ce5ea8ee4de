// decoder.cpp: modules of the decoder, its initialization and its loss.
//
// The rotary angles are computed once for a pass and shared by all layers. `run` applies the
// recomputation policy to a layer: the layer itself only sees the attention function that it is
// given. Q, K and V come from one call of linear_of_norm(), which makes K, V and Q in this order; K
// and V are handed to attention as soon as they are made.
#include "armillary/train/models/decoder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <memory>
#include <string>

#include "armillary/core/error.h"
#include "armillary/kernel/vector_math.h"
#include "armillary/train/data.h"
#include "armillary/train/models/cross_entropy.h"
#include "armillary/train/models/row_ops.h"

namespace armillary::train {
namespace {

/// The implementation of norm and linear that the options ask for.
std::shared_ptr<const LayerOps> ops_of(const DecoderOptions& options) {
  return options.fused() ? fused_cpu_ops(options.native_bf16())
                         : separate_ops(options.native_bf16());
}

/// Angles position * theta^(-2 i / head_dim) for pair i (RoFormer, arXiv:2104.09864).
RotaryAngles rotary_angles_at(const at::Tensor& positions_L, std::int64_t head_dim, double theta) {
  const auto exponents = at::arange(0, head_dim, 2, at::kDouble) / static_cast<double>(head_dim);
  const auto frequencies = at::pow(theta, -exponents);
  // fp64 until here: at position 10^6 an fp32 angle would be wrong by a sixteenth of a radian.
  const auto angles = at::outer(positions_L.to(at::kDouble), frequencies);
  return {angles.cos().to(at::kFloat), angles.sin().to(at::kFloat)};
}

/// The output of a layer under a recomputation policy.
at::Tensor run(DecoderLayer& layer, Recompute policy, const at::Tensor& x_BLE,
               const RotaryAngles& angles, const Attends& attends) {
  if (policy == Recompute::None) return layer->forward(x_BLE, angles, attends.attend);
  // The layer as a function of x. It owns all that it uses: backward calls it when the caller's
  // attends and angles may be gone.
  const auto with = [layer, angles](Attend attend) {
    return [layer, angles, attend = std::move(attend)](const at::Tensor& x) mutable {
      return layer->forward(x, angles, attend);
    };
  };
  if (policy == Recompute::Full) {
    const Layer again = with(attends.attend);
    return recomputed(x_BLE, layer->parameters(), again, again);
  }

  // The policy AttentionOutput. The first run of the layer leaves the replay of its attention in
  // `replay`; the second run calls it instead of attention.
  ARMILLARY_CHECK(attends.keep);
  const auto replay = std::make_shared<Attend>();
  const Attend first = [keep = attends.keep, replay](const QkvShape& shape) {
    const AttendAndKeep::InProgress call = keep.begin(shape);
    const auto finish = [finish = call.finish, replay](const at::Tensor& q_BLHD,
                                                       const at::Tensor& k_BLGD,
                                                       const at::Tensor& v_BLGD) {
      KeptOutput kept = finish(q_BLHD, k_BLGD, v_BLGD);
      *replay = std::move(kept.replay);
      return kept.out_BLHD;
    };
    return Attend::InProgress{call.take_k, call.take_v, finish};
  };
  // Begins the replay that the first run left.
  const Attend again = [replay](const QkvShape& shape) { return replay->begin(shape); };
  return recomputed(x_BLE, layer->parameters(), with(first), with(again));
}

}  // namespace

RmsNormImpl::RmsNormImpl(const DecoderOptions& options)
    : ops_(ops_of(options)), eps_(options.norm_eps()) {
  weight_ = register_parameter("weight", at::ones({options.dim()}));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x_BLE) {
  return ops_->norm(x_BLE, norm());
}

AttentionImpl::AttentionImpl(const DecoderOptions& options)
    : heads_(options.n_heads()),
      kv_heads_(options.n_kv_heads()),
      head_dim_(options.dim() / options.n_heads()),
      ops_(ops_of(options)),
      wq_(register_module("wq", Projection(options.dim(), options.dim()))),
      wk_(register_module("wk", Projection(options.dim(), options.n_kv_heads() * head_dim_))),
      wv_(register_module("wv", Projection(options.dim(), options.n_kv_heads() * head_dim_))),
      wo_(register_module("wo", Projection(options.dim(), options.dim()))) {}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BLE, const RmsNorm& norm,
                                  const RotaryAngles& angles, const Attend& attend) {
  // Indices of the three products.
  constexpr std::size_t kQ = 0;
  constexpr std::size_t kK = 1;
  constexpr std::size_t kV = 2;
  const Attend::InProgress call = attend.begin(
      {x_BLE.size(0), x_BLE.size(1), heads_, kv_heads_, head_dim_, x_BLE.scalar_type()});

  // Splits a product into heads, rotates q and k, and hands k and v to attention at once.
  const auto rotate_and_feed = [&](std::size_t i, const at::Tensor& product) {
    const std::int64_t heads = product.size(2) / head_dim_;
    const at::Tensor x = product.view({product.size(0), product.size(1), heads, head_dim_});
    const at::Tensor value = i == kV ? x : rotated(x, angles.cos_LC, angles.sin_LC);
    if (i == kK) call.take_k(value);
    if (i == kV) call.take_v(value);
    return value;
  };
  const auto rotate_grad = [angles](std::size_t i, const at::Tensor& dvalue) {
    return i == kV ? dvalue : rotated_back(dvalue, angles.cos_LC, angles.sin_LC);
  };
  const EachProduct each{
      .order = {kK, kV, kQ}, .transform = rotate_and_feed, .transform_grad = rotate_grad};
  const auto qkv = ops_->linear_of_norm(x_BLE, norm->norm(),
                                        {wq_->weight(), wk_->weight(), wv_->weight()}, each);
  const at::Tensor out_BLHD = call.finish(qkv[kQ], qkv[kK], qkv[kV]);
  return ops_->linear(out_BLHD.flatten(2), wo_->weight());
}

FeedForwardImpl::FeedForwardImpl(const DecoderOptions& options)
    : ops_(ops_of(options)),
      w1_(register_module("w1", Projection(options.dim(), options.hidden_dim()))),
      w2_(register_module("w2", Projection(options.hidden_dim(), options.dim()))) {
  if (options.feed_forward() == FeedForwardKind::SwiGlu) {
    w3_ = register_module("w3", Projection(options.dim(), options.hidden_dim()));
  }
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x_BLE, const RmsNorm& norm) {
  // SwiGLU: gate and up are products of the same norm(x).
  if (w3_) {
    const auto gate_and_up =
        ops_->linear_of_norm(x_BLE, norm->norm(), {w1_->weight(), w3_->weight()});
    return ops_->linear(swiglu(gate_and_up[0], gate_and_up[1]), w2_->weight());
  }
  // GELU.
  const at::Tensor hidden = ops_->linear_of_norm(x_BLE, norm->norm(), {w1_->weight()})[0];
  return ops_->linear_of_gelu(hidden, w2_->weight());
}

DecoderLayerImpl::DecoderLayerImpl(const DecoderOptions& options)
    : attention_norm_(register_module("attention_norm", RmsNorm(options))),
      ffn_norm_(register_module("ffn_norm", RmsNorm(options))),
      attention_(register_module("attention", Attention(options))),
      feed_forward_(register_module("feed_forward", FeedForward(options))) {}

at::Tensor DecoderLayerImpl::forward(const at::Tensor& x_BLE, const RotaryAngles& angles,
                                     const Attend& attend) {
  const auto h_BLE = x_BLE + attention_->forward(x_BLE, attention_norm_, angles, attend);
  return h_BLE + feed_forward_->forward(h_BLE, ffn_norm_);
}

DecoderImpl::DecoderImpl(const DecoderOptions& options)
    : options_(options),
      tok_embeddings_(register_module("tok_embeddings",
                                      torch::nn::Embedding(options.vocab_size(), options.dim()))),
      norm_(nullptr) {
  kernel::choose_vector_math();  // rotary_angles_at calls ATen's cos and sin
  const auto layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < options.n_layers(); ++i) {
    layers_.emplace_back(options);
    layers->push_back(layers_.back());
  }
  norm_ = register_module("norm", RmsNorm(options));
  if (!options.tied()) {
    output_ = register_module("output", Projection(options.dim(), options.vocab_size()));
  }
}

void DecoderImpl::initialize(std::int64_t seed) {
  const at::NoGradGuard no_grad;
  // Not the global generator: all ranks of the process share it.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.n_layers()));
  for (auto& parameter : named_parameters()) {
    const std::string& name = parameter.key();
    if (parameter.value().dim() == 1) continue;  // a norm, which is 1 already
    double deviation = 0.02;
    if (name.ends_with("wo.weight") || name.ends_with("w2.weight")) deviation = residual;
    // The first norm divides by the size of the embedding, and so does its gradient, which a
    // deviation of 0.02 would make 50 times larger.
    if (name == "tok_embeddings.weight" && !options_.tied()) deviation = 1;
    parameter.value().normal_(0, deviation, generator);
  }
}

at::Tensor DecoderImpl::features(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                                 const Attends& attends) {
  const RotaryAngles angles =
      rotary_angles_at(positions_L, options_.dim() / options_.n_heads(), options_.rope_theta());
  at::Tensor x_BLE = tok_embeddings_->forward(tokens_BL).to(options_.dtype());
  for (DecoderLayer& layer : layers_)
    x_BLE = run(layer, options_.recompute(), x_BLE, angles, attends);
  return norm_->forward(x_BLE);
}

const at::Tensor& DecoderImpl::output_weight() const {
  return options_.tied() ? tok_embeddings_->weight : output_->weight();
}

at::Tensor DecoderImpl::forward(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                                const Attends& attends) {
  return ops_of(options_)->linear(features(tokens_BL, positions_L, attends), output_weight());
}

at::Tensor DecoderImpl::loss(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                             const at::Tensor& labels_BL, const Attends& attends,
                             std::int64_t chunk_tokens) {
  return cross_entropy(features(tokens_BL, positions_L, attends).flatten(0, 1), output_weight(),
                       labels_BL.flatten(),
                       {.chunk_tokens = chunk_tokens,
                        .ignored_label = kIgnoredLabel,
                        .native_bf16 = options_.native_bf16()});
}

}  // namespace armillary::train
