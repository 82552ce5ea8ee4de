// check_builders.h: statements from values and bounds, and the problems that several of them are
// about. Internal to validate.
#pragma once

#include <cstdint>
#include <string>

#include "armillary/lab/validate/checks.h"
#include "armillary/plan/problem.h"

namespace armillary::validate {

inline constexpr double kGiB = 1 << 30;

/// The value as close to a number as the paper's text permits: `0.02` is 2 %.
Check near(const std::string& statement, double value, double published, double tolerance,
           const std::string& unit);
/// The value in a range.
Check within(const std::string& statement, double value, double least, double most,
             const std::string& unit);
/// Yes or no.
Check agrees(const std::string& statement, bool value, bool published);

/// A value that is known to be outside of its bounds, and the cause.
struct Outside {
  const char* cause = "";  ///< Empty: it is not outside.
  double value = 0;
};
Check outside(Check check, const Outside& known);

/// Self-attention of one sequence in bf16, sums that travel in bf16.
plan::Problem attention_of(int world, std::int64_t seq, int heads, int head_dim, bool causal);

}  // namespace armillary::validate
