// check_rows.h: the rows of a report of `armillary check`, and of `armillary.check` in Python,
// which reads them from here.
//
//   row                  value                                                        bound
//   loss .. outputs      error against one device, over the largest value             kCheckBound
//                        the same against fp32, in 16 bits                            narrow_bound
//   leak                 change of an output that cannot see the token that changed   leak_bound
//   determinism          values with other bits in a second run                       0
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace armillary {

inline constexpr std::string_view kLossRow = "loss";
inline constexpr std::string_view kGradientsRow = "gradients";
inline constexpr std::string_view kLogitsRow = "logits";  ///< Python alone has it.
inline constexpr std::string_view kOutputsRow = "attention outputs";
inline constexpr std::string_view kLeakRow = "leak";
inline constexpr std::string_view kDeterminismRow = "determinism";
/// All rows, in the order of a report.
inline constexpr std::array kCheckRows{kLossRow,    kGradientsRow, kLogitsRow,
                                       kOutputsRow, kLeakRow,      kDeterminismRow};

/// Largest error in fp32 and fp64: the loss is computed in fp32.
inline constexpr double kCheckBound = 1e-5;

/// Largest error in a narrow dtype, for that of one device in this dtype. `eps` is the distance of
/// 1 to the next number. One device may round a value to nearly the exact one by chance, so its
/// error counts as half a unit at least.
constexpr double narrow_bound(double error_of_one_device, double eps) {
  return 2.5 * std::max(error_of_one_device, eps / 2);
}

/// Largest leak for outputs whose dtype has this `eps`: 4 units if it is narrow.
constexpr double leak_bound(double eps) {
  return eps > kCheckBound ? 4 * eps : kCheckBound;
}

}  // namespace armillary
