// square_sum_test.cpp: against sums that are exact by other means, and in other orders.
#include "armillary/train/square_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace armillary::train {
namespace {

double total_of(std::span<const float> x) {
  SquareSum sum;
  sum.add(x);
  return sum.total();
}

/// Numbers of all magnitudes, the least above 0 among them.
std::vector<float> numbers(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> mantissa;
  std::uniform_int_distribution<int> exponent(-149, 60);
  std::vector<float> x(count);
  for (float& value : x) value = std::ldexp(mantissa(random), exponent(random));
  x.front() = std::numeric_limits<float>::denorm_min();
  return x;
}

TEST(SquareSum, SmallIntegersAreExact) {
  for (const int count : {0, 1, 3, 4, 5, 1000}) {
    std::vector<float> x;
    double squares = 0;
    for (int i = 1; i <= count; ++i) {
      x.push_back(static_cast<float>(i % 2 == 0 ? i : -i));
      squares += static_cast<double>(i) * i;
    }
    EXPECT_EQ(total_of(x), squares) << count;
  }
}

TEST(SquareSum, SmallAndLargeNumbersKeepTheirSquares) {
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  const std::vector<float> least{kLeast, kLeast, -kLeast};
  EXPECT_EQ(total_of(least), 3 * std::ldexp(1.0, -298));
  constexpr float kMost = std::numeric_limits<float>::max();
  const std::vector<float> most{kMost, -kMost};
  EXPECT_EQ(total_of(most), 2 * static_cast<double>(kMost) * kMost);
}

// More than a chunk of the largest mantissas: 64 bits would overflow.
TEST(SquareSum, ManyNumbersDoNotOverflow) {
  const float odd = std::nextafterf(2, 1);
  const std::vector<float> x(1'000'003, odd);
  EXPECT_DOUBLE_EQ(total_of(x), 1'000'003.0 * odd * odd);
}

TEST(SquareSum, IsNearTheSumInLongDouble) {
  const std::vector<float> x = numbers(300'000);
  long double squares = 0;
  for (const float value : x) squares += static_cast<long double>(value) * value;
  EXPECT_DOUBLE_EQ(total_of(x), static_cast<double>(squares));
}

TEST(SquareSum, HasTheSameBitsInAnyOrderAndAnyParts) {
  std::vector<float> x = numbers(10'000);
  const double total = total_of(x);
  std::mt19937 random(2);
  for (int i = 0; i < 5; ++i) {
    std::ranges::shuffle(x, random);
    SquareSum all;
    std::span<const float> rest = x;
    for (const std::size_t part : {0, 1, 31, 4096, 5872}) {
      SquareSum sum;
      sum.add(rest.first(part));
      all.add(sum);
      rest = rest.subspan(part);
    }
    ASSERT_TRUE(rest.empty());
    EXPECT_EQ(all.total(), total);
  }
}

TEST(SquareSum, SeesWhatIsNotFinite) {
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::nanf(""), -std::nanf("")}) {
    const std::vector<float> x{1, value, 2};
    SquareSum sum;
    sum.add(x);
    EXPECT_FALSE(sum.is_finite());
    EXPECT_TRUE(std::isnan(sum.total()));
  }
  EXPECT_TRUE(SquareSum().is_finite());
}

}  // namespace
}  // namespace armillary::train
