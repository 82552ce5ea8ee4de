// optimizer_options.h: the [optimizer] section of a recipe.
#pragma once

#include <string>

#include "armillary/core/section.h"

namespace armillary::train {

/// AdamW (optimizer.h).
struct OptimizerOptions {
  std::string name = "AdamW";
  double lr = 3e-3;  ///< At the peak of the schedule (lr_schedule.h).
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::string state_device = "device";
  bool state_on_host() const { return state_device == "host"; }
};

Section section_of(OptimizerOptions& optimizer);

}  // namespace armillary::train
