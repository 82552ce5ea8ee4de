#include "armillary/train/square_sum_fp64.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace armillary::train {
namespace {

constexpr int kMantissaBitsFp64 = 52;
constexpr int kHalf = 27;
constexpr std::uint64_t kInfiniteFp64 = 2047;  ///< Exponent of NaN and infinity.

}  // namespace

void SquareSumFp64::add(std::span<const double> x) {
  for (const double value : x) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const std::uint64_t exponent = bits >> kMantissaBitsFp64 & kInfiniteFp64;
    const std::uint64_t fraction = bits & ((std::uint64_t{1} << kMantissaBitsFp64) - 1);
    // Numbers below the least normal one have no leading 1.
    const std::uint64_t mantissa =
        fraction | (exponent == 0 ? 0 : std::uint64_t{1} << kMantissaBitsFp64);
    const std::uint64_t low = mantissa & ((std::uint64_t{1} << kHalf) - 1);
    const std::uint64_t high = mantissa >> kHalf;
    std::array<WideInteger, kProducts>& sums = sums_[exponent];
    sums[0].add({.low = low * low});
    sums[1].add({.low = 2 * high * low});
    sums[2].add({.low = high * high});
  }
}

void SquareSumFp64::add(const SquareSumFp64& other) {
  for (std::size_t e = 0; e < kExponents; ++e) {
    for (std::size_t i = 0; i < kProducts; ++i) sums_[e][i].add(other.sums_[e][i]);
  }
}

bool SquareSumFp64::is_finite() const {
  return std::ranges::all_of(sums_[kInfiniteFp64],
                             [](const WideInteger& sum) { return sum.low == 0 && sum.high == 0; });
}

double SquareSumFp64::total() const {
  if (!is_finite()) return std::numeric_limits<double>::quiet_NaN();
  double total = 0;
  for (std::size_t e = 0; e < kInfiniteFp64; ++e) {
    // A number is mantissa * 2^(exponent - bias - 52), of the least exponent as of the next.
    const int power = 2 * (std::max(static_cast<int>(e), 1) - 1023 - kMantissaBitsFp64);
    for (std::size_t i = 0; i < kProducts; ++i) {
      const WideInteger& sum = sums_[e][i];
      const int shift = power + kHalf * static_cast<int>(i);
      total += std::ldexp(static_cast<double>(sum.low), shift) +
               std::ldexp(static_cast<double>(sum.high), shift + 64);
    }
  }
  return total;
}

}  // namespace armillary::train
