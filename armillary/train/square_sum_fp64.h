// square_sum_fp64.h: the sum of squares of fp64 numbers without rounding, as square_sum.h has it
// for fp32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "armillary/train/square_sum.h"

namespace armillary::train {

/// A value of 96 KiB, on the heap: a square of a 53-bit mantissa is three products of its halves,
/// each summed for each exponent of fp64. Exact for up to 2^73 numbers. Sums of several ranks may
/// travel as bytes.
class SquareSumFp64 {
 public:
  SquareSumFp64() : sums_(kExponents) {}

  /// Adds the squares of all numbers. Cost: some nanoseconds each.
  void add(std::span<const double> x);
  void add(const SquareSumFp64& other);

  /// The sum in fp64, rounded in one fixed order; NaN if a number was NaN or infinite, infinite if
  /// it is above all numbers.
  double total() const;
  bool is_finite() const;

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(sums_)); }
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(sums_)); }

 private:
  static constexpr std::size_t kExponents = 2048;
  /// The mantissa is high 2^27 + low, and its square high^2 2^54 + 2 high low 2^27 + low^2.
  static constexpr std::size_t kProducts = 3;

  std::vector<std::array<WideInteger, kProducts>> sums_;  ///< By biased exponent; of low^2 first.
};

}  // namespace armillary::train
