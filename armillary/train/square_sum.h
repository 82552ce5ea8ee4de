// square_sum.h: the sum of squares of fp32 numbers without rounding, so the norm of a gradient has
// the same bits however its elements are ordered, cut into pieces and spread over ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace armillary::train {

/// An integer of 128 bits.
struct WideInteger {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  void add(const WideInteger& other) {
    low += other.low;
    high += other.high + (low < other.low ? 1 : 0);
  }
};

/// A value: integer sums of squared mantissas, one for each exponent of fp32. Exact for up to 2^80
/// numbers. Sums of several ranks may travel as bytes.
class SquareSum {
 public:
  /// Adds the squares of all numbers. Cost: about a nanosecond each.
  void add(std::span<const float> x);
  void add(const SquareSum& other);

  /// The sum in fp64, rounded in one fixed order; NaN if a number was NaN or infinite.
  double total() const;
  bool is_finite() const;

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(sums_)); }
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(sums_)); }

 private:
  static constexpr std::size_t kExponents = 256;

  std::array<WideInteger, kExponents> sums_{};  ///< By biased exponent.
};

}  // namespace armillary::train
