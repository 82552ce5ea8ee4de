// reduce_test.cpp: sums and maxima of each dtype that collectives have, at any address.
#include "armillary/comm/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "armillary/core/half_floats.h"

namespace armillary::comm {
namespace {

template <class T>
std::vector<T> reduced(Reduction reduction, std::vector<std::vector<T>> addends,
                       ElementType dtype) {
  std::vector<Array> arrays;
  arrays.reserve(addends.size());
  for (std::vector<T>& addend : addends) arrays.push_back(array(std::span(addend), dtype));
  std::vector<T> result(addends[0].size());
  reduce(reduction, arrays, array(std::span(result), dtype));
  return result;
}

template <class T>
T reduced(Reduction reduction, const std::vector<T>& values, ElementType dtype = dtype_of<T>()) {
  std::vector<std::vector<T>> addends;
  addends.reserve(values.size());
  for (const T value : values) addends.push_back({value});
  return reduced(reduction, addends, dtype)[0];
}

TEST(Reduce, AddsInOrder) {
  EXPECT_EQ(reduced<float>(Reduction::Sum, {0x1p24F, 1, 1, -0x1p24F}), 0);
  EXPECT_EQ(reduced<float>(Reduction::Sum, {1, 1, 0x1p24F, -0x1p24F}), 2);
  EXPECT_EQ(reduced<double>(Reduction::Sum, {0x1p24, 1, 1, -0x1p24}), 2);
}

TEST(Reduce, RoundsHalfFloatsOnce) {
  for (const ElementType dtype : {ElementType::Bf16, ElementType::Fp16}) {
    const auto half = [&](float x) {
      return dtype == ElementType::Bf16 ? Bf16(x).bits : Fp16(x).bits;
    };
    // In 16 bits, 4096 + 1 is 4096.
    const std::vector<std::uint16_t> values{half(4096), half(1), half(1), half(-4096)};
    EXPECT_EQ(reduced(Reduction::Sum, values, dtype), half(2));
    EXPECT_EQ(reduced(Reduction::Max, values, dtype), half(4096));
  }
  const std::vector<std::uint16_t> large{Fp16(60000).bits, Fp16(60000).bits};
  EXPECT_EQ(reduced(Reduction::Sum, large, ElementType::Fp16), 0x7C00);
}

TEST(Reduce, IntegersWrapAroundAndAreComparedWithTheirSign) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduced<std::int64_t>(Reduction::Sum, {kMost, 2}), -kMost);
  EXPECT_EQ(reduced<std::int64_t>(Reduction::Max, {-5, kMost, 3}), kMost);
  EXPECT_EQ(reduced<std::int64_t>(Reduction::Max, {-5, -7}), -5);
  // fp64 cannot tell these two apart.
  EXPECT_EQ(reduced<std::int64_t>(Reduction::Max, {kMost - 1, kMost}), kMost);
}

TEST(Reduce, TheLargestIsNanIfOneIs) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::vector<double>& values : {std::vector{nan, 1.0}, {1.0, nan}, {1.0, nan, 2.0}}) {
    EXPECT_TRUE(std::isnan(reduced(Reduction::Max, values)));
  }
  EXPECT_EQ(reduced<double>(Reduction::Max, {-INFINITY, -3}), -3);
}

// More elements than one chunk, at addresses that are not aligned, into one of the addends.
TEST(Reduce, TakesAnyAddressAndItsOwnResult) {
  constexpr std::int64_t kCount = 2500;
  for (const std::size_t offset : {0, 1, 3}) {
    std::vector<std::byte> first(8 * kCount + offset);
    std::vector<std::byte> second = first;
    for (std::int64_t i = 0; i < kCount; ++i) {
      const auto x = static_cast<double>(i);
      std::memcpy(first.data() + offset + 8 * i, &x, 8);
      std::memcpy(second.data() + offset + 8 * i, &x, 8);
    }
    const Array a{first.data() + offset, kCount, ElementType::Fp64};
    const Array b{second.data() + offset, kCount, ElementType::Fp64};
    reduce(Reduction::Sum, std::vector<Array>{a, b}, b);
    for (std::int64_t i = 0; i < kCount; ++i) {
      double x = 0;
      std::memcpy(&x, second.data() + offset + 8 * i, 8);
      ASSERT_EQ(x, static_cast<double>(2 * i)) << i;
    }
  }
}

}  // namespace
}  // namespace armillary::comm
