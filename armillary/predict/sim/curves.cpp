// curves.cpp: rates between two measured sizes are interpolated in log(size), since sizes are
// measured in steps by a factor.
#include "armillary/predict/sim/curves.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "armillary/core/error.h"

namespace armillary::sim {

double interpolate(const std::vector<RatePoint>& points, double size) {
  ARMILLARY_CHECK(!points.empty() && size > 0);
  const auto above =
      std::upper_bound(points.begin(), points.end(), size,
                       [](double s, const RatePoint& point) { return s < point.size; });
  if (above == points.begin()) return above->rate * size / above->size;
  const RatePoint& low = *std::prev(above);
  if (above == points.end()) return low.rate;
  const double part = std::log(size / low.size) / std::log(above->size / low.size);
  return low.rate + part * (above->rate - low.rate);
}

double KernelCurve::rate(double tokens) const {
  if (!points.empty()) return interpolate(points, tokens);
  return flops_per_s * tokens / (tokens + half_tokens);
}

}  // namespace armillary::sim
