// spike_guard.h: steps whose loss or gradient norm jumps, and the batches that are left out after a
// rollback. All ranks have equal losses and norms, so all judge alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/train/training_options.h"

namespace armillary::train {

/// Losses and norms of the newest steps, the last one last. Checkpoints hold them, so that a run
/// that resumes judges as one that never stopped.
struct RecentSteps {
  std::vector<double> losses;
  std::vector<double> norms;

  bool operator==(const RecentSteps&) const = default;
};

/// Judges the steps of a run, in order. Threads: that of the rank.
class SpikeGuard {
 public:
  explicit SpikeGuard(const TrainingOptions& options, RecentSteps recent = {});

  /// Whether there is a guard.
  bool is_on() const { return options_.spike_guard != "none"; }
  /// The spike of a step: "loss 9.1 is 4.14 times the median 2.2 of the 32 steps before"; empty if
  /// it is none, if there is no guard, or before training.spike_window steps. Requires finite
  /// numbers. Cost: O(spike_window).
  std::string spike(double loss, double grad_norm) const;
  /// After a step that was taken.
  void take(double loss, double grad_norm);
  const RecentSteps& recent() const { return recent_; }

 private:
  void trim_recent();

  const TrainingOptions& options_;
  RecentSteps recent_;
};

/// The batches of a run by step: 1, 2, .. without those that are left out.
class BatchOrder {
 public:
  BatchOrder() = default;
  /// `skipped` are left out; ascending.
  explicit BatchOrder(std::vector<std::int64_t> skipped);

  /// The number of the batch that a step reads, from 1.
  std::int64_t batch_of(std::int64_t step) const;
  /// Leaves out the batches from `first` to `last` too.
  void skip(std::int64_t first, std::int64_t last);
  /// Leaves out those of another order too.
  void skip(const BatchOrder& other);
  const std::vector<std::int64_t>& skipped() const { return skipped_; }

 private:
  std::vector<std::int64_t> skipped_;
};

}  // namespace armillary::train
