#include "armillary/core/checked.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace armillary {
namespace {

using testing::ThrowsMessage;

TEST(CheckedProduct, MultipliesUpTo63Bits) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(checked_product("bytes", {}), 1);
  EXPECT_EQ(checked_product("bytes", {3, -5, 7}), -105);
  EXPECT_EQ(checked_product("bytes", {most, 1}), most);
  EXPECT_EQ(checked_product("bytes", {std::int64_t{1} << 31, std::int64_t{1} << 31}),
            std::int64_t{1} << 62);
}

TEST(CheckedProduct, RefusesToOverflow) {
  const auto text = "bytes: the product overflows; it must stay below 2^63";
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT([=] { checked_product("bytes", {most, 2}); }, ThrowsMessage<InvalidArgument>(text));
  EXPECT_THAT(
      [=] {
        checked_product("bytes", {std::int64_t{1} << 32, std::int64_t{1} << 31});
      },
      ThrowsMessage<InvalidArgument>(text));
  EXPECT_THAT(
      [=] {
        checked_product("bytes", {most, most, most});
      },
      ThrowsMessage<InvalidArgument>(text));
}

TEST(FloorDiv, RoundsDownAndCeilDivUp) {
  for (std::int64_t a = -20; a <= 20; ++a) {
    for (std::int64_t b = 1; b <= 7; ++b) {
      const double quotient = static_cast<double>(a) / static_cast<double>(b);
      EXPECT_EQ(floor_div(a, b), std::floor(quotient)) << a << " / " << b;
      EXPECT_EQ(ceil_div(a, b), std::ceil(quotient)) << a << " / " << b;
    }
  }
}

TEST(PieceBegin, CutsAsEvenlyAsPossible) {
  for (std::int64_t total = 0; total <= 40; ++total) {
    for (std::int64_t n = 1; n <= 13; ++n) {
      EXPECT_EQ(piece_begin(total, n, 0), 0);
      EXPECT_EQ(piece_begin(total, n, n), total) << "in " << n;
      for (std::int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(piece_begin(total, n, i), i * total / n)
            << total << " in " << n << ", piece " << i;
        const std::int64_t size = piece_begin(total, n, i + 1) - piece_begin(total, n, i);
        EXPECT_TRUE(size == total / n || size == total / n + 1)
            << total << " in " << n << ", piece " << i << " has " << size;
      }
    }
  }
}

TEST(PieceBegin, DoesNotOverflow) {
  const std::int64_t total = (std::int64_t{1} << 62) - 1;
  const std::int64_t n = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(piece_begin(total, n, n), total);
  EXPECT_EQ(piece_begin(total, n, n - 1),
            static_cast<std::int64_t>(static_cast<__int128>(total) * (n - 1) / n));
}

TEST(NearestDivisor, IsTheSmallerOfTwoAndNeverFartherThanAnother) {
  EXPECT_EQ(nearest_divisor(12, 5), 4);  // 4 and 6 are as near.
  EXPECT_EQ(nearest_divisor(12, 11), 12);
  EXPECT_EQ(nearest_divisor(12, 100), 12);
  EXPECT_EQ(nearest_divisor(13, 6), 1);
  EXPECT_EQ(nearest_divisor(1, 7), 1);
  // A prime, and twice 1073741823, by divisions up to their roots.
  EXPECT_EQ(nearest_divisor(2147483647, 1000000000), 1);
  EXPECT_EQ(nearest_divisor(2147483646, 1000000000), 1073741823);
  for (std::int64_t n = 1; n <= 60; ++n) {
    for (std::int64_t wish = 1; wish <= 70; ++wish) {
      std::int64_t nearest = 1;
      for (std::int64_t d = 2; d <= n; ++d) {
        if (n % d == 0 && std::abs(d - wish) < std::abs(nearest - wish)) nearest = d;
      }
      EXPECT_EQ(nearest_divisor(n, wish), nearest) << wish << " of " << n;
    }
  }
}

}  // namespace
}  // namespace armillary
