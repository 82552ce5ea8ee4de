// plain_decoder.h: the model of decoder.h written a second time as a reference for tests: a
// whole sequence on one device, in fp64, with ATen's functions and their autograd only.
//
//   L tokens, E dim, H query heads, D head dim
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/polar.h>
#include <ATen/ops/real.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "armillary/model/testing/decoder_replica.h"

namespace armillary::model {

class PlainDecoder {
 public:
  /// Starts from the parameters of `model`, which it copies.
  PlainDecoder(const DecoderOptions& sizes, const DecoderReplica& model) : sizes_(sizes) {
    for (const std::string& name : model.names()) {
      parameters_[name] =
          model.parameter(name).detach().to(at::kDouble).clone().requires_grad_(true);
    }
  }

  /// Parameters by the names that the model gives them; leaves.
  std::map<std::string, at::Tensor>& parameters() { return parameters_; }

  /// Sum over the tokens of -log of the probability of their label; a label of -100 adds nothing.
  /// Token i stands at position i and sees key j where visible_LL[i][j].
  at::Tensor loss(const at::Tensor& tokens_L, const at::Tensor& labels_L,
                  const at::Tensor& visible_LL) const {
    at::Tensor x_LE = at::embedding(of("tok_embeddings"), tokens_L);
    if (learns_positions()) x_LE = x_LE + of("pos_embeddings").narrow(0, 0, tokens_L.size(0));
    for (std::int64_t i = 0; i < sizes_.n_layers(); ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      x_LE = x_LE + attention(layer, norm(layer + "attention_norm", x_LE), visible_LL);
      x_LE = x_LE + feed_forward(layer + "feed_forward.", norm(layer + "ffn_norm", x_LE));
    }
    const at::Tensor logits_LV =
        at::linear(norm("norm", x_LE), of(sizes_.tied() ? "tok_embeddings" : "output"));
    return at::cross_entropy_loss(logits_LV, labels_L, {}, at::Reduction::Sum, -100);
  }

 private:
  const at::Tensor& of(const std::string& module) const {
    return parameters_.at(module + ".weight");
  }

  bool learns_positions() const { return sizes_.max_seq_len() > 0; }

  at::Tensor norm(const std::string& name, const at::Tensor& x_LE) const {
    if (sizes_.norm() == NormKind::Rms) {
      return at::rms_norm(x_LE, {sizes_.dim()}, of(name), sizes_.norm_eps());
    }
    const at::Tensor centred_LE = x_LE - x_LE.mean(1, /*keepdim=*/true);
    const at::Tensor variance_LO = centred_LE.square().mean(1, /*keepdim=*/true);
    return centred_LE / (variance_LO + sizes_.norm_eps()).sqrt() * of(name) +
           parameters_.at(name + ".bias");
  }

  at::Tensor linear(const at::Tensor& x_LE, const std::string& name) const {
    const at::Tensor product = at::linear(x_LE, of(name));
    return parameters_.contains(name + ".bias") ? product + parameters_.at(name + ".bias")
                                                : product;
  }

  at::Tensor feed_forward(const std::string& name, const at::Tensor& x_LE) const {
    const at::Tensor hidden = linear(x_LE, name + "w1");
    const bool swiglu = sizes_.feed_forward() == FeedForwardKind::SwiGlu;
    return linear(swiglu ? at::silu(hidden) * linear(x_LE, name + "w3") : at::gelu(hidden),
                  name + "w2");
  }

  /// Pairs (x_i, x_{i + D/2}) as complex numbers, times e^(i angle); unless positions are learned.
  at::Tensor rotated(const at::Tensor& x_LHD) const {
    if (learns_positions()) return x_LHD;
    const std::int64_t half = x_LHD.size(2) / 2;
    const auto pairs = at::complex(x_LHD.narrow(2, 0, half), x_LHD.narrow(2, half, half));
    const auto periods = at::exp(at::arange(half, at::kDouble) *
                                 (std::log(sizes_.rope_theta()) / static_cast<double>(half)));
    const auto angles = at::arange(x_LHD.size(0), at::kDouble).view({-1, 1, 1}) / periods;
    const auto product = pairs * at::polar(at::ones_like(angles), angles);
    return at::cat({at::real(product), at::imag(product)}, 2);
  }

  at::Tensor attention(const std::string& layer, const at::Tensor& x_LE,
                       const at::Tensor& visible_LL) const {
    const auto heads = [&](const char* matrix) {
      return linear(x_LE, layer + "attention." + matrix).unflatten(1, {-1, head_dim_of(sizes_)});
    };
    // RMSNorm of each head, if there is one.
    const auto normed_heads = [&](const char* matrix, const char* norm) {
      at::Tensor x_LHD = heads(matrix);
      if (!sizes_.qk_norm()) return x_LHD;
      return at::rms_norm(x_LHD, {x_LHD.size(2)}, of(layer + "attention." + norm),
                          sizes_.norm_eps());
    };
    const auto by_head = [&](const at::Tensor& x_LHD) {
      return x_LHD.repeat_interleave(sizes_.n_heads() / x_LHD.size(1), 1)
          .transpose(0, 1)
          .unsqueeze(0);
    };
    const at::Tensor out = at::scaled_dot_product_attention(
        by_head(rotated(normed_heads("wq", "q_norm"))),
        by_head(rotated(normed_heads("wk", "k_norm"))), by_head(heads("wv")), visible_LL);
    return linear(out.squeeze(0).transpose(0, 1).flatten(1), layer + "attention.wo");
  }

  DecoderOptions sizes_;
  std::map<std::string, at::Tensor> parameters_;
};

/// [L, L]: a token sees itself and the tokens before it in its document.
inline at::Tensor visible_within(const at::Tensor& document_of_token_L) {
  return document_of_token_L.unsqueeze(1).eq(document_of_token_L.unsqueeze(0)).tril();
}

}  // namespace armillary::model
