#include "armillary/core/names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace armillary {
namespace {

const std::vector<std::string> kMasks = {"full", "causal", "window", "documents"};

TEST(NearestName, FindsWhatWasMeant) {
  EXPECT_EQ(nearest_name("casual", kMasks), "causal");
  EXPECT_EQ(nearest_name("causal", kMasks), "causal");
  EXPECT_EQ(nearest_name("document", kMasks), "documents");
  EXPECT_EQ(nearest_name("widow", kMasks), "window");
  EXPECT_EQ(nearest_name("fulll", kMasks), "full");
}

TEST(NearestName, PrefersTheFirstOfEquals) {
  EXPECT_EQ(nearest_name("fp61", std::vector<std::string>{"fp64", "fp16", "fp62"}), "fp64");
}

TEST(NearestName, CountsWhatIsAddedAndWhatIsLeftOut) {
  EXPECT_EQ(nearest_name("rinb", std::vector<std::string>{"r-i-n-b-x", "ring"}), "ring");
  EXPECT_EQ(nearest_name("r-i-n-g", std::vector<std::string>{"ring", "r-o-n-g"}), "r-o-n-g");
}

TEST(NearestName, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("quantum-entanglement", kMasks), "");
  EXPECT_EQ(nearest_name("", kMasks), "");
  EXPECT_EQ(nearest_name("causal", {}), "");
}

TEST(ListNames, ReadsAsASentence) {
  EXPECT_EQ(list_names({}), "");
  EXPECT_EQ(list_names(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(list_names(std::vector<std::string>{"a", "b"}), "a or b");
  EXPECT_EQ(list_names(kMasks), "full, causal, window or documents");
}

}  // namespace
}  // namespace armillary
