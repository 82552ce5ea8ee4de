// square_sum.cpp: a square of a 24-bit mantissa has 48 bits, so 2^16 of them fit into 64 bits. Sums
// of a chunk of that many numbers are made in 64 bits, in tables of which neighbours use different
// ones: additions to one entry would wait for each other.
#include "armillary/train/square_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace armillary::train {
namespace {

constexpr std::size_t kTables = 4;
constexpr std::size_t kChunk = kTables << 16;
constexpr int kMantissaBits = 23;
constexpr std::uint32_t kInfinite = 255;  ///< Exponent of NaN and infinity.

}  // namespace

void SquareSum::add(std::span<const float> x) {
  std::array<std::array<std::uint64_t, kExponents>, kTables> tables{};
  const auto add_to = [](std::array<std::uint64_t, kExponents>& table, float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t exponent = bits >> kMantissaBits & 255U;
    const std::uint64_t fraction = bits & ((1U << kMantissaBits) - 1);
    // Numbers below the least normal one have no leading 1.
    const std::uint64_t mantissa = fraction | (exponent == 0 ? 0U : 1U << kMantissaBits);
    table[exponent] += mantissa * mantissa;
  };
  while (!x.empty()) {
    const std::span<const float> chunk = x.first(std::min(x.size(), kChunk));
    std::size_t i = 0;
    for (; i + kTables <= chunk.size(); i += kTables) {
      for (std::size_t t = 0; t < kTables; ++t) add_to(tables[t], chunk[i + t]);
    }
    for (; i < chunk.size(); ++i) add_to(tables[0], chunk[i]);
    x = x.subspan(chunk.size());
    // The tables are full.
    for (auto& table : tables) {
      for (std::size_t e = 0; e < kExponents; ++e) sums_[e].add({.low = table[e]});
      table.fill(0);
    }
  }
}

void SquareSum::add(const SquareSum& other) {
  for (std::size_t e = 0; e < kExponents; ++e) sums_[e].add(other.sums_[e]);
}

bool SquareSum::is_finite() const {
  return sums_[kInfinite].low == 0 && sums_[kInfinite].high == 0;
}

double SquareSum::total() const {
  if (!is_finite()) return std::numeric_limits<double>::quiet_NaN();
  double total = 0;
  for (std::size_t e = 0; e < kInfinite; ++e) {
    const double sum =
        std::ldexp(static_cast<double>(sums_[e].high), 64) + static_cast<double>(sums_[e].low);
    // A number is mantissa * 2^(exponent - bias - 23), of the least exponent as of the next.
    const int power = std::max(static_cast<int>(e), 1) - 127 - kMantissaBits;
    total += std::ldexp(sum, 2 * power);
  }
  return total;
}

}  // namespace armillary::train
