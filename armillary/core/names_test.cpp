#include "armillary/core/names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace armillary {
namespace {

const std::vector<std::string> masks = {"full", "causal", "window", "documents"};

TEST(NearestName, FindsWhatWasMeant) {
  EXPECT_EQ(nearest_name("casual", masks), "causal");
  EXPECT_EQ(nearest_name("causal", masks), "causal");
  EXPECT_EQ(nearest_name("document", masks), "documents");
  EXPECT_EQ(nearest_name("widow", masks), "window");
  EXPECT_EQ(nearest_name("fulll", masks), "full");
}

TEST(NearestName, PrefersTheFirstOfEquals) {
  EXPECT_EQ(nearest_name("fp61", std::vector<std::string>{"fp64", "fp16", "fp62"}), "fp64");
}

TEST(NearestName, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("quantum-entanglement", masks), "");
  EXPECT_EQ(nearest_name("", masks), "");
  EXPECT_EQ(nearest_name("causal", {}), "");
}

TEST(ListNames, ReadsAsASentence) {
  EXPECT_EQ(list_names({}), "");
  EXPECT_EQ(list_names(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(list_names(std::vector<std::string>{"a", "b"}), "a or b");
  EXPECT_EQ(list_names(masks), "full, causal, window or documents");
}

}  // namespace
}  // namespace armillary
