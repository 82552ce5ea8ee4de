#include "armillary/lab/bench/attention_case.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

at::Tensor of_values(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).view({1, 1, 1, -1});
}

TEST(ErrorOf, IsTheLargestDifferenceOverTheLargestValueOfTheWorstTensor) {
  const std::vector<at::Tensor> exact{of_values({1, -4}), of_values({0.5, 2})};
  EXPECT_DOUBLE_EQ(error_of(exact, exact), 0);
  EXPECT_DOUBLE_EQ(error_of({of_values({1, -3}), exact[1]}, exact), 1.0 / 4);
  EXPECT_DOUBLE_EQ(error_of({exact[0], of_values({0, 2})}, exact), 0.5 / 2);
  EXPECT_DOUBLE_EQ(error_of({of_values({3, -4}), of_values({0, 2})}, exact), 2.0 / 4);
}

TEST(ErrorOf, OfATensorThatIsAllButZeroIsOverASixteenthOfTheLargest) {
  const std::vector<at::Tensor> exact{of_values({32, 1}), of_values({1e-9, 0})};
  EXPECT_DOUBLE_EQ(error_of({exact[0], of_values({1e-9, 1})}, exact), 1.0 / 2);
}

TEST(ErrorOf, HeadsThatTheExactOneLacksAreLeftOut) {
  const at::Tensor heads = at::arange(8, at::kDouble).view({1, 1, 4, 2});
  EXPECT_DOUBLE_EQ(error_of({heads}, {heads.narrow(2, 0, 2)}), 0);
}

TEST(ErrorOf, ANanAnywhereIsANan) {
  const std::vector<at::Tensor> exact{of_values({1, 2}), of_values({1, 2})};
  const at::Tensor broken = of_values({1, std::nan("")});
  EXPECT_TRUE(std::isnan(error_of({broken, exact[1]}, exact)));
  EXPECT_TRUE(std::isnan(error_of({exact[0], broken}, exact)));
}

TEST(RequireRight, RefusesWhatIsMoreThanCoarselyRight) {
  require_right("the kernel", 1e-5, plan::Dtype::F32);
  require_right("the kernel", 0.05, plan::Dtype::Bf16);
  EXPECT_THAT([] { require_right("the kernel", 2e-5, plan::Dtype::F32); },
              testing::ThrowsMessage<Error>("bench: the kernel is wrong by 2e-05, at most 1e-05 is "
                                            "required; nothing was timed"));
  EXPECT_THROW(require_right("ring", 0.06, plan::Dtype::F16), Error);
  EXPECT_THROW(require_right("ring", std::nan(""), plan::Dtype::F32), Error);
}

}  // namespace
}  // namespace armillary::bench
