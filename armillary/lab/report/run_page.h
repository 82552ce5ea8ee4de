// run_page.h: a run of training as one HTML file that is written anew while it goes on.
//
//   lines of metrics.jsonl --add--> RunPage --html--> a page without any reference to the network
//
// The page has loss and validation loss, norm, learning rate, tokens per second, memory, and the
// measured step and its exposed communication beside the simulated ones. It loads itself again
// while the run goes on, for a page in a file cannot read other files.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace armillary::report {

/// One step as it was simulated.
struct SimulatedStep {
  std::string cluster;
  double step_s = 0;
  double exposed_s = 0;     ///< As StepMetrics has it.
  double tokens_per_s = 0;  ///< Those of all ranks.
};

/// The facts of a run that no line of metrics has.
struct RunFacts {
  std::string name;
  std::string model;
  std::string mesh;
  int ranks = 1;
  std::int64_t steps = 1;  ///< Length of the whole run.
  std::optional<SimulatedStep> simulated = {};
};

enum class RunState : std::uint8_t { Running, Done, Stopped, Failed };
std::string_view to_string(RunState state);  ///< "running", "done", "stopped", "failed"

/// Seconds after which a page of a run that goes on loads itself again.
inline constexpr double kReloadSeconds = 5;

/// Lines of a run that a page shows. It shows 4,000 at most: of neighbours that become one, the
/// line with the highest loss stays, so that spikes are seen. Threads: one.
class RunPage {
 public:
  explicit RunPage(RunFacts facts);

  /// A line of metrics.jsonl, in the order of steps. Numbers that are not there are left out.
  void add(const nlohmann::json& line);
  /// A line for the reader, told after a step.
  void note(std::int64_t step, std::string text);

  /// The page. `reason` says why the run failed. Its data are one JSON object: name, model, mesh,
  /// ranks, steps, state, reason, written_s (since 1970), reload_s (0: the run is over), simulated
  /// (null without), series (lists by key), validation (step, loss), notices ([step, text]).
  std::string html(RunState state, std::string_view reason = {}) const;

 private:
  struct PageLine {
    std::int64_t step = 0;
    // NaN: not there.
    double loss = 0;
    double grad_norm = 0;
    double lr = 0;
    double tps = 0;
    double memory_bytes = 0;
    double step_s = 0;
    double exposed_s = 0;
    double ranks = 1;
  };
  /// Makes each two neighbours one.
  void thin_out();
  nlohmann::ordered_json series() const;

  RunFacts facts_;
  std::vector<PageLine> lines_;
  PageLine newest_;
  std::int64_t added_ = 0;   ///< Lines so far.
  std::int64_t stride_ = 1;  ///< Lines of the run that one of `lines_` stands for.
  std::vector<std::pair<std::int64_t, double>> validation_;
  std::vector<std::pair<std::int64_t, std::string>> notices_;
};

}  // namespace armillary::report
