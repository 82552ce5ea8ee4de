// experts.h: products of rows with the matrix of the expert that each belongs to, and an expert's
// MLP made of them.
//
//   x_RE, sorted by expert; weight_XFE --> x of expert i times weight i, transposed: [R, F]
//
// Dtypes and rounding are those of linear.h. Experts without rows cost nothing; their gradient is
// 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace armillary::model {

/// The gradient of a weight that multiplies several parts of the rows, each in a call of its own:
/// the last call in backward returns the sum, so there is memory for one.
struct PartialGradient {
  int calls = 1;
  int terms = 0;  ///< Calls whose backward is in `sum`.
  at::Tensor sum = {};
};

struct GroupedLinearOptions {
  bool native_bf16 = true;                         ///< See LinearOptions of linear.h.
  std::shared_ptr<PartialGradient> gradient = {};  ///< Null: of this call alone.
};

/// of_expert[i]: rows of expert i of the weights here. Differentiable; backward keeps x alone.
at::Tensor grouped_linear(const at::Tensor& x_RE, const at::Tensor& weight_XFE,
                          const std::vector<std::int64_t>& of_expert,
                          const GroupedLinearOptions& options = {});

/// Matrices of the experts of this rank: [X, F, E], [X, E, F], [X, F, E].
struct ExpertWeights {
  at::Tensor w1_XFE;
  at::Tensor w2_XEF;
  at::Tensor w3_XFE;
};

/// Those of the three matrices; null for one call.
using PartialGradients = std::array<std::shared_ptr<PartialGradient>, 3>;
PartialGradients partial_gradients(int calls);

struct ExpertMlpOptions {
  bool native_bf16 = true;
  PartialGradients gradients = {};
};

/// w2 (silu(w1 x) * w3 x) of each row's expert.
at::Tensor expert_mlp(const at::Tensor& x_RE, const ExpertWeights& weights,
                      const std::vector<std::int64_t>& of_expert,
                      const ExpertMlpOptions& options = {});

}  // namespace armillary::model
