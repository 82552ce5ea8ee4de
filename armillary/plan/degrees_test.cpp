#include "armillary/plan/degrees.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "armillary/plan/layout.h"

namespace armillary::plan {
namespace {

/// Pairs of every foreign token of a side with own, or with foreign, tokens of the other; falling.
std::vector<double> counted(const Mask& mask, MaskSide side, const Runs& own, bool to_own) {
  std::vector<bool> is_own(mask.q_len());
  for (const std::int64_t token : positions(own)) is_own[token] = true;
  std::vector<double> degrees;
  for (std::int64_t here = 0; here < mask.q_len(); ++here) {
    if (is_own[here]) continue;
    double degree = 0;
    for (std::int64_t there = 0; there < mask.q_len(); ++there) {
      if (is_own[there] != to_own) continue;
      degree += side == MaskSide::Queries ? mask.visible(here, there) : mask.visible(there, here);
    }
    degrees.push_back(degree);
  }
  std::sort(degrees.begin(), degrees.end(), std::greater<>());
  return degrees;
}

double sum_of_top(const std::vector<double>& degrees, std::size_t count, double cap) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += std::min(degrees[i], cap);
  return sum;
}

/// There are more tokens than pieces, so degrees are bounded, not listed.
TEST(ForeignDegrees, AreNotBelowTheTruthAndNotFarAbove) {
  constexpr std::int64_t kTokens = 600;
  static_assert(kTokens / kPieces >= 3);
  for (const char* text : {"causal", "full", "window:left=50,right=7", "prefix:100",
                           "documents:90,10,200,300", "documents:150,450,within=full",
                           "block_causal:40", "bands:0-200/300-600/..;350-600/0-100/-500..-300"}) {
    const Mask mask = parse_mask(text, {kTokens, kTokens});
    for (const char* layout : {"contiguous", "zigzag", "striped", "balanced"}) {
      const Runs own = shards(parse_layout(layout), mask, 4).q[2];
      for (const MaskSide side : {MaskSide::Queries, MaskSide::Keys}) {
        const std::string what =
            std::string(text) + ' ' + layout + (side == MaskSide::Queries ? " queries" : " keys");
        const ForeignDegrees bound = foreign_degrees(mask, side, kinks(mask, side), own, own);
        const std::vector<double> to_own = counted(mask, side, own, true);
        const std::vector<double> to_foreign = counted(mask, side, own, false);
        for (std::size_t count = 0; count <= to_own.size(); count += 9) {
          const auto n = static_cast<double>(count);
          const double own_pairs = sum_of_top(to_own, count, kTokens);
          EXPECT_GE(bound.to_own.of_top(n), own_pairs - 1e-6) << what << ", " << count;
          EXPECT_LE(bound.to_own.of_top(n), own_pairs * 1.02 + 150) << what << ", " << count;
          for (const double cap : {1., 37., 100., 1000.}) {
            const double pairs = sum_of_top(to_foreign, count, cap);
            EXPECT_GE(bound.to_foreign.of_top(n, cap), pairs - 1e-6)
                << what << ", " << count << " with at most " << cap;
            EXPECT_LE(bound.to_foreign.of_top(n, cap), pairs * 1.05 + 1500)
                << what << ", " << count << " with at most " << cap;
          }
        }
      }
    }
  }
}

TEST(ForeignDegrees, OfNothing) {
  EXPECT_EQ(Degrees().of_top(3), 0);
  EXPECT_EQ(Degrees().of_top(3, 2), 0);
  const Degrees steps({{.degree = 2, .count = 5}, {.degree = 7, .count = 2}});
  EXPECT_EQ(steps.of_top(3), 16);
  EXPECT_EQ(steps.of_top(3, 4), 10);
  EXPECT_EQ(steps.of_top(100, 1), 7);
}

}  // namespace
}  // namespace armillary::plan
