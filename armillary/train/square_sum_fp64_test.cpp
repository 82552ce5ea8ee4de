// square_sum_fp64_test.cpp: against the sum of fp32 numbers, in other orders and pieces, and at the
// ends of the range.
#include "armillary/train/square_sum_fp64.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace armillary::train {
namespace {

double fp64_total_of(std::span<const double> x) {
  SquareSumFp64 sum;
  sum.add(x);
  return sum.total();
}

TEST(SquareSumFp64, IsThatOfFp32NumbersToTheBit) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> narrow(1000);
  for (float& value : narrow) value = normal(random);
  SquareSum sum;
  sum.add(narrow);
  EXPECT_DOUBLE_EQ(fp64_total_of(std::vector<double>(narrow.begin(), narrow.end())), sum.total());
}

TEST(SquareSumFp64, HasTheSameBitsInEveryOrderAndCut) {
  std::mt19937 random(2);
  std::normal_distribution<double> mantissa;
  std::uniform_int_distribution<int> exponent(-500, 500);
  std::vector<double> x(999);
  for (double& value : x) value = std::ldexp(mantissa(random), exponent(random));
  const double total = fp64_total_of(x);
  EXPECT_GT(total, 0);
  for (int i = 0; i < 5; ++i) {
    std::shuffle(x.begin(), x.end(), random);
    SquareSumFp64 first, second;
    first.add(std::span(x).first(400));
    second.add(std::span(x).subspan(400));
    second.add(first);
    EXPECT_EQ(second.total(), total);
  }
}

TEST(SquareSumFp64, EndsOfTheRange) {
  EXPECT_EQ(fp64_total_of({}), 0);
  const std::vector<double> thirds{1.0 / 3, -1.0 / 3, 3};
  EXPECT_DOUBLE_EQ(fp64_total_of(thirds), 2.0 / 9 + 9);
  const std::vector<double> large{1e200};
  EXPECT_TRUE(std::isinf(fp64_total_of(large)));
  for (const double broken :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const std::vector<double> x{1, broken};
    EXPECT_TRUE(std::isnan(fp64_total_of(x)));
  }
}

}  // namespace
}  // namespace armillary::train
