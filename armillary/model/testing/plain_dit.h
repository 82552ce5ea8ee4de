// plain_dit.h: the model of dit.h written a second time as a reference for tests: one whole picture
// on one device, in fp64, with ATen's functions and their autograd only.
//
//   L tokens, E dim, C values of a patch
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "armillary/model/dit_options.h"
#include "armillary/model/testing/model_replica.h"

namespace armillary::model {

/// A picture with its noise, time, class and words for cross-attention, of rectified flow.
struct PlainPicture {
  at::Tensor patches_LC;
  at::Tensor noise_LC;
  double time;
  std::int64_t label;
  std::vector<std::int64_t> words = {};
};

class PlainDit {
 public:
  /// Starts from the parameters of `model`, which it copies.
  PlainDit(const DitOptions& options, const ModelReplica& model) : options_(options) {
    for (const std::string& name : model.names()) {
      parameters_[name] =
          model.parameter(name).detach().to(at::kDouble).clone().requires_grad_(true);
    }
  }

  /// Parameters by the names that the model gives them; leaves.
  std::map<std::string, at::Tensor>& parameters() { return parameters_; }

  /// Sum over the tokens of the mean squared error of noise - picture.
  at::Tensor loss(const PlainPicture& picture) const {
    const at::Tensor x_LC =
        picture.patches_LC * (1 - picture.time) + picture.noise_LC * picture.time;
    const at::Tensor target_LC = picture.noise_LC - picture.patches_LC;
    const at::Tensor error_LC = prediction(x_LC, picture) - target_LC;
    return error_LC.square().mean(1).sum();
  }

  at::Tensor prediction(const at::Tensor& x_LC, const PlainPicture& picture) const {
    at::Tensor x_LE = linear(x_LC, "patch_embedding") + positions();
    const at::Tensor c_E = condition(picture.time, picture.label);
    const bool is_zero = options_.modulation == ModulationKind::Zero;
    for (std::int64_t i = 0; i < options_.layers.n_layers(); ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      const auto m = is_zero ? linear(at::silu(c_E), layer + "modulation").chunk(6, 0)
                             : (linear(at::silu(c_E), "shared_modulation").view({6, -1}) +
                                of(layer + "scale_shift_table"))
                                   .unbind(0);
      const at::Tensor y_LE = norm(x_LE, m[0], m[1]);
      x_LE = x_LE + m[2] * attention(layer + "attention.", y_LE, y_LE);
      if (options_.has_cross_attention()) {
        x_LE = x_LE + attention(layer + "cross_attention.", x_LE, words(picture));
      }
      const at::Tensor hidden = linear(norm(x_LE, m[3], m[4]), layer + "feed_forward.w1");
      x_LE = x_LE + m[5] * linear(at::gelu(hidden), layer + "feed_forward.w2");
    }
    const auto m = is_zero ? linear(at::silu(c_E), "modulation").chunk(2, 0)
                           : (c_E + of("scale_shift_table")).unbind(0);
    return linear(norm(x_LE, m[0], m[1]), "output");
  }

 private:
  const at::Tensor& of(const std::string& name) const { return parameters_.at(name); }

  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    return at::linear(x, of(name + ".weight"), of(name + ".bias"));
  }

  at::Tensor norm(const at::Tensor& x_LE, const at::Tensor& shift_E,
                  const at::Tensor& scale_E) const {
    return at::layer_norm(x_LE, {x_LE.size(1)}, {}, {}, options_.layers.norm_eps()) *
               (1 + scale_E) +
           shift_E;
  }

  /// By the formulas, value by value: sin and cos of the column, then of the row.
  at::Tensor positions() const {
    const std::int64_t quarter = options_.layers.dim() / 4;
    std::vector<at::Tensor> rows;
    for (std::int64_t token = 0; token < options_.picture.tokens(); ++token) {
      const std::int64_t columns = options_.picture.columns();
      std::vector<at::Tensor> parts;
      for (const std::int64_t place : {token % columns, token / columns}) {
        const at::Tensor angles = periods(quarter) * place;
        parts.push_back(angles.sin());
        parts.push_back(angles.cos());
      }
      rows.push_back(at::cat(parts));
    }
    return at::stack(rows);
  }

  static at::Tensor periods(std::int64_t count) {
    return (at::arange(count, at::kDouble) * (-std::log(10000.0) / static_cast<double>(count)))
        .exp();
  }

  at::Tensor condition(double time, std::int64_t label) const {
    const at::Tensor angles = periods(128) * (1000 * time);
    const at::Tensor waves = at::cat({angles.cos(), angles.sin()});
    return linear(at::silu(linear(waves, "time_embedding.w1")), "time_embedding.w2") +
           of("class_embeddings.weight").select(0, label);
  }

  at::Tensor words(const PlainPicture& picture) const {
    const at::Tensor rows_T = at::tensor(picture.words, at::kLong);
    return of("text_embeddings.weight").index_select(0, rows_T) + of("text_positions.weight");
  }

  /// Queries of x over keys and values of y.
  at::Tensor attention(const std::string& name, const at::Tensor& x_LE,
                       const at::Tensor& y_LE) const {
    const auto heads = [&](const at::Tensor& input_LE, const char* matrix) {
      return linear(input_LE, name + matrix)
          .unflatten(1, {options_.layers.n_heads(), -1})
          .transpose(0, 1)
          .unsqueeze(0);
    };
    const at::Tensor out =
        at::scaled_dot_product_attention(heads(x_LE, "wq"), heads(y_LE, "wk"), heads(y_LE, "wv"));
    return linear(out.squeeze(0).transpose(0, 1).flatten(1), name + "wo");
  }

  DitOptions options_;
  std::map<std::string, at::Tensor> parameters_;
};

}  // namespace armillary::model
