// initial_values_test.cpp: values depend on seed, name and global index alone, and are normal.
// Shards of every placement are slices of the whole.
#include "armillary/model/initial_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace armillary::model {
namespace {

Parameter normal(const char* name, Shape shape, TpSplit placement = TpSplit::Whole) {
  return {.name = name,
          .shape = std::move(shape),
          .placement = placement,
          .units = {"u"},
          .init = {.mean = 1, .deviation = 2}};
}

std::vector<float> drawn(const Parameter& parameter, const GlobalRange& range, std::int64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count_of_values(range.size)));
  draw_initial_values(parameter, range, seed, values);
  return values;
}

std::vector<float> drawn(const Parameter& parameter, std::int64_t seed) {
  return drawn(parameter, whole_of(parameter.shape), seed);
}

TEST(InitialValues, AShardIsTheSliceOfTheWhole) {
  for (const TpSplit placement : {TpSplit::Columns, TpSplit::Rows, TpSplit::Vocabulary}) {
    const Parameter parameter = normal("w", {7, 5}, placement);
    const std::vector<float> whole = drawn(parameter, 3);
    for (const int ranks : {1, 2, 3, 5}) {
      std::vector<int> marks(whole.size());
      for (int rank = 0; rank < ranks; ++rank) {
        const GlobalRange range = range_of(parameter, rank, ranks);
        const std::vector<float> part = drawn(parameter, range, 3);
        for (std::int64_t row = 0; row < range.size[0]; ++row) {
          for (std::int64_t column = 0; column < range.size[1]; ++column) {
            const auto global =
                static_cast<std::size_t>((range.begin[0] + row) * 5 + range.begin[1] + column);
            EXPECT_EQ(part[static_cast<std::size_t>(row * range.size[1] + column)], whole[global])
                << ranks << " ranks, rank " << rank << ", element " << global;
            ++marks[global];
          }
        }
      }
      EXPECT_EQ(marks, std::vector<int>(whole.size(), 1));
    }
  }
}

TEST(InitialValues, DependOnSeedAndNameAndOnNoOtherParameter) {
  const std::vector<float> values = drawn(normal("w", {100}), 1);
  EXPECT_EQ(drawn(normal("w", {100}), 1), values);
  // The first elements of a longer vector are the same.
  const std::vector<float> longer = drawn(normal("w", {300}), 1);
  EXPECT_TRUE(std::equal(values.begin(), values.end(), longer.begin()));
  for (const std::vector<float>& other :
       {drawn(normal("w", {100}), 2), drawn(normal("w", {100}), 1 + (std::int64_t{1} << 32)),
        drawn(normal("v", {100}), 1), drawn(normal("ww", {100}), 1),
        drawn(normal("layers.10.weight", {100}), 1)}) {
    int equal = 0;
    for (std::size_t i = 0; i < values.size(); ++i) equal += other[i] == values[i] ? 1 : 0;
    EXPECT_EQ(equal, 0);
  }
}

TEST(InitialValues, AreNormalWithTheirMeanAndDeviation) {
  const std::vector<float> values = drawn(normal("w", {400, 500}), 5);
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  double squares = 0;
  double neighbours = 0;
  std::vector<double> within(4);
  double before = 0;
  for (const float value : values) {
    const double z = (value - 1.0) / 2;
    sum += z;
    squares += z * z;
    neighbours += z * before;
    before = z;
    for (std::size_t k = 1; k < within.size(); ++k) within[k] += std::abs(z) < double(k) ? 1 : 0;
  }
  // Five standard errors each.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(neighbours / n, 0, 5 / std::sqrt(n));
  for (std::size_t k = 1; k < within.size(); ++k) {
    const double chance = std::erf(static_cast<double>(k) / std::sqrt(2.0));
    EXPECT_NEAR(within[k] / n, chance, 5 * std::sqrt(chance * (1 - chance) / n)) << k;
  }
  const Parameter constant{.name = "w", .shape = {3}, .units = {"u"}, .init = {.mean = 7}};
  EXPECT_EQ(drawn(constant, 1), (std::vector<float>{7, 7, 7}));
}

// The quantile is undone by the distribution function of the C library.
TEST(NormalQuantile, IsTheInverseOfTheDistribution) {
  const auto chance_below = [](double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); };
  for (int i = 1; i < 2000; ++i) {
    const double p = i / 2000.0;
    EXPECT_NEAR(chance_below(normal_quantile(p)), p, 4e-6 * p) << p;
  }
  for (int k = 2; k <= 33; ++k) {
    const double p = std::ldexp(1.0, -k);
    EXPECT_NEAR(chance_below(normal_quantile(p)), p, 1e-5 * p) << "2^-" << k;
    EXPECT_EQ(normal_quantile(1 - std::ldexp(1.0, -k)), -normal_quantile(p)) << "1 - 2^-" << k;
  }
}

}  // namespace
}  // namespace armillary::model
