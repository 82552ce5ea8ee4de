#include "armillary/train/spike_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace armillary::train {
namespace {

/// The lower of the two in the middle of an even number.
double median_of(std::vector<double> values) {
  const auto middle = values.begin() + (static_cast<std::ptrdiff_t>(values.size()) - 1) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// The spike of one kind of number; empty if it is none.
std::string spike_of(const char* name, double value, const std::vector<double>& before,
                     double factor) {
  const double median = median_of(before);
  if (!(median > 0 && value > factor * median)) return "";
  return fmt::format("{} {:.4g} is {:.3g} times the median {:.4g} of the {} steps before", name,
                     value, value / median, median, before.size());
}

/// Adds the newest, and drops the oldest of more than `most`.
void add_to(std::vector<double>& values, double value, std::int64_t most) {
  values.push_back(value);
  const auto size = static_cast<std::int64_t>(values.size());
  if (size > most) values.erase(values.begin(), values.begin() + (size - most));
}

}  // namespace

SpikeGuard::SpikeGuard(const TrainingOptions& options, RecentSteps recent) : options_(options) {
  if (is_on()) recent_ = std::move(recent);
}

std::string SpikeGuard::spike(double loss, double grad_norm) const {
  const std::size_t steps = std::min(recent_.losses.size(), recent_.norms.size());
  const bool is_early = static_cast<std::int64_t>(steps) < options_.spike_window;
  if (!is_on() || is_early) return "";
  std::string text = spike_of("loss", loss, recent_.losses, options_.spike_loss_factor);
  if (!text.empty()) return text;
  return spike_of("grad_norm", grad_norm, recent_.norms, options_.spike_norm_factor);
}

void SpikeGuard::take(double loss, double grad_norm) {
  if (!is_on()) return;
  add_to(recent_.losses, loss, options_.spike_window);
  add_to(recent_.norms, grad_norm, options_.spike_window);
}

BatchOrder::BatchOrder(std::vector<std::int64_t> skipped) : skipped_(std::move(skipped)) {}

std::int64_t BatchOrder::batch_of(std::int64_t step) const {
  std::int64_t batch = step;
  for (const std::int64_t skipped : skipped_) {
    if (skipped > batch) break;
    ++batch;
  }
  return batch;
}

void BatchOrder::skip(std::int64_t first, std::int64_t last) {
  for (std::int64_t batch = first; batch <= last; ++batch) skipped_.push_back(batch);
  std::ranges::sort(skipped_);
  const auto twice = std::ranges::unique(skipped_);
  skipped_.erase(twice.begin(), twice.end());
}

void BatchOrder::skip(const BatchOrder& other) {
  for (const std::int64_t batch : other.skipped_) skip(batch, batch);
}

}  // namespace armillary::train
