// sanitized.h: is this a build whose code is ten times slower, for it looks after every access?
#pragma once

#include "tests/seed.h"

namespace armillary {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Whether a sanitized build takes a sample of a grid, enough for every path of the code: a
/// sanitizer learns nothing from other numbers on the same path, which release builds check. Not
/// with ARMILLARY_TEST_ALL.
inline bool sanitizer_samples() {
  return kSanitized && !test_all();
}

/// The same, and for what is slow in any build.
inline bool samples(bool slow) {
  return sanitizer_samples() || (slow && !test_all());
}

}  // namespace armillary
