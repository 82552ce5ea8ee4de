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

TEST(Names, ListsNumbersWithRanges) {
  const auto list = [](const std::vector<int>& numbers) { return list_numbers(numbers); };
  EXPECT_EQ(list({}), "");
  EXPECT_EQ(list({7}), "7");
  EXPECT_EQ(list({0, 1}), "0 and 1");
  EXPECT_EQ(list({0, 1, 3}), "0, 1 and 3");
  EXPECT_EQ(list({0, 2, 3, 4, 7, 8}), "0, 2 to 4, 7 and 8");
  EXPECT_EQ(list({1, 2, 3}), "1 to 3");
  EXPECT_EQ(list_numbers(std::vector{0, 2}, ", "), "0, 2");
}

TEST(Names, TheNearestOfAHugeNameIsNoneAtOnce) {
  const std::vector<std::string> choices{"causal", "full"};
  std::string name;
  name.resize(100'000'000, 'a');
  EXPECT_EQ(nearest_name(name, choices), "");
}

}  // namespace
}  // namespace armillary
