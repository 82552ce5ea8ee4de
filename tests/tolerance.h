// tolerance.h: how close is exact. The one home of tolerances; raising one needs a line in
// CHANGELOG.md.
//
// Exact means that only the order of summation may differ. Measured on a scalar model of chunked
// attention (lengths to 2,048, worlds to 13): fp64 errors stay below 6e-15, fp32 below 2.3e-6,
// while one block skipped or counted twice shows at 2.3e-2. Errors are max-norm, relative to the
// largest value.
#pragma once

namespace armillary {

inline constexpr double kFp64Bound = 1e-12;
inline constexpr double kFp32Bound = 1e-5;

/// bf16: error against fp64, over the error of one-device attention in bf16.
inline constexpr double kBf16Ratio = 2.5;

/// Loss and gradient norm of training on P ranks against 1 rank, relative, fp32.
inline constexpr double kTrainBound = 1e-5;

}  // namespace armillary
