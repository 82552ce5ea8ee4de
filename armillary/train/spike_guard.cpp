#include "armillary/train/spike_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
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

/// Drops the oldest of more than `most`.
void trim(std::vector<double>& values, std::int64_t most) {
  const auto size = static_cast<std::int64_t>(values.size());
  if (size > most) values.erase(values.begin(), values.begin() + (size - most));
}

}  // namespace

SpikeGuard::SpikeGuard(const TrainingOptions& options, RecentSteps recent) : options_(options) {
  if (!is_on()) return;
  recent_ = std::move(recent);
  trim_recent();  // The window may have been longer.
}

void SpikeGuard::trim_recent() {
  trim(recent_.losses, options_.spike_window);
  trim(recent_.norms, options_.spike_window);
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
  recent_.losses.push_back(loss);
  recent_.norms.push_back(grad_norm);
  trim_recent();
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
  BatchOrder more;
  for (std::int64_t batch = first; batch <= last; ++batch) more.skipped_.push_back(batch);
  skip(more);
}

void BatchOrder::skip(const BatchOrder& other) {
  std::vector<std::int64_t> all;
  std::ranges::set_union(skipped_, other.skipped_, std::back_inserter(all));
  skipped_ = std::move(all);
}

}  // namespace armillary::train
