#include "armillary/train/matmul_peak.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

namespace armillary::train {
namespace {

TEST(MatmulPeak, ARateAboveThePeakIsNoShareOfIt) {
  EXPECT_EQ(percent_of_peak(3e9, 4e9), 75);
  EXPECT_EQ(percent_of_peak(4e9, 4e9), 100);
  EXPECT_EQ(percent_of_peak(5e9, 4e9), std::nullopt) << "125 %";
  EXPECT_EQ(percent_of_peak(0, 0), std::nullopt);
  EXPECT_EQ(percent_of_peak(std::nan(""), 4e9), std::nullopt);
}

}  // namespace
}  // namespace armillary::train
