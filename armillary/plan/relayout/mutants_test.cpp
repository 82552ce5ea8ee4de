// mutants_test.cpp: no mutant of any relayout is proved, and its fault is shown in the grid.
#include "armillary/plan/relayout/mutants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "armillary/plan/relayout/check_relayout.h"
#include "armillary/plan/relayout/testing/relayout_shapes.h"
#include "armillary/plan/relayout/text.h"

namespace armillary::plan::relayout {
namespace {

TEST(RelayoutMutants, AreCaughtAndShown) {
  std::set<std::string> kinds;
  int count = 0;
  const std::vector<RelayoutShape> shapes = small_relayouts(13);
  for (std::size_t i = 0; i < shapes.size(); i += 7) {
    const RelayoutShape& shape = shapes[i];
    const Relayout relayout = build_relayout(shape);
    for_each_mutant(relayout, [&](const RelayoutMutant& mutant) {
      ++count;
      kinds.emplace(to_string(mutant.mutation));
      const World world{relayout.measures, mutant.ranks};
      const std::vector<Diagnostic> faults = check_relayout(world, shape);
      ASSERT_FALSE(faults.empty()) << name_of(shape) << ": " << to_string(mutant);
      if (count % 50 != 0) return;
      EXPECT_THAT(to_grid(world, shape, &faults[0]), testing::HasSubstr("<-- HERE"))
          << name_of(shape) << ": " << to_string(mutant);
    });
  }
  EXPECT_EQ(kinds.size(), 6U);
  EXPECT_GT(count, 1000);
}

}  // namespace
}  // namespace armillary::plan::relayout
