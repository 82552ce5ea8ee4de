// named_random_test.cpp: numbers depend on seed, name and index alone; uniform ones are uniform.
// Normal ones: initial_values_test.cpp.
#include "armillary/model/named_random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace armillary::model {
namespace {

TEST(NamedRandom, AnyPartIsTheSliceOfTheWhole) {
  const NamedRandom numbers(7, "noise of sequence 3");
  std::vector<float> whole(41);
  numbers.fill_normal(0, whole);
  for (const std::int64_t begin : {1, 2, 3, 4, 17}) {
    std::vector<float> part(whole.size() - static_cast<std::size_t>(begin));
    numbers.fill_normal(begin, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << begin;
  }
  std::vector<float> other(whole.size());
  NamedRandom(7, "noise of sequence 4").fill_normal(0, other);
  EXPECT_NE(other, whole);
  NamedRandom(8, "noise of sequence 3").fill_normal(0, other);
  EXPECT_NE(other, whole);
}

TEST(NamedRandom, UniformNumbersAreInEachTenthAsOften) {
  const NamedRandom numbers(1, "u");
  constexpr std::int64_t kCount = 20000;
  std::vector<int> tenths(10);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double u = numbers.uniform(i);
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    ++tenths[static_cast<std::size_t>(10 * u)];
  }
  // 6 standard deviations of a binomial count.
  for (const int count : tenths) EXPECT_NEAR(count, kCount / 10.0, 6 * 42.5);
}

}  // namespace
}  // namespace armillary::model
