// half_floats_test.cpp: the rounding of half floats against its definition: to the nearest, ties to
// the even one.
#include "armillary/core/half_floats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace armillary {
namespace {

/// Every value of T converts to itself; a number between two neighbours rounds to the nearer one,
/// the middle to the one with even bits.
template <class T>
void expect_rounds_to_nearest(std::uint16_t infinity) {
  const auto value = [](std::uint16_t bits) {
    T x;
    x.bits = bits;
    return static_cast<float>(x);
  };
  for (std::uint16_t low = 0; low + 1 < infinity; ++low) {
    const std::uint16_t high = low + 1;
    ASSERT_EQ(T(value(low)).bits, low);
    ASSERT_EQ(T(-value(low)).bits, low | 0x8000);
    const float middle = value(low) / 2 + value(high) / 2;
    if (middle == 0) continue;  // The middle underflows.
    ASSERT_EQ(T(middle).bits, low % 2 == 0 ? low : high) << low;
    ASSERT_EQ(T(std::nextafter(middle, 0.0F)).bits, low) << low;
    ASSERT_EQ(T(std::nextafter(middle, INFINITY)).bits, high) << low;
    ASSERT_EQ(T(-middle).bits, (low % 2 == 0 ? low : high) | 0x8000) << low;
  }
  ASSERT_EQ(T(value(infinity)).bits, infinity);
  ASSERT_TRUE(std::isinf(value(infinity)));
  ASSERT_TRUE(std::isnan(static_cast<float>(T(std::nanf("")))));
  ASSERT_TRUE(std::isnan(static_cast<float>(T(std::bit_cast<float>(0x7F800001)))));
}

TEST(HalfFloats, RoundToNearest) {
  expect_rounds_to_nearest<Fp16>(0x7C00);
  expect_rounds_to_nearest<Bf16>(0x7F80);
  EXPECT_EQ(Fp16(65519.996F).bits, 0x7BFF);
  EXPECT_EQ(Fp16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(Fp16(-1e30F).bits, 0xFC00);
}

TEST(HalfFloats, HaveTheirValues) {
  for (std::uint16_t bits = 0; bits < 0x7C00; ++bits) {
    const int exponent = bits >> 10;
    const int mantissa = bits & 0x3FF;
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    Fp16 x;
    x.bits = bits;
    ASSERT_EQ(static_cast<float>(x), value) << bits;
  }
}

}  // namespace
}  // namespace armillary
