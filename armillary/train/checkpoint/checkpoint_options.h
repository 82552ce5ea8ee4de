// checkpoint_options.h: the [checkpoint] section of a recipe.
#pragma once

#include <cstdint>
#include <string>

#include "armillary/core/section.h"

namespace armillary::train {

/// Checkpoints of a run (saver.h).
struct CheckpointOptions {
  bool enable = false;
  std::string folder = "checkpoints";  ///< In job.dump_folder.
  std::int64_t interval = 500;         ///< Steps.
  std::int64_t keep_latest_k = 10;
};

Section section_of(CheckpointOptions& checkpoint);

}  // namespace armillary::train
