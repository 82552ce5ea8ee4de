// seed.h: what a test samples, and how much of it.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <random>

namespace armillary {

/// ARMILLARY_TEST_ALL is set: nothing is sampled.
inline bool test_all() {
  return std::getenv("ARMILLARY_TEST_ALL") != nullptr;
}

/// Seed of what is sampled: ARMILLARY_TEST_SEED, or a new one. Printed, so that a failure can be
/// met again.
inline unsigned test_seed() {
  static const unsigned seed = [] {
    const char* text = std::getenv("ARMILLARY_TEST_SEED");
    const auto number = text == nullptr ? std::random_device{}()
                                        : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
    fmt::print("ARMILLARY_TEST_SEED={}\n", number);
    return number;
  }();
  return seed;
}

}  // namespace armillary
