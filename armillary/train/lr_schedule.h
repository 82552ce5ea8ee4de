// lr_schedule.h: the learning rate of each step, computed as torchtitan computes it.
//
//   peak        ___________
//             /             \         warm-up, stable, decay
//   0       /                 \__ min_lr_factor * peak
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "armillary/core/section.h"

namespace armillary::train {

/// The [lr_scheduler] section of a recipe.
struct LrScheduleOptions {
  std::int64_t warmup_steps = 10;
  double decay_ratio = 1.0;
  std::string decay_type = "cosine";
  double min_lr_factor = 0.1;
};

Section section_of(LrScheduleOptions& scheduler);

/// Factor of the peak learning rate in step 1, 2, .. `steps`. With
/// decay = min(round(steps * decay_ratio), steps - warmup_steps)
/// stable = steps + 1 - warmup_steps - decay:
///
/// (1) step s <= warmup_steps: s / warmup_steps;
/// (2) the next `stable` steps: 1;
/// (3) the i-th step after those: from 1 to min_lr_factor by decay_type at progress i / decay. The
///     minimum itself would be reached in step `steps + 1`, so no step has a rate of 0.
double lr_factor(const LrScheduleOptions& scheduler, std::int64_t steps, std::int64_t step);

/// The learning rates of a run.
struct LearningRates {
  double peak = 0;
  LrScheduleOptions schedule;
  std::int64_t steps = 1;  ///< The length of the run.

  double at(std::int64_t step) const;  ///< The rate of a step from 1 to `steps`.
};

/// The rates of a run and the lines of its recipe, "training.steps = 50".
struct RunRates {
  LearningRates rates;
  std::vector<std::string> settings;
};

/// A line about a run that goes on behind `step` by another schedule: the settings that differ, the
/// rates of the last step taken, the next, and the last. Nothing if the two schedules have the same
/// rates wherever both have a step. Cost: one look at each of those steps.
std::optional<std::string> describe_rate_change(const RunRates& saved, const RunRates& current,
                                                std::int64_t step);

}  // namespace armillary::train
