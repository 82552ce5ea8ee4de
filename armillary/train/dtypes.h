// dtypes.h: the dtypes of a run: those of [training], as the store, models and the estimate take
// them.
//
//   master  the values that the optimizer updates, their gradients and its state
//   param   the values that models are given, and activations: those of master, or rounded to bf16
//   reduce  gradients on their way over replicas: those of master, or rounded to bf16
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "armillary/train/training_options.h"

namespace armillary::train {

struct Dtypes {
  at::ScalarType master = at::kFloat;  ///< kFloat or kDouble.
  at::ScalarType param = at::kFloat;   ///< That of master, or kBFloat16.
  at::ScalarType reduce = at::kFloat;  ///< Likewise.
};

/// Those that the keys name, which must fit each other (check_dtypes).
Dtypes dtypes_of(const TrainingOptions& training);

/// Checks the dtypes of [training] against each other, and that one in which gradients travel over
/// `replicas` ranks has an effect. @throws InvalidArgument.
void check_dtypes(const TrainingOptions& training, std::int64_t replicas);

}  // namespace armillary::train
