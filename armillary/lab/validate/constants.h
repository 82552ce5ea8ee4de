// constants.h: one set of numbers for each cluster of the published rows, beside those of its
// preset: how fast the programs that were measured use it. No row has a number of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "armillary/predict/cost/step.h"

namespace armillary::validate {

/// Numbers of one cluster. Each has its source beside it in constants.cpp, or was fitted on the
/// rows that `fitted` names.
struct Constants {
  std::string id;      ///< As in the column cluster_id.
  std::string preset;  ///< sim::load_cluster() reads it.
  /// Rates of attention kernels, as a share of the curves of the preset's device.
  struct KernelShare {
    double full = 1;    ///< Blocks that the mask shows wholly.
    double causal = 1;  ///< Calls with an edge of the mask in them.
  };
  KernelShare forward = {};
  KernelShare backward = {};
  /// Memory traffic of adding one element of a partial result to its sum, which our kernels do
  /// while they attend and the programs that were measured do afterwards.
  double sum_bytes = 40;
  cost::StepRates step = {};  ///< For training steps.
  /// The rank whose timeline TokenRing's authors published; empty: the last to end counts.
  std::optional<int> shown_rank = {};
  std::vector<std::string> fitted = {};  ///< Ids of rows; `table3_*`: all that begin so.

  bool is_fitted_on(const std::string& row_id) const;
};

/// The numbers of a cluster; defaults and the preset of that name if it has none of its own.
/// @throws InvalidArgument for a cluster that has no preset.
Constants constants(const std::string& cluster_id);

/// All sets, in the order of their ids.
const std::vector<Constants>& all_constants();

/// The preset's cluster with the kernel rates of the constants.
sim::Cluster cluster(const Constants& constants);

}  // namespace armillary::validate
