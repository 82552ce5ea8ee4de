// lr_schedule.h: the learning rate of each step, computed as torchtitan computes it.
//
//   peak        ___________
//             /             \         warm-up, stable, decay
//   0       /                 \__ min_lr_factor * peak
#pragma once

#include <cstdint>

#include "armillary/train/recipe.h"

namespace armillary::train {

/// Factor of the peak learning rate in step 1, 2, .. `steps`. With
/// decay = min(round(steps * decay_ratio), steps - warmup_steps)
/// stable = steps + 1 - warmup_steps - decay:
///
/// (1) step s <= warmup_steps: s / warmup_steps;
/// (2) the next `stable` steps: 1;
/// (3) the i-th step after those: from 1 to min_lr_factor by decay_type at progress i / decay. The
///     minimum itself would be reached in step `steps + 1`, so no step has a rate of 0.
double lr_factor(const Recipe::LrScheduler& scheduler, std::int64_t steps, std::int64_t step);

}  // namespace armillary::train
