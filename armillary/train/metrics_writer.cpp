// metrics_writer.cpp: lines, JSON and the progress bar. Lines go to standard output and the bar to
// standard error, so output can be piped while the bar stays on the terminal.
#include "armillary/train/metrics_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <vector>

#include "armillary/core/input_file.h"
#include "armillary/core/json_text.h"
#include "armillary/core/spec.h"

namespace armillary::train {
namespace {

/// Seconds of a clock that never goes back.
double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// 1234567 -> "1,234,567", in every locale.
std::string thousands(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string metrics_path(const MetricsOutput& output) {
  return output.folder + "/metrics.jsonl";
}

/// The lines of the steps up to `last`, of a file that may not be there.
std::string lines_until(const std::string& path, std::int64_t last) {
  std::string head;
  if (last == 0) return head;
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::status(path, error))) return head;
  const std::string text = read_input({.where = "metrics", .required = "a file of lines"}, path);
  for (const std::string_view line : split(text, '\n')) {
    // A run that was killed may leave half a line, at the end of the file.
    const JsonRead read = read_json_text(line);
    const bool has_step = !read.fault && read.value.is_object() && read.value.contains("step") &&
                          read.value["step"].is_number_integer();
    if (has_step && read.value["step"].get<std::int64_t>() <= last) {
      head.append(line).push_back('\n');
    }
  }
  return head;
}

/// The scalars of a step under the names of to_json().
void write_event(io::EventFile& events, const StepMetrics& metrics) {
  std::vector<io::EventScalar> scalars{
      {"loss", metrics.loss},     {"grad_norm", metrics.grad_norm},
      {"lr", metrics.lr},         {"memory_bytes", static_cast<double>(metrics.memory_bytes)},
      {"tps", metrics.tps},       {"tflops", metrics.tflops},
      {"step_s", metrics.step_s}, {"exposed_s", metrics.exposed_s}};
  if (metrics.mfu) scalars.push_back({"mfu", *metrics.mfu});
  if (metrics.validation_loss) scalars.push_back({"validation_loss", *metrics.validation_loss});
  events.write(metrics.step, scalars);
}

/// Terminal escape: back to the start of the line, and erase it.
constexpr const char* kEraseLine = "\r\033[K";

}  // namespace

std::string console_line(const StepMetrics& metrics) {
  // Columns are wide enough to line up in a run of fewer than 100 steps.
  const double gib = static_cast<double>(metrics.memory_bytes) / (1024.0 * 1024.0 * 1024.0);
  std::string line = fmt::format(
      "step: {:2}  loss: {:7.4f}  grad_norm: {:7.4f}  lr: {:.2e}  memory: {:5.2f}GiB  tps: {}  "
      "tflops: {:.3f}  mfu: {}",
      metrics.step, metrics.loss, metrics.grad_norm, metrics.lr, gib,
      thousands(std::llround(metrics.tps)), metrics.tflops,
      metrics.mfu ? fmt::format("{:.2f}%", *metrics.mfu) : "-");
  if (metrics.validation_loss) {
    line += fmt::format("  validation_loss: {:7.4f}", *metrics.validation_loss);
  }
  return line;
}

nlohmann::json to_json(const StepMetrics& metrics) {
  nlohmann::json json{{"step", metrics.step},
                      {"loss", metrics.loss},
                      {"grad_norm", metrics.grad_norm},
                      {"lr", metrics.lr},
                      {"memory_bytes", metrics.memory_bytes},
                      {"tps", metrics.tps},
                      {"ranks", metrics.ranks},
                      {"tflops", metrics.tflops},
                      {"step_s", metrics.step_s},
                      {"exposed_s", metrics.exposed_s},
                      {"mfu", metrics.mfu ? nlohmann::json(*metrics.mfu) : nlohmann::json()}};
  if (metrics.validation_loss) json["validation_loss"] = *metrics.validation_loss;
  return json;
}

std::string progress_bar(std::int64_t step, std::int64_t steps, double seconds_left, int width) {
  // The arrow head is there until the bar is full.
  const auto columns = static_cast<int>(step * width / steps);
  std::string bar(static_cast<std::size_t>(columns), '=');
  if (columns < width) bar += '>';
  const auto left = std::llround(seconds_left);
  return fmt::format("[{:<{}}] {}/{}  {}:{:02} left", bar, width, step, steps, left / 60,
                     left % 60);
}

MetricsWriter::MetricsWriter(const MetricsOutput& output)
    : steps_before_(output.steps_before),
      steps_(output.steps),
      log_freq_(output.log_freq),
      json_(output.json),
      terminal_(isatty(STDERR_FILENO) == 1),
      begin_s_(now_s()),
      metrics_(metrics_path(output), lines_until(metrics_path(output), output.steps_before)),
      on_line_(output.on_line) {
  io::write_file(output.folder + "/recipe.toml", output.recipe);
  if (!output.event_folder.empty()) {
    events_.emplace(output.folder + "/" + output.event_folder, output.steps_before);
  }
  if (!on_line_) return;
  const std::string lines_before = lines_until(metrics_path(output), output.steps_before);
  for (const std::string_view line : split(lines_before, '\n')) {
    if (!line.empty()) on_line_(read_json_text(line).value);
  }
}

MetricsWriter::~MetricsWriter() {
  if (terminal_) std::fputs(kEraseLine, stderr);
}

void MetricsWriter::write(const StepMetrics& metrics) {
  // The bar is erased before the line of the step, and drawn again below it.
  if (terminal_) std::fputs(kEraseLine, stderr);
  if (metrics.step == 1 || metrics.step == steps_ || metrics.step % log_freq_ == 0 ||
      metrics.validation_loss) {
    const nlohmann::json line = to_json(metrics);
    metrics_.write(line);
    fmt::print("{}\n", json_ ? line.dump() : console_line(metrics));
    std::fflush(stdout);
    if (events_) write_event(*events_, metrics);
    if (on_line_) on_line_(line);
  }
  if (terminal_) {
    // Time left, if the other steps take as long as those so far.
    const double per_step =
        (now_s() - begin_s_) / static_cast<double>(metrics.step - steps_before_);
    fmt::print(
        stderr, "{}",
        progress_bar(metrics.step, steps_, per_step * static_cast<double>(steps_ - metrics.step)));
    std::fflush(stderr);
  }
}

}  // namespace armillary::train
