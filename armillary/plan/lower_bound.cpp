#include "armillary/plan/lower_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "armillary/core/error.h"

namespace armillary::plan {

double forward_lower_bound(const Problem& problem) {
  const double world = problem.world;
  const double group = problem.group_size();
  ARMILLARY_CHECK(problem.mask.q_len() == problem.mask.kv_len());
  const double token_bytes =
      static_cast<double>(problem.mask.q_len()) * static_cast<double>(problem.batch) *
      (problem.head_dim + problem.value_dim) * static_cast<double>(bytes_of(problem.dtype));
  if (problem.world == 1) return 0;
  if (world < group) return problem.kv_heads * token_bytes * (1 - 1 / world);
  double least = std::numeric_limits<double>::infinity();
  for (int k = 0; k < problem.kv_heads; ++k) {
    // Area left for the rectangle a x b, in units of one head's queries x keys: its own tokens of
    // all other groups are free.
    const double area =
        problem.heads / world - k * group - (problem.kv_heads - k - 1) * group / (world * world);
    if (area < group / (world * world) || area > group) continue;
    const double b = std::min(1.0, std::sqrt(area));
    const double a = area / b;
    least =
        std::min(least, k * (group + 1) * (1 - 1 / world) + (a - group / world) + (b - 1 / world));
  }
  return least * token_bytes;
}

}  // namespace armillary::plan
