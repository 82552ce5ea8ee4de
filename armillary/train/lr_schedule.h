// lr_schedule.h: the learning rate of each step, with torchtitan's arithmetic.
//
//   peak        ___________
//             /             \         warm-up, stable, decay
//   0       /                 \__ min_lr_factor * peak
#pragma once

#include <cstdint>

#include "armillary/train/recipe.h"

namespace armillary::train {

/// The factor on the peak learning rate in step 1, 2, ... `steps`. With
/// decay = min(round(steps * decay_ratio), steps - warmup_steps) and stable the rest, plus one:
///
/// (1) step s <= warmup_steps: s / warmup_steps;
/// (2) the `stable` steps after that: 1;
/// (3) the i-th step after those: from 1 to min_lr_factor by decay_type at progress i / decay. The
///     minimum itself is reached only by step `steps + 1`: no step is wasted on a rate of 0.
double lr_factor(const Recipe::LrScheduler& scheduler, std::int64_t steps, std::int64_t step);

}  // namespace armillary::train
