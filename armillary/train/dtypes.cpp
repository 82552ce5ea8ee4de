#include "armillary/train/dtypes.h"

#include <string>

#include "armillary/core/error.h"

namespace armillary::train {

Dtypes dtypes_of(const TrainingOptions& training) {
  const at::ScalarType master = training.dtype == "float64" ? at::kDouble : at::kFloat;
  const auto narrow = [&](const std::string& name) {
    return name == "bfloat16" ? at::kBFloat16 : master;
  };
  return {.master = master,
          .param = narrow(training.mixed_precision_param),
          .reduce = narrow(training.mixed_precision_reduce)};
}

void check_dtypes(const TrainingOptions& training, std::int64_t replicas) {
  const std::string& param = training.mixed_precision_param;
  const std::string& reduce = training.mixed_precision_reduce;
  if (training.dtype == "float64") {
    if (param != "float64") {
      fail<InvalidArgument>(
          "recipe: training.mixed_precision_param = {} with training.dtype = float64, where "
          "nothing is mixed; float64 is required",
          param);
    }
    if (reduce != "float32") {
      fail<InvalidArgument>(
          "recipe: training.mixed_precision_reduce = {} with training.dtype = float64, where "
          "nothing is mixed; float32, which rounds nothing, is required",
          reduce);
    }
    return;
  }
  if (param == "float64") {
    fail<InvalidArgument>(
        "recipe: training.mixed_precision_param = float64 with training.dtype = {}; float32 or "
        "bfloat16 is required; nearest: training.dtype = float64",
        training.dtype);
  }
  if (reduce != "float32" && replicas == 1) {
    fail<InvalidArgument>(
        "recipe: training.mixed_precision_reduce = {} with dp 1 and cp 1, where no gradient "
        "travels; float32 is required",
        reduce);
  }
}

}  // namespace armillary::train
