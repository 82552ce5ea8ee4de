// Every strategy on every layout, mask, world, length and head count against one-device attention.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/equivalence/cases.h"
#include "tests/sanitized.h"
#include "tests/seed.h"
#include "tests/tolerance.h"

namespace armillary::equivalence {
namespace {

/// Runs a sample of the cases, or all of them with ARMILLARY_TEST_ALL. Large worlds, whose cases
/// take as long as all others together, get half of it.
void expect_exact(std::vector<Case> cases, std::size_t sample) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] intra-op threads of libgomp are not instrumented";
  const std::size_t whole = cases.size();
  std::mt19937_64 random(test_seed());
  if (!test_all()) {
    std::shuffle(cases.begin(), cases.end(), random);
    cases.resize(std::min(cases.size(), cases[0].world > 8 ? sample / 2 : sample));
  }
  double worst_fp64 = 0;
  double worst_fp32 = 0;
  for (const Case& c : cases) {
    const LargestErrors errors = run(c, random());
    const double bound = c.dtype == at::kDouble ? kFp64Bound : kFp32Bound;
    double& worst = c.dtype == at::kDouble ? worst_fp64 : worst_fp32;
    worst = std::max(worst, errors.worst());
    ASSERT_LE(errors.worst(), bound) << to_string(c) << ": " << to_string(errors);
  }
  fmt::print("{} of {} cases: worst fp64 {:.1e} (bound {:.0e}), fp32 {:.1e} (bound {:.0e})\n",
             cases.size(), whole, worst_fp64, kFp64Bound, worst_fp32, kFp32Bound);
}

class Equivalence : public testing::TestWithParam<int> {};

TEST_P(Equivalence, Grid) {
  expect_exact(grid_cases(GetParam()), 80);
}

TEST_P(Equivalence, Features) {
  expect_exact(feature_cases(GetParam()), 50);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Equivalence,
                         testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace armillary::equivalence
