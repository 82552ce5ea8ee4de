// tune.h: the verb `tune`, whose --measure needs libtorch: torch/measure.cpp gives it the function
// that runs layers.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "armillary/host/launch/engine.h"
#include "armillary/predict/tune/answer.h"

namespace armillary::cli {

/// The flags of --measure.
struct MeasureFlags {
  bool active = false;
  std::string count = "4";  ///< Candidates.
  std::string seconds = "2";
  launch::EngineFlags engine;
};

/// Searches, runs the best few candidates on ranks, and keeps the answer if `caches`. Nothing on
/// processes that do not print.
using MeasureAnswer = std::optional<tune::Answer> (*)(const tune::Question& question,
                                                      const MeasureFlags& flags, bool caches);

/// Adds the verb. `measure` is null in a program without libtorch; `engine` becomes the flags that
/// say what ranks are, which live as long as the verb.
CLI::App* add_tune_with(CLI::App& app, int& exit_code, MeasureAnswer measure,
                        launch::EngineFlags*& engine);

}  // namespace armillary::cli
