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
std::vector<std::string> schedule_settings(const RunRates& run, const RunRates& other) {
  std::vector<std::string> differing;
  for (const std::string& line : run.settings) {
    const bool makes_it = line.starts_with("training.steps ") ||
                          line.starts_with("optimizer.lr ") || line.starts_with("lr_scheduler.");
    const bool is_shared = std::ranges::find(other.settings, line) != other.settings.end();
    if (makes_it && !is_shared) differing.push_back(line);
  }
  return differing;
}

}  // namespace

Section section_of(LrScheduleOptions& s) {
  return {
      "lr_scheduler",
      {
          {"warmup_steps", &s.warmup_steps, "linear rise", at_least(0)},
          {"decay_ratio", &s.decay_ratio, "part of the steps, at the end, that decay",
           between(0, 1)},
          {"decay_type", &s.decay_type, "shape of the decay", Names{"linear", "sqrt", "cosine"}},
          {"min_lr_factor", &s.min_lr_factor, "lr at the end / peak lr", between(0, 1)},
      }};
}

double lr_factor(const LrScheduleOptions& scheduler, std::int64_t steps, std::int64_t step) {
  // Warm-up.
  const std::int64_t warmup = scheduler.warmup_steps;
  if (step <= warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  // Stable phase: decay_ratio is of all steps, but the decay cannot begin before the warm-up ends.
  const auto decay_steps = std::llround(static_cast<double>(steps) * scheduler.decay_ratio);
  const std::int64_t decaying = std::min<std::int64_t>(decay_steps, steps - warmup);
  const std::int64_t stable = steps + 1 - warmup - decaying;
  if (step <= warmup + stable) return 1;
  // Decay.
  const double progress =
      static_cast<double>(step - warmup - stable) / static_cast<double>(decaying);
  return scheduler.min_lr_factor +
         (1 - scheduler.min_lr_factor) * decay(scheduler.decay_type, progress);
}

double LearningRates::at(std::int64_t step) const {
  return peak * lr_factor(schedule, steps, step);
}

std::optional<std::string> describe_rate_change(const RunRates& saved, const RunRates& current,
                                                std::int64_t step) {
  const std::int64_t common = std::min(saved.rates.steps, current.rates.steps);
  std::int64_t first = 1;
  while (first <= common && saved.rates.at(first) == current.rates.at(first)) ++first;
  if (first > common) return std::nullopt;
  // Each side with its keys and rates, so that a reader sees which one the run is to have.
  const auto side = [&](const RunRates& run, const RunRates& other) {
    std::vector<std::string> rates;
    for (const std::int64_t at : std::set{step, step + 1, run.rates.steps}) {
      if (at > run.rates.steps) continue;
      rates.push_back(fmt::format("{:.4g} in step {}", run.rates.at(at), at));
    }
    return fmt::format("{}: {}", fmt::join(schedule_settings(run, other), ", "),
                       fmt::join(rates, ", "));
  };
  return fmt::format("checkpoint: learning rates are not those of the run so far; was {}; is {}",
                     side(saved, current), side(current, saved));
}

}  // namespace armillary::train
