// metrics_writer.h: writes the metrics of a run as text for a reader and as JSON for programs.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "armillary/io/event_file.h"
#include "armillary/io/run_files.h"
#include "armillary/train/step_metrics.h"

namespace armillary::train {

/// `step:  1  loss:  5.5452  grad_norm:  1.2345  lr: 8.00e-04  memory:  0.51GiB  tps: 1,234
/// tflops: 0.12  mfu: 31.20%` as torchtitan prints it, with the learning rate and a digit more of
/// tflops; `mfu: -` if there is none. Behind them `validation_loss:  5.5452` if there is one.
std::string console_line(const StepMetrics& metrics);

/// The fields of StepMetrics by name; mfu is null if there is none, validation_loss is left out.
/// Numbers keep all their digits, so equal runs have equal loss and grad_norm as text.
nlohmann::json to_json(const StepMetrics& metrics);

/// `[=====>    ] 12/24  0:07 left`, with `width` characters between the brackets. Requires steps >
/// 0.
std::string progress_bar(std::int64_t step, std::int64_t steps, double seconds_left,
                         int width = 30);

/// The run whose output is written.
struct MetricsOutput {
  std::string folder;
  std::string recipe;         ///< Text of recipe.toml.
  std::int64_t steps = 1;     ///< Length of the whole run.
  std::int64_t log_freq = 1;  ///< Steps per line.
  bool json = false;          ///< Lines to standard output are JSON too.
  /// Steps that were taken before the run resumed; later lines of metrics.jsonl are dropped, and so
  /// is a line that was cut off.
  std::int64_t steps_before = 0;
  /// Folder in `folder` for event files of TensorBoard; empty: none are written.
  std::string event_folder = {};
  /// Each line of metrics.jsonl, those that are kept of the steps before included.
  std::function<void(const nlohmann::json& line)> on_line = {};
};

/// Output of one run:
///
///   the folder        recipe.toml, and metrics.jsonl with the steps below; replaces earlier files,
///                     but a run that resumes keeps the lines of the steps before; event files
///   standard output   the first step, every log_freq-th, those with validation, and the last
///   standard error    a progress bar, if it is a terminal
///
/// Threads: one.
class MetricsWriter {
 public:
  /// Writes recipe.toml. @throws IoError if the folder cannot be written.
  explicit MetricsWriter(const MetricsOutput& output);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Called after every step, in order.
  void write(const StepMetrics& metrics);

 private:
  std::int64_t steps_before_;
  std::int64_t steps_;
  std::int64_t log_freq_;
  bool json_;
  bool terminal_;   ///< Standard error is one.
  double begin_s_;  ///< Time of the constructor, for the time left.
  io::JsonLines metrics_;
  std::optional<io::EventFile> events_;
  std::function<void(const nlohmann::json&)> on_line_;
};

}  // namespace armillary::train
