// cpu_math_test.cpp: functions of single numbers in each instruction set: exponentials, tanh,
// rounding. Errors are measured in ulp against long double.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_views.h"
#include "armillary/kernel/testing/dealt_attention.h"
#include "tests/sanitized.h"

namespace armillary::kernel {
namespace {

class CpuMath : public KernelTest {
 protected:
  const cpu::IsaKernels& isa() const { return cpu::isa_named(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Isas, CpuMath, testing::ValuesIn(isa_names()),
                         [](const auto& test) { return test.param; });

// Every 9973rd float of both signs, which include subnormals, infinities and NaN.
TEST_P(CpuMath, RoundsAsPyTorchDoes) {
  std::vector<float> x = {0x1p-133f, 0x1.8p-133f, 0x1p-24f, 0x1p-25f, 65519.99f, 65520.0f};
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 9973) {
    const auto word = static_cast<std::uint32_t>(bits);
    float value = 0;
    std::memcpy(&value, &word, sizeof value);
    x.push_back(value);
  }
  const auto count = static_cast<int>(x.size());
  const at::Tensor result = at::from_blob(x.data(), {count}, at::kFloat);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor rounded = at::zeros({count}, dtype);
    isa().write_rows[cpu::index_of(element_of(dtype))](
        {.data = x.data(), .count = 1, .width = count}, rounded.mutable_data_ptr(), 0);
    const at::Tensor required = result.to(dtype);
    EXPECT_TRUE(at::equal(rounded.isnan(), required.isnan())) << dtype;
    EXPECT_TRUE(at::equal(rounded.nan_to_num(0), required.nan_to_num(0))) << dtype;
  }
}

/// Error in units of the last place of a float near `exact`; subnormals have the smallest unit.
double ulp_error(float value, long double exact) {
  const int exponent = std::max(std::ilogb(static_cast<float>(exact)), -126);
  return static_cast<double>(std::abs(value - exact) / std::ldexp(1.0L, exponent - 23));
}

// Every 97th float from -87 to 88, and values beyond that range.
TEST_P(CpuMath, ExpErrsByLessThanTwoUlp) {
  if (sanitizer_samples()) GTEST_SKIP() << "[SKIP] about rounding, not about memory";
  std::vector<float> x;
  for (const float sign : {-1.0f, 1.0f}) {
    const float limit = sign < 0 ? 87.0f : 88.0f;
    for (std::uint32_t bits = 0x2f000000;; bits += 97) {
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      if (value > limit) break;
      x.push_back(sign * value);
    }
  }
  x.resize((x.size() + 15) / 16 * 16, 0);
  std::vector<float> y(x.size());
  isa().exp(x.data(), y.data(), static_cast<int>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, ulp_error(y[i], std::exp(static_cast<long double>(x[i]))));
  }
  EXPECT_LE(worst, 2);
  EXPECT_GT(worst, 0.4);  // otherwise the test measured nothing
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kMost = std::numeric_limits<float>::max();
  std::vector<float> ends = {std::numeric_limits<float>::quiet_NaN(), -88, 0, -0.0f};
  ends.resize(16, 0);
  isa().exp(ends.data(), y.data(), 16);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_LT(y[1], std::numeric_limits<float>::min()) << "subnormal or 0";
  EXPECT_EQ(y[2], 1);
  EXPECT_EQ(y[3], 1);
  ends = {1e4f, 1e9f, 1e16f, 1e17f, 1e18f, 1e20f, kMost, kInf};
  for (std::size_t i = 0; i < 8; ++i) ends.push_back(-ends[i]);
  isa().exp(ends.data(), y.data(), 16);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(y[i], i < 8 ? kInf : 0) << ends[i];
}

// Every 97th float from -126 to 1. With this error, rounding to bf16 is as accurate as from exp.
TEST_P(CpuMath, Exp2OfWeightsErrsByLessThanBf16CanTell) {
  if (isa().exp2_to_round == nullptr) GTEST_SKIP() << "[SKIP] no pairs of bf16 in " << isa().name;
  std::vector<float> x;
  for (std::uint32_t bits = 0x2f000000; bits < 0x42fc0000; bits += 97) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    x.push_back(-value);
    if (value <= 1) x.push_back(value);
  }
  x.resize((x.size() + 15) / 16 * 16, 0);
  std::vector<float> y(x.size());
  isa().exp2_to_round(x.data(), y.data(), static_cast<int>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp2(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(y[i] / exact - 1));
  }
  EXPECT_LE(worst, 0x1p-18);
  EXPECT_GT(worst, 0x1p-20);  // otherwise the test measured nothing
  std::vector<float> ends = {-1000, -1e9f, -1e18f, std::numeric_limits<float>::lowest()};
  ends.resize(15, -std::numeric_limits<float>::infinity());
  ends.push_back(std::numeric_limits<float>::quiet_NaN());
  isa().exp2_to_round(ends.data(), y.data(), 16);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(y[i], 0) << ends[i];
  EXPECT_TRUE(std::isnan(y[15]));
}

TEST_P(CpuMath, TanhErrsByLessThanFourUlp) {
  std::vector<float> x;
  for (std::uint32_t bits = 0x20000000; bits < 0x42c80000; bits += 997) {  // up to 100.0
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    x.push_back(x.size() % 2 == 0 ? value : -value);
  }
  x.resize((x.size() + 15) / 16 * 16, 0);
  std::vector<float> y(x.size());
  isa().tanh(x.data(), y.data(), static_cast<int>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, ulp_error(y[i], std::tanh(static_cast<long double>(x[i]))));
  }
  EXPECT_LE(worst, 4);
  std::vector<float> ends = {1e3f,
                             1e9f,
                             1e17f,
                             1e20f,
                             std::numeric_limits<float>::max(),
                             std::numeric_limits<float>::infinity()};
  ends.resize(8, 100);
  for (std::size_t i = 0; i < 8; ++i) ends.push_back(-ends[i]);
  isa().tanh(ends.data(), y.data(), 16);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(y[i], i < 8 ? 1 : -1) << ends[i];
}

}  // namespace
}  // namespace armillary::kernel
