// run_options.h: the sections of a recipe that have no effect on what is trained: files, deadlines
// and output of a run.
#pragma once

#include <cstdint>
#include <string>

#include "armillary/core/section.h"

namespace armillary::train {

/// Files of the run.
struct JobOptions {
  std::string dump_folder = "runs/default";
  std::string description;
};

/// Deadline of every wait of a rank for another.
struct CommOptions {
  double train_timeout_seconds = 100;
};

/// Output of metrics (metrics_writer.h).
struct MetricsOptions {
  std::int64_t log_freq = 1;
  bool enable_tensorboard = false;
  std::string save_tb_folder = "tensorboard";  ///< In job.dump_folder.
  std::string cluster;  ///< Its simulated step stands beside the measured ones; empty: none.
};

Section section_of(JobOptions& job);
Section section_of(CommOptions& comm);
Section section_of(MetricsOptions& metrics);

}  // namespace armillary::train
