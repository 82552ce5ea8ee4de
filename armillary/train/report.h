// report.h: the metrics of a run, for a reader and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "armillary/io/run_files.h"
#include "armillary/train/recipe.h"
#include "armillary/train/trainer.h"

namespace armillary::train {

/// `step:  1  loss:  5.5452  grad_norm:  1.2345  memory:  0.51GiB  tps: 1,234  tflops: 0.12
/// mfu: 31.20%` as torchtitan prints it, tflops with a digit more; `mfu: -` if there is none.
std::string console_line(const StepMetrics& metrics);

/// step, loss, grad_norm, memory_bytes, tps, tflops, mfu; mfu is null if there is none. Numbers
/// keep all their digits: equal runs have equal loss and grad_norm as text.
nlohmann::json to_json(const StepMetrics& metrics);

/// `[=====>    ] 12/24  0:07 left`, `width` characters between the brackets.
std::string progress_bar(std::int64_t step, std::int64_t steps, double seconds_left,
                         int width = 30);

/// Writes a run's files and prints its lines: recipe.toml and metrics.jsonl in job.dump_folder,
/// every metrics.log_freq-th step and the first to standard output, a progress bar to standard
/// error if that is a terminal. An earlier run's files in the folder are replaced.
class Reporter {
 public:
  /// @throws IoError if the folder cannot be written.
  Reporter(const Recipe& recipe, bool json);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  void report(const StepMetrics& metrics);

 private:
  std::int64_t steps_;
  std::int64_t log_freq_;
  bool json_;
  bool terminal_;
  double begin_s_;
  io::JsonLines metrics_;
};

}  // namespace armillary::train
