// run_folder.h: folders of runs as `armillary train` leaves them, and their numbers for a table.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "armillary/core/mesh_shape.h"

namespace armillary::report {

/// The numbers of a run by which runs are compared.
struct RunSummary {
  std::string folder;
  std::string model;  ///< model.name of its recipe.
  MeshShape mesh;
  std::int64_t zero = 0;
  std::int64_t steps = 0;  ///< Length of the whole run, training.steps.
  std::int64_t step = 0;   ///< That of the last line; 0: there is none.
  std::optional<double> loss = {};
  std::optional<double> validation_loss = {};  ///< The last one.
  /// The median of all lines but the first, whose step takes longer, of all ranks.
  std::optional<double> tokens_per_s = {};
  std::optional<double> memory_bytes = {};  ///< The most of any line.
};

/// The folders of runs at a path: itself if it has a recipe.toml, else those below it, sorted,
/// without folders inside runs. @throws IoError if it is no folder or cannot be read;
/// InvalidArgument if there is none.
std::vector<std::string> find_runs(const std::string& path);

/// The numbers of one. A line that was cut off, the last, is left out. @throws IoError if a file
/// cannot be read; InvalidArgument for a recipe that is no TOML or has degrees that are no numbers,
/// and for a line that is no JSON, with its number.
RunSummary summarize(const std::string& folder);

/// A Markdown table of runs.
std::string describe(const std::vector<RunSummary>& runs);
/// One object; null for a number that is not there.
nlohmann::ordered_json to_json(const RunSummary& run);

}  // namespace armillary::report
