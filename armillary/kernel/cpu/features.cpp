#include "armillary/kernel/cpu/features.h"

#include <cstddef>
#include <span>

#include "armillary/kernel/dropout.h"

namespace armillary::kernel::cpu {

void fill_dropout(const TileScore& score, const RowKeys& keys, float* factors) {
  const auto count = static_cast<std::size_t>(keys.count);
  score.dropout->fill(score.q_positions[keys.row], std::span(score.k_positions + keys.first, count),
                      std::span(factors, count));
}

}  // namespace armillary::kernel::cpu
