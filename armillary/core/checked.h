// checked.h: arithmetic for sizes: products that refuse to overflow, divisions that round in a
// stated direction, and ways to cut a length into pieces.
//
// Sizes come from the user and are multiplied before anything is allocated, so a product that does
// not fit in 64 bits is an error with a text, not undefined behaviour. The functions after the
// first are constexpr and check nothing: their requirements are the caller's to meet.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "armillary/core/error.h"

namespace armillary {

/// Returns the product of all factors, 1 if there are none. `what` names the product in the error.
/// Factors may be negative. checked_product("bytes", {3, -5, 7}) is -105.
/// @throws InvalidArgument if any partial product, from the left, does not fit in 64 bits.
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

/// Floor of a / b, also for negative a: floor_div(-7, 2) is -4. Requires b > 0.
constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

/// Ceiling of a / b, also for negative a: ceil_div(-7, 2) is -3. Requires b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return -floor_div(-a, b);
}

/// Begin of piece i when [0, total) is cut into n pieces as even as possible: i * total / n,
/// rounded down. Piece i ends at piece_begin(total, n, i + 1). For total 10 and n 4 the pieces
/// begin at 0, 2, 5 and 7. Does not overflow for 0 <= i <= n, total < 2^62 and n < 2^31.
constexpr std::int64_t piece_begin(std::int64_t total, std::int64_t n, std::int64_t i) {
  return total / n * i + total % n * i / n;
}

/// The divisor of n that is nearest to `wish`; of two equally near ones, the smaller. Worked
/// values: nearest_divisor(12, 5) is 4, because 6 is as near; nearest_divisor(12, 100) is 12.
/// Requires n >= 1 and wish >= 1. Cost: O(min(wish, sqrt(n))) divisions.
constexpr std::int64_t nearest_divisor(std::int64_t n, std::int64_t wish) {
  std::int64_t nearest = 1;
  const auto take = [&](std::int64_t divisor) {
    const auto away = [&](std::int64_t d) { return d < wish ? wish - d : d - wish; };
    const bool is_nearer = away(divisor) < away(nearest);
    const bool is_smaller = away(divisor) == away(nearest) && divisor < nearest;
    if (is_nearer || is_smaller) nearest = divisor;
  };
  // Divisors come in pairs; 1 is nearer than any that is twice the wish or more.
  for (std::int64_t d = 1; d <= n / d && d / 2 <= wish; ++d) {
    if (n % d != 0) continue;
    take(d);
    take(n / d);
  }
  return nearest;
}

}  // namespace armillary
