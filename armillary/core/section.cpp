// section.cpp: ranges of numbers, each with its words, so that a check and its error cannot differ.
// Both ends of a range are legal, so an open end is the next double.
#include "armillary/core/section.h"

#include <fmt/format.h>

#include <cfloat>
#include <cmath>

namespace armillary {

Range at_least(std::int64_t min) {
  return {static_cast<double>(min), DBL_MAX, fmt::format("at least {}", min)};
}

Range between(std::int64_t min, std::int64_t max) {
  return {static_cast<double>(min), static_cast<double>(max),
          fmt::format("between {} and {}", min, max)};
}

Range above_zero(double max) {
  return {DBL_TRUE_MIN, max, max < DBL_MAX ? fmt::format("above 0, at most {}", max) : "above 0"};
}

Range below_one() {
  return {0, std::nextafter(1.0, 0.0), "at least 0 and below 1"};
}

Range above_one() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {std::nextafter(1.0, kInfinity), kInfinity, "above 1"};
}

}  // namespace armillary
