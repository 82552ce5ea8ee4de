// curves.h: rates as functions of size: kernels by tokens, messages by bytes.
#pragma once

#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::sim {

/// A rate that was measured at one size.
struct RatePoint {
  double size = 0;  ///< Tokens of a kernel call, or bytes of a message.
  double rate = 0;  ///< FLOP/s or bytes/s.
  bool operator==(const RatePoint&) const = default;
};

/// The rate at a size by points that ascend in size: linear in log(size) between two points, the
/// last rate above the last, and below the first in proportion to the size, as if the time were
/// constant. Requires a point and size > 0.
double interpolate(const std::vector<RatePoint>& points, double size);

/// Rate of an attention kernel as a function of the tokens n of its block:
///
///   F(n) = f_inf * n / (n + n_half)          or by measured points, if there are any
struct KernelCurve {
  plan::Pass pass = plan::Pass::Forward;  ///< Forward or Backward.
  bool causal = false;                    ///< Pairs cut by an edge of the mask; else full blocks.
  int head_dim = 128;
  plan::Dtype dtype = plan::Dtype::Bf16;
  double flops_per_s = 0;  ///< f_inf, counting visible pairs only.
  double half_tokens = 0;  ///< n_half: half of f_inf is reached here.
  std::vector<RatePoint> points;
  bool operator==(const KernelCurve&) const = default;

  /// FLOP/s for a block of `tokens`, the geometric mean of its queries and its keys. Requires
  /// tokens > 0.
  double rate(double tokens) const;
};

/// Rate of an op that does not attend, as a function of the bytes that it reads and writes.
struct MemoryCurve {
  plan::OpKind op = plan::OpKind::Merge;
  std::vector<RatePoint> points;  ///< At least one.
  bool operator==(const MemoryCurve&) const = default;
};

}  // namespace armillary::sim
