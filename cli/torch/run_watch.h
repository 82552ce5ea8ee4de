// run_watch.h: everything that rank 0 shows of a run while it trains: lines, metrics.jsonl, event
// files of TensorBoard and the page run.html.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/lab/report/run_page.h"
#include "armillary/train/metrics_writer.h"
#include "armillary/train/recipe.h"

namespace armillary::cli {

/// Name of the page in the run folder.
inline constexpr const char* kRunPage = "run.html";

/// Does nothing before start(), which processes of other ranks never call. Threads: one.
class RunWatch {
 public:
  /// `recipe` must outlive it. `json`: lines to standard output are JSON. @throws as
  /// simulated_step, if metrics.cluster names a cluster.
  RunWatch(const train::Recipe& recipe, bool json);

  /// Begins the files of the run, or of a part behind a rollback, after so many steps.
  /// @throws IoError if a file cannot be written.
  void start(std::int64_t steps_before);
  /// A step that was taken. The page is written every report::kReloadSeconds. @throws Error if a
  /// file cannot be written any more.
  void step(const train::StepMetrics& metrics);
  /// A line for the reader of the page.
  void note(const std::string& line);
  /// Writes the page for the last time. @throws as step().
  void end(report::RunState state);
  /// The same for a run that fails; what cannot be written is left.
  void fail_with(const std::exception& error) noexcept;

 private:
  void write_page(report::RunState state, const std::string& reason = "");
  void write_again(report::RunState state);

  const train::Recipe& recipe_;
  const bool json_;
  const std::optional<report::SimulatedStep> simulated_;
  std::optional<train::MetricsWriter> writer_;
  std::optional<report::RunPage> page_;
  bool is_started_ = false;
  std::chrono::steady_clock::time_point written_;  ///< When the page was.
  std::int64_t last_step_ = 0;
  std::vector<std::pair<std::int64_t, std::string>> notices_;  ///< With the step before.
};

}  // namespace armillary::cli
