#include "armillary/train/models/gpt.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <string>

#include "armillary/train/data.h"

namespace armillary::train {
namespace {

/// x times the transposed matrix, in x's dtype.
at::Tensor project(const at::Tensor& x, const at::Tensor& weight, bool native_bf16) {
  if (x.scalar_type() == at::kFloat) return at::linear(x, weight);
  const at::Tensor rounded = weight.to(x.scalar_type());
  if (native_bf16) return at::linear(x, rounded);
  return at::linear(x.to(at::kFloat), rounded.to(at::kFloat)).to(x.scalar_type());
}

Rotation rotation_at(const at::Tensor& positions_L, std::int64_t head_dim, double theta) {
  const auto exponents = at::arange(0, head_dim, 2, at::kDouble) / static_cast<double>(head_dim);
  const auto frequencies = at::pow(theta, -exponents);
  // fp64 until here: at position 10^6 an fp32 angle would be wrong by a sixteenth of a radian.
  const auto angles =
      at::outer(positions_L.to(at::kDouble), frequencies).view({1, -1, 1, head_dim / 2});
  return {angles.cos().to(at::kFloat), angles.sin().to(at::kFloat)};
}

/// Turns the pairs (x_i, x_{i + D/2}) by their angles.
at::Tensor rotate(const at::Tensor& x_BLHD, const Rotation& rotation) {
  const auto halves = x_BLHD.to(at::kFloat).chunk(2, -1);
  return at::cat({halves[0] * rotation.cos - halves[1] * rotation.sin,
                  halves[1] * rotation.cos + halves[0] * rotation.sin},
                 -1)
      .to(x_BLHD.scalar_type());
}

}  // namespace

GptOptions::GptOptions(const Recipe::Model& model) {
  vocab_size(kVocabSize).dim(model.dim).n_layers(model.n_layers);
  n_heads(model.n_heads).n_kv_heads(model.kv_heads()).hidden_dim(model.ffn_dim());
  norm_eps(model.norm_eps).rope_theta(model.rope_theta).tied(model.enable_weight_tying);
}

RmsNormImpl::RmsNormImpl(const GptOptions& options) : eps_(options.norm_eps()) {
  weight_ = register_parameter("weight", at::ones({options.dim()}));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x_BLE) {
  return at::rms_norm(x_BLE.to(at::kFloat), weight_.sizes(), weight_, eps_).to(x_BLE.scalar_type());
}

ProjectionImpl::ProjectionImpl(std::int64_t in, std::int64_t out, bool native_bf16)
    : native_bf16_(native_bf16), weight_(register_parameter("weight", at::zeros({out, in}))) {}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  return project(x, weight_, native_bf16_);
}

AttentionImpl::AttentionImpl(const GptOptions& options)
    : head_dim_(options.dim() / options.n_heads()),
      wq_(options.dim(), options.dim(), options.native_bf16()),
      wk_(options.dim(), options.n_kv_heads() * head_dim_, options.native_bf16()),
      wv_(options.dim(), options.n_kv_heads() * head_dim_, options.native_bf16()),
      wo_(options.dim(), options.dim(), options.native_bf16()) {
  register_module("wq", wq_);
  register_module("wk", wk_);
  register_module("wv", wv_);
  register_module("wo", wo_);
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BLE, const Rotation& rotation,
                                  const Attend& attend) {
  const auto heads = [&](Projection& w) {
    return w->forward(x_BLE).view(
        {x_BLE.size(0), x_BLE.size(1), w->out_dim() / head_dim_, head_dim_});
  };
  const auto q_BLHD = rotate(heads(wq_), rotation);
  const auto k_BLGD = rotate(heads(wk_), rotation);
  const auto v_BLGD = heads(wv_);
  return wo_->forward(attend(q_BLHD, k_BLGD, v_BLGD).flatten(2));
}

FeedForwardImpl::FeedForwardImpl(const GptOptions& options)
    : w1_(options.dim(), options.hidden_dim(), options.native_bf16()),
      w2_(options.hidden_dim(), options.dim(), options.native_bf16()) {
  register_module("w1", w1_);
  register_module("w2", w2_);
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x_BLE) {
  return w2_->forward(at::gelu(w1_->forward(x_BLE)));
}

BlockImpl::BlockImpl(const GptOptions& options)
    : attention_norm_(register_module("attention_norm", RmsNorm(options))),
      ffn_norm_(register_module("ffn_norm", RmsNorm(options))),
      attention_(register_module("attention", Attention(options))),
      feed_forward_(register_module("feed_forward", FeedForward(options))) {}

at::Tensor BlockImpl::forward(const at::Tensor& x_BLE, const Rotation& rotation,
                              const Attend& attend) {
  const auto h_BLE = x_BLE + attention_->forward(attention_norm_->forward(x_BLE), rotation, attend);
  return h_BLE + feed_forward_->forward(ffn_norm_->forward(h_BLE));
}

GptImpl::GptImpl(const GptOptions& options)
    : options_(options),
      tok_embeddings_(register_module("tok_embeddings",
                                      torch::nn::Embedding(options.vocab_size(), options.dim()))),
      norm_(nullptr) {
  const auto layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < options.n_layers(); ++i) {
    layers_.emplace_back(options);
    layers->push_back(layers_.back());
  }
  norm_ = register_module("norm", RmsNorm(options));
  if (!options.tied()) {
    output_ = register_module(
        "output", Projection(options.dim(), options.vocab_size(), options.native_bf16()));
  }
}

void GptImpl::initialize(std::int64_t seed) {
  const at::NoGradGuard no_grad;
  // A generator of our own: the global one is shared by all ranks of the process.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.n_layers()));
  for (auto& parameter : named_parameters()) {
    const std::string& name = parameter.key();
    if (parameter.value().dim() == 1) continue;  // norms are 1
    double deviation = 0.02;
    if (name.ends_with("wo.weight") || name.ends_with("w2.weight")) deviation = residual;
    // The first norm divides by it, and so does the gradient: 0.02 would make that 50 times larger.
    if (name == "tok_embeddings.weight" && !options_.tied()) deviation = 1;
    parameter.value().normal_(0, deviation, generator);
  }
}

at::Tensor GptImpl::forward(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                            const Attend& attend) {
  const Rotation rotation =
      rotation_at(positions_L, options_.dim() / options_.n_heads(), options_.rope_theta());
  at::Tensor x_BLE = tok_embeddings_->forward(tokens_BL).to(options_.dtype());
  for (Block& layer : layers_) x_BLE = layer->forward(x_BLE, rotation, attend);
  x_BLE = norm_->forward(x_BLE);
  return options_.tied() ? project(x_BLE, tok_embeddings_->weight, options_.native_bf16())
                         : output_->forward(x_BLE);
}

}  // namespace armillary::train
