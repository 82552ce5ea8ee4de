// The file of a ProblemLog is one JSON object, replaced whole with each new problem:
//
//   {"pid":4711,"problems":[{"since_ns":12,"flags":{"--strategy":"ring","--world":"4", ..}}, ..]}
#include "armillary/host/recorder/problems.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/host/recorder/recorder.h"
#include "armillary/io/run_files.h"

namespace armillary::recorder {
namespace {

constexpr std::int64_t kMostBytes = 64 << 20;

/// A mask as parse_mask() reads it: by a name that a reader knows, if it has one, or its bands.
std::string mask_text(const plan::Mask& mask) {
  std::string documents = "documents";
  std::string bands = "bands";
  for (const plan::Band& band : mask.bands()) {
    documents += fmt::format("{}{}", documents.size() > 9 ? "," : ":", band.q.end - band.q.begin);
    bands += fmt::format("{}{}", bands.size() > 5 ? ";" : ":", to_string(band));
  }
  for (const std::string& text :
       {std::string("full"), std::string("causal"), documents, documents + ",within=full"}) {
    try {
      if (plan::parse_mask(text, {mask.q_len(), mask.kv_len()}) == mask) return text;
    } catch (const InvalidArgument&) {  // The lengths are not those of such a mask.
    }
  }
  return bands;
}

}  // namespace

std::string problems_path(const std::string& run_folder) {
  return run_folder + "/flight/problems.json";
}

ProblemFlags flags_of(const plan::Problem& problem, const std::string& strategy) {
  return {{"--strategy", strategy},
          {"--world", fmt::to_string(problem.world)},
          {"--batch", fmt::to_string(problem.batch)},
          {"--seq", fmt::to_string(problem.mask.q_len())},
          {"--kv-seq", fmt::to_string(problem.mask.kv_len())},
          {"--heads", fmt::to_string(problem.heads)},
          {"--kv-heads", fmt::to_string(problem.kv_heads)},
          {"--head-dim", fmt::to_string(problem.head_dim)},
          {"--value-dim", fmt::to_string(problem.value_dim)},
          {"--dtype", to_string(problem.dtype)},
          {"--mask", mask_text(problem.mask)},
          {"--layout", to_string(problem.layout)},
          {"--transfer-dtype", to_string(problem.transfer_dtype)}};
}

void ProblemLog::begin(const plan::Problem& problem, const std::string& strategy) {
  if (run_folder_.empty()) return;
  RecordedProblem next{.since_ns = monotonic_ns(), .flags = flags_of(problem, strategy)};
  // Layers repeat a problem: only a change is written.
  if (!problems_.empty() && problems_.back().flags == next.flags) return;
  problems_.push_back(std::move(next));
  if (problems_.size() > kKept) problems_.erase(problems_.begin());
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const RecordedProblem& problem : problems_) {
    nlohmann::ordered_json flags = nlohmann::ordered_json::object();
    for (const auto& [name, value] : problem.flags) flags[name] = value;
    list.push_back({{"since_ns", problem.since_ns}, {"flags", std::move(flags)}});
  }
  io::write_file(problems_path(run_folder_),
                 json_text({{"pid", getpid()}, {"problems", std::move(list)}}) + "\n");
}

std::vector<RecordedProblem> read_problems(const std::string& run_folder, std::int64_t pid) {
  const std::string path = problems_path(run_folder);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const JsonRead read = read_json_text(read_input(
      {.where = "problems of a run", .required = "a file of a run", .most_bytes = kMostBytes},
      path));
  if (read.fault) {
    fail<IoError>("{} {}; it is left out if it is removed", quote(path), to_string(*read.fault));
  }
  std::vector<RecordedProblem> problems;
  try {
    const nlohmann::ordered_json& json = read.value;
    // An earlier run in the same folder has left the file: its problems are not those of this run.
    if (json.at("pid").get<std::int64_t>() != pid) return {};
    for (const auto& problem : json.at("problems")) {
      problems.push_back({.since_ns = problem.at("since_ns").get<std::int64_t>()});
      for (const auto& [name, value] : problem.at("flags").items()) {
        problems.back().flags.emplace_back(name, value.get<std::string>());
      }
    }
  } catch (const nlohmann::json::exception&) {
    fail<IoError>("{} is not as a run writes it; it is left out if it is removed", quote(path));
  }
  return problems;
}

}  // namespace armillary::recorder
