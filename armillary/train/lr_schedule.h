// lr_schedule.h: the learning rate of each step, computed as torchtitan computes it.
//
//   peak        ___________
//             /             \         warm-up, stable, decay
//   0       /                 \__ min_lr_factor * peak
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

/// Learning rate of a step from 1 to training.steps.
double learning_rate(const Recipe& recipe, std::int64_t step);

/// A line about a run that goes on behind `step` by another schedule: the settings that differ, the
/// rates of the last step taken, the next, and the last. Nothing if the two schedules have the same
/// rates wherever both have a step. Cost: one look at each of those steps.
std::optional<std::string> describe_rate_change(const Recipe& saved, const Recipe& given,
                                                std::int64_t step);

}  // namespace armillary::train
