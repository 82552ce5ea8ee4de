// serve_flags.h: the flags of a prompt of a model, beside those of a problem.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "armillary/predict/cost/inference.h"
#include "cli/problem_flags.h"

namespace armillary::cli {

/// The flags of inference.
struct ServeFlags {
  std::string model;  ///< Empty: not given.
  std::string tp = "1";
};

/// Adds them. Those of the problem are there.
void add_serve_flags(CLI::App& verb, ServeFlags& flags);

/// The prompt of the flags: tokens, sequences, strategy, layout [zigzag] and ranks [all devices]
/// are those of the problem, all else is of the model.
/// @throws InvalidArgument for flags that the model decides, a recipe, and as the parsers.
cost::Inference inference_of(const CLI::App& verb, const ServeFlags& flags,
                             const ProblemFlags& problem, const sim::Cluster& cluster);

}  // namespace armillary::cli
