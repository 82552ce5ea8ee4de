#include "armillary/train/lr_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace armillary::train {
namespace {

constexpr double kPi = 3.14159265358979323846;

/// 1 at progress 0, 0 at progress 1.
double decay(const std::string& type, double progress) {
  if (type == "linear") return 1 - progress;
  if (type == "sqrt") return 1 - std::sqrt(progress);
  return 0.5 * (1 + std::cos(kPi * progress));
}

/// The settings that make the schedule and differ from those of another recipe.
std::vector<std::string> schedule_settings(const Recipe& recipe, const Recipe& other) {
  const std::vector<std::string> others = settings(other);
  std::vector<std::string> differing;
  for (const std::string& line : settings(recipe)) {
    const bool makes_it = line.starts_with("training.steps ") ||
                          line.starts_with("optimizer.lr ") || line.starts_with("lr_scheduler.");
    if (makes_it && std::ranges::find(others, line) == others.end()) differing.push_back(line);
  }
  return differing;
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

double learning_rate(const Recipe& recipe, std::int64_t step) {
  return recipe.optimizer.lr * lr_factor(recipe.lr_scheduler, recipe.training.steps, step);
}

std::optional<std::string> describe_rate_change(const Recipe& saved, const Recipe& given,
                                                std::int64_t step) {
  const std::int64_t common = std::min(saved.training.steps, given.training.steps);
  std::int64_t first = 1;
  while (first <= common && learning_rate(saved, first) == learning_rate(given, first)) ++first;
  if (first > common) return std::nullopt;
  // Each side with its keys and rates, so that a reader sees which one the run is to have.
  const auto side = [&](const Recipe& recipe, const Recipe& other) {
    std::vector<std::string> rates;
    for (const std::int64_t at : std::set{step, step + 1, recipe.training.steps}) {
      if (at > recipe.training.steps) continue;
      rates.push_back(fmt::format("{:.4g} in step {}", learning_rate(recipe, at), at));
    }
    return fmt::format("{}: {}", fmt::join(schedule_settings(recipe, other), ", "),
                       fmt::join(rates, ", "));
  };
  return fmt::format("checkpoint: learning rates are not those of the run so far; was {}; is {}",
                     side(saved, given), side(given, saved));
}

}  // namespace armillary::train
