// The page is written at the start, every few seconds and at the end; lines and events are written
// by train/metrics_writer.h, which hands its lines to the page too.
#include "cli/torch/run_watch.h"

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/io/run_files.h"
#include "armillary/train/mesh.h"
#include "cli/torch/simulated_step.h"

namespace armillary::cli {
namespace {

std::optional<report::SimulatedStep> step_on_cluster(const train::Recipe& recipe) {
  if (recipe.metrics.cluster.empty()) return std::nullopt;
  try {
    return simulated_step(recipe);
  } catch (const InvalidArgument& error) {
    fail<InvalidArgument>("metrics.cluster = {}, which the page of the run is to simulate: {}",
                          recipe.metrics.cluster, error.what());
  }
}

report::RunFacts facts_of(const train::Recipe& recipe,
                          const std::optional<report::SimulatedStep>& simulated) {
  const MeshShape mesh = train::mesh_of(recipe.parallelism);
  const std::int64_t ep = recipe.parallelism.expert_parallel_degree;
  return {.name = recipe.job.dump_folder,
          .model = recipe.model.name,
          .mesh = fmt::format("dp {} x cp {} x tp {}{}, ZeRO-{}, {}", mesh.dp, mesh.cp, mesh.tp,
                              ep == 1 ? "" : fmt::format(", ep {}", ep), recipe.parallelism.zero,
                              recipe.parallelism.strategy),
          .ranks = mesh.ranks(),
          .steps = recipe.training.steps,
          .simulated = simulated};
}

/// Longest reason of a failure on a page.
constexpr std::size_t kMostReasonBytes = 2000;

}  // namespace

RunWatch::RunWatch(const train::Recipe& recipe, bool json)
    : recipe_(recipe), json_(json), simulated_(step_on_cluster(recipe)) {}

void RunWatch::start(std::int64_t steps_before) {
  writer_.reset();  // Its file is read by the next.
  page_.emplace(facts_of(recipe_, simulated_));
  const train::MetricsOptions& metrics = recipe_.metrics;
  writer_.emplace(
      train::MetricsOutput{.folder = recipe_.job.dump_folder,
                           .recipe = train::print_recipe(recipe_),
                           .steps = recipe_.training.steps,
                           .log_freq = metrics.log_freq,
                           .json = json_,
                           .steps_before = steps_before,
                           .event_folder = metrics.enable_tensorboard ? metrics.save_tb_folder : "",
                           .on_line = [this](const nlohmann::json& line) { page_->add(line); }});
  last_step_ = steps_before;
  for (const auto& [step, text] : notices_) page_->note(step, text);
  write_page(report::RunState::Running);
  is_started_ = true;
}

void RunWatch::step(const train::StepMetrics& metrics) {
  writer_->write(metrics);
  last_step_ = metrics.step;
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - written_;
  if (since.count() >= report::kReloadSeconds) write_again(report::RunState::Running);
}

void RunWatch::note(const std::string& line) {
  notices_.emplace_back(last_step_, line);
  if (page_) page_->note(last_step_, line);
}

void RunWatch::end(report::RunState state) {
  writer_.reset();  // the progress bar ends
  if (is_started_) write_again(state);
}

void RunWatch::fail_with(const std::exception& error) noexcept {
  try {
    writer_.reset();
    if (!is_started_) return;
    write_page(report::RunState::Failed, shorten(error_text(error), kMostReasonBytes));
  } catch (const std::exception&) {  // the failure of the run is told, not this one
  }
}

void RunWatch::write_page(report::RunState state, const std::string& reason) {
  io::write_file(recipe_.job.dump_folder + "/" + kRunPage, page_->html(state, reason));
  written_ = std::chrono::steady_clock::now();
}

// The path was good when the run began: the run fails, its input was not bad.
void RunWatch::write_again(report::RunState state) {
  try {
    write_page(state);
  } catch (const IoError& error) {
    throw Error(error.what());
  }
}

}  // namespace armillary::cli
