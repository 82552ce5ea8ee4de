// dit.h: a diffusion transformer with adaLN-zero (DiT, Peebles and Xie 2023, arXiv:2212.09748) as
// units (model.h). It learns pictures: the patches of one, behind its words if there is text, are a
// sequence under a full mask.
//
//   embedding   patches mixed with noise --> x_BLE, plus fixed positions; words --> x_BLE, plus
//               learned ones; time and class --> c_BRE
//   layers.i    x + gate_1 attention(norm_1(x)) = h, with cross-attention + cross_attention(h),
//               then h + gate_2 mlp(norm_2(h))
//   head        norm, then the output matrix: predictions_BLC, or with noise the loss
//
// Each norm is a LayerNorm without parameters, scaled and shifted; scale, shift and gates are a
// product of silu(c) (modulation.h), or by adaLN-single (dit_kinds.h) one such product for all
// layers plus a table of each; the head then adds its table to c. They begin at 0, as does the
// output of cross-attention: a layer is the identity, and the output 0.
// dit_parameters.h has the names, shapes and initial values of the parameters, picture.h the
// fields, objective.h what is learned. Dtypes are those of decoder.h.
//
// Conditions. R of them are rows of c: tokens side by side that have one time and class share one,
// whichever sequences they are of. c lies behind x as R more tokens of one tensor, so its gradient
// goes back through the units as that of x does; so do the 6 R rows of a shared modulation, and R
// rows of words for cross-attention (cross_attention.h). Ranks along cp and tp each have the rows
// of their tokens; gradients of modulations and embedders are sums over all of them.
//
// Text. Joint words and patches share attention and the weights of the layers, as in the
// single-stream blocks of Flux. Each stream has its own positions, whichever ranks have its tokens.
// The network predicts nothing for words. Words of cross-attention are no tokens: each row of c has
// its own, so neighbours share one if their words are the same too.
//
// Ranks along tp: as decoder.h. x is [B, K, E] of this rank's tokens, c that of all L.
//
// Differs from the papers: GELU is exact, not its approximation by tanh; no variance is learned;
// rectified flow, and the time in it, are not DiT's; PixArt-alpha has one projection of the text's
// own embeddings where words here are rows of a table, and tables that begin at random.
//
//   B 1, L tokens of this rank, E dim, C values of a patch, R conditions
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "armillary/model/dit_options.h"
#include "armillary/model/layer_ops.h"
#include "armillary/model/model.h"

namespace armillary::model {

/// Times, classes and words of neighbouring tokens.
struct Conditions {
  at::Tensor times_R;         ///< fp64, as the network is told them (objective.h).
  at::Tensor classes_R;       ///< int64.
  at::Tensor words_RT;        ///< int64, with cross-attention: the T words of each.
  TokensOfRow tokens_of_row;  ///< Counts this rank's K tokens.
  TokensOfRow all_of_row;     ///< Counts all L.

  std::int64_t rows() const { return times_R.size(0); }
};

class Dit : public Model {
 public:
  explicit Dit(const DitOptions& options);

  std::vector<std::string> units() const override;
  std::vector<Parameter> parameters() const override;
  cost::ModelCost cost() const override;
  std::vector<std::string> fields() const override;
  /// Patches.
  std::int64_t targets(const Fields& tokens) const override;

  /// The loss is fp64: the mean over the values of a patch of the squared error, summed over the
  /// patches. Without the field `noise` the patches have their noise already, and the output is the
  /// prediction for all L tokens, in the dtype of the options.
  at::Tensor run(int unit, const Weights& weights, const at::Tensor& x,
                 const ModelInputs& inputs) override;

 private:
  at::Tensor run_embedding(const Weights& weights, const ModelInputs& inputs);
  /// Patches and words of this rank along tp, with their positions.
  at::Tensor tokens_of(const Weights& weights, const ModelInputs& inputs) const;
  /// Words for cross-attention, with their places.
  at::Tensor words_of(const Weights& weights, const Conditions& conditions) const;
  at::Tensor run_layer(std::int64_t layer, const Weights& weights, const at::Tensor& x,
                       const ModelInputs& inputs);
  at::Tensor run_head(const Weights& weights, const at::Tensor& x, const ModelInputs& inputs);
  const Conditions& conditions_of(const ModelInputs& inputs);

  DitOptions options_;
  std::shared_ptr<const LayerOps> ops_;  ///< Those of one rank.
  // All units of a pass have the same conditions.
  at::Tensor conditions_times_;
  Conditions conditions_;
};

}  // namespace armillary::model
