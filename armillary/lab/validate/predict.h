// predict.h: from a row of the literature to what the simulator says about it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "armillary/lab/validate/published_run.h"
#include "armillary/lab/validate/row.h"

namespace armillary::validate {

/// A row with its prediction.
struct Prediction {
  std::optional<double> predicted;  ///< Seconds, or a speed-up over ring.
  std::optional<double> published;
  bool is_speedup = false;
  std::string missing;  ///< Reason why there is no prediction.
  std::string refused;  ///< Fault of the row, which is named.

  /// predicted / published - 1, if there are both.
  std::optional<double> error() const;
};

/// Attention of one layer as the row ran it.
/// @throws InvalidArgument for a column without a value that the run needs, or for degrees that do
/// not fit the GPUs, the heads or the batch.
PublishedRun published_run(const PublishedRow& row);

/// The prediction of one row. A row that cannot be predicted (a strategy or cluster that is not
/// modelled or not stated) says why in `missing`.
/// @throws InvalidArgument as published_run(), for a cluster that has no preset, for more GPUs than
/// it has devices, and for what it cannot run.
Prediction predict(const PublishedRow& row);

/// predict() for each row, in their order. Errors stand in `refused`.
std::vector<Prediction> predict(const std::vector<PublishedRow>& rows);

}  // namespace armillary::validate
