// Checks of the options of a score, with the given value and the required one in each text.
#include "armillary/kernel/score.h"

#include <ATen/ops/isfinite.h>
#include <fmt/ranges.h>

#include <cmath>

#include "armillary/core/error.h"

namespace armillary::kernel {

void check_score(const char* where, const Score& score, std::int64_t heads) {
  if (!std::isfinite(score.scale)) {
    fail<InvalidArgument>("{}: scale {}; a finite number is required", where, score.scale);
  }
  if (score.softcap && !(std::isfinite(*score.softcap) && *score.softcap > 0)) {
    fail<InvalidArgument>("{}: softcap {}; a finite number above 0 is required, or none", where,
                          *score.softcap);
  }
  if (!(score.dropout.p >= 0 && score.dropout.p < 1)) {
    fail<InvalidArgument>("{}: dropout p {}; at least 0 and below 1 is required", where,
                          score.dropout.p);
  }
  // Only metadata of the slopes: check_slopes() reads their elements.
  const at::Tensor& slopes = score.alibi_slopes_H;
  if (!slopes.defined()) return;
  if (slopes.dim() != 1 || slopes.scalar_type() != at::kFloat || slopes.size(0) < heads) {
    fail<InvalidArgument>("{}: alibi_slopes_H is {} [{}]; Float [{}] is required, of all heads",
                          where, c10::toString(slopes.scalar_type()),
                          fmt::join(slopes.sizes(), ", "), heads);
  }
  if (slopes.requires_grad()) {
    fail<InvalidArgument>("{}: alibi_slopes_H requires a gradient; slopes are constants: detach()",
                          where);
  }
}

void check_slopes(const char* where, const at::Tensor& alibi_slopes_H, std::int64_t heads) {
  if (!alibi_slopes_H.defined()) return;
  if (alibi_slopes_H.dim() != 1 || alibi_slopes_H.size(0) != heads) {
    fail<InvalidArgument>("{}: alibi_slopes_H is [{}]; one slope per query head, [{}], is required",
                          where, fmt::join(alibi_slopes_H.sizes(), ", "), heads);
  }
  if (!at::isfinite(alibi_slopes_H).all().item<bool>()) {
    fail<InvalidArgument>("{}: alibi_slopes_H has a slope that is not finite; all must be", where);
  }
}

}  // namespace armillary::kernel
