#include "armillary/core/recent.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace armillary {
namespace {

auto is_number(int number) {
  return [number](int value) { return value == number; };
}

TEST(Recent, TheValueThatWasUsedLongestAgoMakesRoom) {
  Recent<int> recent(3);
  for (const int value : {1, 2, 3}) EXPECT_EQ(recent.add(value), value);
  ASSERT_NE(recent.find(is_number(1)), nullptr);  // Now the newest.
  recent.add(4);
  EXPECT_EQ(recent.find(is_number(2)), nullptr) << "it was used longest ago";
  for (const int value : {1, 3, 4}) {
    const int* const known = recent.find(is_number(value));
    ASSERT_NE(known, nullptr) << value;
    EXPECT_EQ(*known, value);
  }
  EXPECT_EQ(recent.size(), 3U);
}

TEST(Recent, AReferenceHoldsUntilItsValueIsDropped) {
  Recent<std::shared_ptr<int>> recent(2);
  const std::weak_ptr<int> dropped = recent.add(std::make_shared<int>(1));
  const std::shared_ptr<int>& stays = recent.add(std::make_shared<int>(2));
  recent.add(std::make_shared<int>(3));
  EXPECT_TRUE(dropped.expired());
  ASSERT_EQ(recent.find([](const auto& value) { return *value == 2; }), &stays);
  EXPECT_EQ(*stays, 2);
}

TEST(Recent, APeekChangesNoOrder) {
  Recent<int> recent(2);
  for (const int value : {1, 2}) recent.add(value);
  ASSERT_NE(recent.peek(is_number(1)), nullptr);
  EXPECT_EQ(*recent.peek(is_number(1)), 1);
  EXPECT_EQ(recent.peek(is_number(3)), nullptr);
  recent.add(3);
  EXPECT_EQ(recent.peek(is_number(1)), nullptr) << "it was the oldest all the same";
}

TEST(Recent, OfTwoAlikeTheNewestIsFound) {
  Recent<std::pair<int, char>> recent(4);
  recent.add({1, 'a'});
  recent.add({1, 'b'});
  EXPECT_EQ(recent.find([](const auto& value) { return value.first == 1; })->second, 'b');
}

}  // namespace
}  // namespace armillary
