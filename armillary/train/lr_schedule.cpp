#include "armillary/train/lr_schedule.h"

#include <algorithm>
#include <cmath>

namespace armillary::train {
namespace {

constexpr double kPi = 3.14159265358979323846;

/// 1 at progress 0, 0 at progress 1.
double decay(const std::string& type, double progress) {
  if (type == "linear") return 1 - progress;
  if (type == "sqrt") return 1 - std::sqrt(progress);
  return 0.5 * (1 + std::cos(kPi * progress));
}

}  // namespace

double lr_factor(const Recipe::LrScheduler& scheduler, std::int64_t steps, std::int64_t step) {
  // Warm-up.
  const std::int64_t warmup = scheduler.warmup_steps;
  if (step <= warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  // Stable phase: decay_ratio is of all steps, but the decay cannot begin before the warm-up ends.
  const auto wanted = std::llround(static_cast<double>(steps) * scheduler.decay_ratio);
  const std::int64_t decaying = std::min<std::int64_t>(wanted, steps - warmup);
  const std::int64_t stable = steps + 1 - warmup - decaying;
  if (step <= warmup + stable) return 1;
  // Decay.
  const double progress =
      static_cast<double>(step - warmup - stable) / static_cast<double>(decaying);
  return scheduler.min_lr_factor +
         (1 - scheduler.min_lr_factor) * decay(scheduler.decay_type, progress);
}

}  // namespace armillary::train
