// checked.h: integer arithmetic that refuses to overflow.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "armillary/core/error.h"

namespace armillary {

/// Product of all factors. @throws InvalidArgument naming `what` if it does not fit in 64 bits.
inline std::int64_t checked_product(std::string_view what,
                                    std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) {
      fail<InvalidArgument>("{}: the product overflows; it must stay below 2^63", what);
    }
  }
  return product;
}

/// Floor of a / b, also for negative a. Requires b > 0.
constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

/// Ceiling of a / b, also for negative a. Requires b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return -floor_div(-a, b);
}

/// Begin of piece i when [0, total) is cut into n pieces as even as possible: i * total / n.
/// Does not overflow for total < 2^62 and n < 2^31.
constexpr std::int64_t piece_begin(std::int64_t total, std::int64_t n, std::int64_t i) {
  return total / n * i + total % n * i / n;
}

/// The divisor of n nearest to `wish`, the smaller of two. Requires n, wish >= 1. Cost: O(wish).
constexpr std::int64_t nearest_divisor(std::int64_t n, std::int64_t wish) {
  std::int64_t below = wish < n ? wish : n;
  while (n % below != 0) --below;
  for (std::int64_t above = wish; above <= n && above - wish < wish - below; ++above) {
    if (n % above == 0) return above;
  }
  return below;
}

}  // namespace armillary
