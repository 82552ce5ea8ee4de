// score.h: how a visible (query, key) pair scores: the one place where features of attention are
// described. Strategies move tiles and know nothing of them.
//
//   x     = scale <q, k>
//   x     = softcap tanh(x / softcap)                       if there is a softcap
//   score = x - slope[head] |k - q - (kv_len - q_len)|      if there are slopes
//
//   out   = sum over keys of keep(q, k) exp(score - lse) v  keep = 1 without dropout
//
// All by GLOBAL positions and heads: the lengths are those of the mask, so a score does not depend
// on who computes it. Sinks join when a result is finished (merge.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "armillary/kernel/dropout.h"

namespace armillary::kernel {

struct Score {
  double scale = 1.0;  ///< Usually 1 / sqrt(D).
  /// Bound of the scaled product, as in Gemma 2 (arXiv:2408.00118, section 2); finite and above 0.
  std::optional<double> softcap = {};
  /// ALiBi (Press et al. 2021, arXiv:2108.12409): what a score loses per token of distance, fp32,
  /// one per GLOBAL query head, constants. The last query sits on the last key. Undefined for none.
  at::Tensor alibi_slopes_H = {};
  /// Of the probabilities. The log-sum-exp, and so the sum of all weights, is that of undropped
  /// scores.
  Dropout dropout = {};

  /// Nothing but the scale.
  bool plain() const { return !softcap && !alibi_slopes_H.defined() && !dropout.on(); }
};

/// @throws InvalidArgument, beginning with `where`, unless the scale is finite, the softcap finite
/// and above 0, 0 <= p < 1, and slopes, if any, are 1-D fp32 constants of at least `heads` heads.
/// Looks at no element of a tensor: never waits for a device.
void check_score(const char* where, const Score& score, std::int64_t heads);

/// @throws InvalidArgument unless there is one finite slope for each of `heads` query heads. No
/// tensor is fine.
void check_slopes(const char* where, const at::Tensor& alibi_slopes_H, std::int64_t heads);

}  // namespace armillary::kernel
