#include "armillary/predict/tune/automatic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "armillary/core/error.h"
#include "armillary/predict/tune/testing/questions.h"

namespace armillary::tune {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Automatic, IsToldFromOtherStrategies) {
  EXPECT_TRUE(is_automatic("auto"));
  EXPECT_TRUE(is_automatic("auto:cluster=c6"));
  EXPECT_FALSE(is_automatic("auto:traffic"));
  EXPECT_FALSE(is_automatic("ring"));
}

TEST(Automatic, ChoosesForTheClusterThatIsNamed) {
  setenv("ARMILLARY_CACHE", "/dev/null/no", 1);
  const plan::Problem problem = testing::question("c8", 4, "causal", 4096).problem;
  const AutomaticChoice choice = choose("auto:cluster=c8", problem);
  EXPECT_NO_THROW(check_legal(problem, choice.strategy));
  EXPECT_THAT(choice.line, StartsWith("strategy auto:cluster=c8 on c8: "));
  EXPECT_THAT(choice.line, HasSubstr(" ms a layer (simulated)"));
  setenv("ARMILLARY_CLUSTER", "c8", 1);
  EXPECT_EQ(choose("auto", problem).strategy, choice.strategy);
  unsetenv("ARMILLARY_CLUSTER");
  try {
    choose("auto", problem);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), StartsWith("strategy: auto without a cluster; auto:cluster=NAME"));
  }
  EXPECT_THROW(choose("auto:cluster=c9999", problem), InvalidArgument);
  unsetenv("ARMILLARY_CACHE");
}

}  // namespace
}  // namespace armillary::tune
