// small_vector_test.cpp: SmallVector does what std::vector does, on both sides of its capacity:
// growth, erasure, copies and moves.
#include "armillary/core/small_vector.h"

#include <gtest/gtest.h>

#include <vector>

namespace armillary {
namespace {

using Small = SmallVector<std::vector<int>, 2>;

/// {0}, {1, 1}, {2, 2, 2}, ...
std::vector<std::vector<int>> values(int count) {
  std::vector<std::vector<int>> list;
  list.reserve(count);
  for (int i = 0; i < count; ++i) list.emplace_back(i + 1, i);
  return list;
}

std::vector<std::vector<int>> contents(const Small& small) {
  return {small.begin(), small.end()};
}

TEST(SmallVector, HoldsWhatAVectorHolds) {
  for (int count = 0; count < 5; ++count) {
    const std::vector<std::vector<int>> expected = values(count);
    const Small small(expected);
    EXPECT_EQ(contents(small), expected);
    EXPECT_EQ(small.size(), expected.size());
    EXPECT_EQ(small.empty(), expected.empty());
    if (count == 0) continue;
    EXPECT_EQ(small.front(), expected.front());
    EXPECT_EQ(small.back(), expected.back());
    EXPECT_EQ(small[count / 2], expected[count / 2]);
  }
}

TEST(SmallVector, GrowsAndShrinksThroughItsCapacity) {
  std::vector<std::vector<int>> expected;
  Small small;
  for (const std::vector<int>& value : values(5)) {
    small.push_back(value);
    expected.push_back(value);
    EXPECT_EQ(contents(small), expected);
  }
  while (!expected.empty()) {
    small.pop_back();
    expected.pop_back();
    EXPECT_EQ(contents(small), expected);
  }
  small.push_back({7});
  EXPECT_EQ(contents(small), (std::vector<std::vector<int>>{{7}}));
}

TEST(SmallVector, ErasesAnyElement) {
  for (int count = 1; count < 5; ++count) {
    for (int at = 0; at < count; ++at) {
      std::vector<std::vector<int>> expected = values(count);
      Small small(expected);
      expected.erase(expected.begin() + at);
      small.erase(small.begin() + at);
      EXPECT_EQ(contents(small), expected) << at << " of " << count;
    }
  }
}

TEST(SmallVector, CopiesAreEqualAndApart) {
  for (int count = 1; count < 5; ++count) {
    const Small first(values(count));
    Small second = first;
    EXPECT_EQ(first, second);
    second[0] = {-1};
    EXPECT_NE(first, second);
    EXPECT_EQ(first[0], std::vector<int>{0});
    second = first;
    EXPECT_EQ(first, second);
    second.clear();
    EXPECT_TRUE(second.empty());
    EXPECT_NE(first, second);
  }
}

TEST(SmallVector, EqualsByElementsHoweverItCameToHaveThem) {
  Small shrunk(values(3));
  shrunk.pop_back();
  EXPECT_EQ(shrunk, Small(values(2)));
}

TEST(SmallVector, MovesAndSwaps) {
  for (int count = 0; count < 5; ++count) {
    Small from(values(count));
    Small to(values(4));
    std::swap(from, to);
    EXPECT_EQ(contents(from), values(4));
    EXPECT_EQ(contents(to), values(count));
    from = std::move(to);
    EXPECT_EQ(contents(from), values(count));
    EXPECT_TRUE(to.empty());  // NOLINT(bugprone-use-after-move): as of a std::vector
    Small& itself = from;
    from = std::move(itself);
    EXPECT_EQ(contents(from), values(count));
  }
}

}  // namespace
}  // namespace armillary
