// A recipe is read here for its mesh and its model alone, by their keys: the reader of recipes
// needs libtorch.
#include "armillary/lab/report/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/json_text.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/predict/sim/toml_table.h"

namespace armillary::report {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecipe = "recipe.toml";
constexpr const char* kMetrics = "metrics.jsonl";

bool is_run(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kRecipe, error);
}

/// The value of a key of a recipe; `otherwise` if it is not there.
template <class Value>
Value value_of(const toml::table& recipe, const std::string& origin, std::string_view section,
               std::string_view key, const Value& otherwise) {
  const auto node = recipe[section][key];
  if (!node) return otherwise;
  const auto value = node.template value_exact<Value>();
  if (!value) {
    fail<InvalidArgument>("runs: {} has {}.{} of another kind; a recipe is required",
                          excerpt(origin), section, key);
  }
  return *value;
}

/// The mesh of a recipe.
MeshShape mesh_of(const toml::table& recipe, const std::string& origin) {
  constexpr std::int64_t kMostRanks = 1024;
  std::int64_t ranks = 1;
  const auto degree = [&](std::string_view axis) {
    const auto along = value_of<std::int64_t>(recipe, origin, "parallelism", axis, 1);
    if (along < 1 || along > kMostRanks / ranks) {
      fail<InvalidArgument>(
          "runs: {} has parallelism.{} = {} beside {} ranks of other axes; at least 1 and at most "
          "{} ranks are required",
          excerpt(origin), axis, along, ranks, kMostRanks);
    }
    ranks *= along;
    return static_cast<int>(along);
  };
  const int shards = degree("data_parallel_shard_degree");
  const int copies = degree("data_parallel_replicate_degree");
  const int cp = degree("context_parallel_degree");
  return {.dp = shards * copies, .cp = cp, .tp = degree("tensor_parallel_degree")};
}

void read_recipe(RunSummary& run) {
  const std::string path = run.folder + "/" + kRecipe;
  const std::string text = read_input(
      {.where = "runs", .required = "a recipe", .most_bytes = kMostConfigurationBytes}, path);
  const toml::table recipe = sim::parse_toml("runs", text, path);
  run.model = value_of<std::string>(recipe, path, "model", "name", "");
  run.steps = value_of<std::int64_t>(recipe, path, "training", "steps", 0);
  run.zero = value_of<std::int64_t>(recipe, path, "parallelism", "zero", 1);
  run.mesh = mesh_of(recipe, path);
}

/// The lines of metrics; none without the file, before the first step.
std::vector<nlohmann::ordered_json> lines_of(const std::string& folder) {
  const std::string path = folder + "/" + kMetrics;
  std::vector<nlohmann::ordered_json> lines;
  std::error_code error;
  if (!fs::exists(path, error)) return lines;
  const std::string text = read_input({.where = "runs", .required = "a file of lines"}, path);
  const std::vector<std::string_view> parts = split(text, '\n');
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {  // what is behind the last end was cut off
    JsonRead read = read_json_text(parts[i]);
    const bool has_step = !read.fault && read.value.is_object() && read.value.contains("step") &&
                          read.value["step"].is_number_integer();
    if (!has_step) {
      fail<InvalidArgument>(
          "runs: {}:{} is no line of metrics; a JSON object with `step` is "
          "required",
          excerpt(path), i + 1);
    }
    lines.push_back(std::move(read.value));
  }
  return lines;
}

std::optional<double> number_in(const nlohmann::ordered_json& line, const char* key) {
  const auto entry = line.find(key);
  if (entry == line.end() || !entry->is_number()) return std::nullopt;
  return entry->get<double>();
}

void read_metrics(RunSummary& run) {
  const std::vector<nlohmann::ordered_json> lines = lines_of(run.folder);
  if (lines.empty()) return;
  run.step = lines.back()["step"].get<std::int64_t>();
  run.loss = number_in(lines.back(), "loss");
  std::vector<double> rates;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].contains("validation_loss")) {
      run.validation_loss = number_in(lines[i], "validation_loss");  // null: not finite
    }
    const auto memory = number_in(lines[i], "memory_bytes");
    if (memory) run.memory_bytes = std::max(*memory, run.memory_bytes.value_or(0));
    const auto rate = number_in(lines[i], "tps");
    const double ranks = number_in(lines[i], "ranks").value_or(run.mesh.ranks());
    if (rate && (i > 0 || lines.size() == 1)) rates.push_back(ranks * *rate);
  }
  if (rates.empty()) return;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::ranges::nth_element(rates, middle);
  run.tokens_per_s = *middle;
}

/// `dp 2 x tp 4`: the axes above 1.
std::string mesh_text(const MeshShape& mesh) {
  std::string text;
  for (const MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", to_string(axis), mesh.size(axis));
  }
  return text.empty() ? "1 rank" : text;
}

}  // namespace

std::vector<std::string> find_runs(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    fail<IoError>("runs: {} is no folder; the folder of a run, or one with runs, is required",
                  quote(path));
  }
  if (is_run(path)) return {path};
  std::vector<std::string> runs;
  for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    if (!entry->is_directory(gone) || !is_run(entry->path())) continue;
    runs.push_back(entry->path().string());
    entry.disable_recursion_pending();  // checkpoints have recipes too
  }
  if (error) {
    fail<IoError>("runs: {} cannot be read ({}); a readable folder is required", quote(path),
                  error.message());
  }
  if (runs.empty()) {
    fail<InvalidArgument>("runs: {} has no run below it; a folder with {} is required", quote(path),
                          kRecipe);
  }
  std::ranges::sort(runs);
  return runs;
}

RunSummary summarize(const std::string& folder) {
  RunSummary run{.folder = folder, .model = "", .mesh = {}};
  read_recipe(run);
  read_metrics(run);
  return run;
}

std::string describe(const std::vector<RunSummary>& runs) {
  const auto text = [](const std::optional<double>& number, int digits, double unit = 1) {
    return number ? fmt::format("{:.{}f}", *number / unit, digits) : std::string("-");
  };
  constexpr double kGib = 1 << 30;
  std::string table =
      "| run | model | mesh | ZeRO | step | loss | validation | tokens/s | memory GiB |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  for (const RunSummary& run : runs) {
    table += fmt::format("| {} | {} | {} | {} | {} of {} | {} | {} | {} | {} |\n",
                         excerpt(run.folder), excerpt(run.model), mesh_text(run.mesh), run.zero,
                         run.step, run.steps, text(run.loss, 4), text(run.validation_loss, 4),
                         text(run.tokens_per_s, 0), text(run.memory_bytes, 2, kGib));
  }
  return table;
}

nlohmann::ordered_json to_json(const RunSummary& run) {
  using Json = nlohmann::ordered_json;
  const auto number = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json();
  };
  return {{"folder", run.folder},
          {"model", run.model},
          {"mesh", {{"dp", run.mesh.dp}, {"cp", run.mesh.cp}, {"tp", run.mesh.tp}}},
          {"ranks", run.mesh.ranks()},
          {"zero", run.zero},
          {"step", run.step},
          {"steps", run.steps},
          {"loss", number(run.loss)},
          {"validation_loss", number(run.validation_loss)},
          {"tokens_per_s", number(run.tokens_per_s)},
          {"memory_bytes", number(run.memory_bytes)}};
}

}  // namespace armillary::report
