// score.h: the score of a visible (query, key) pair. This is the one place that describes features
// of attention; strategies move tiles and know nothing about them.
//
//   x     = scale <q, k>
//   x     = softcap tanh(x / softcap)                       if there is a softcap
//   score = x - slope[head] |k - q - (kv_len - q_len)|      if there are slopes
//
//   out   = sum over keys of keep(q, k) exp(score - lse) v  keep = 1 without dropout
//
// Positions and heads are global, and the lengths are those of the mask, so a score is the same on
// every rank. Sinks join when a result is finished (merge.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "armillary/kernel/dropout.h"

namespace armillary::kernel {

/// Features of attention in one call.
struct Score {
  double scale = 1.0;  ///< usually 1 / sqrt(D)
  /// Bound on |scale <q, k>|, as in Gemma 2 (arXiv:2408.00118, section 2); finite and above 0.
  std::optional<double> softcap = {};
  /// ALiBi (Press et al. 2021, arXiv:2108.12409): the amount that a score loses per token of
  /// distance. fp32, one constant per GLOBAL query head; undefined for none. The last query has the
  /// position of the last key.
  at::Tensor alibi_slopes_H = {};
  /// Dropout of the probabilities. The log-sum-exp is over all scores, dropped or not.
  Dropout dropout = {};

  /// True if no feature is on: only the scale.
  bool plain() const { return !softcap && !alibi_slopes_H.defined() && !dropout.on(); }
};

/// Checks a score. Requires a finite scale, a finite softcap above 0, 0 <= p < 1, and slopes (if
/// any) that are 1-D fp32 constants for at least `heads` heads. It reads no element of a tensor, so
/// it never waits for a device. @throws InvalidArgument otherwise, with a text that begins with
/// `where`.
void check_score(const char* where, const Score& score, std::int64_t heads);

/// Checks that there is one finite slope for each of `heads` query heads, or no tensor. It reads
/// the elements. @throws InvalidArgument otherwise.
void check_slopes(const char* where, const at::Tensor& alibi_slopes_H, std::int64_t heads);

}  // namespace armillary::kernel
