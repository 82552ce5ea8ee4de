// step_metrics.h: the numbers of one step, for the trainer that counts them and whoever shows them.
#pragma once

#include <cstdint>
#include <optional>

namespace armillary::train {

/// Metrics of one step. Rates are per rank, as torchtitan's are per device.
struct StepMetrics {
  std::int64_t step = 0;  ///< From 1.
  double loss = 0;        ///< Mean per target, before the update; of words cross-entropy in nats.
  double grad_norm = 0;   ///< 2-norm of the gradient of all parameters, before clipping.
  double lr = 0;          ///< Learning rate of the update.
  std::int64_t memory_bytes = 0;  ///< Peak resident memory of the process so far.
  double tps = 0;                 ///< Tokens per second.
  int ranks = 1;                  ///< Those of the mesh.
  double tflops = 0;              ///< ModelCost::flops per second, in 10^12.
  /// Seconds in which a rank waited for gathers of parameters, sums of gradients and moves of
  /// state, from the sum of the loss in the step before to that in this one; mean over the ranks.
  double exposed_s = 0;
  /// tflops over the measured peak of a rank, in percent. Nothing where they are above it: the peak
  /// is then measured again after the next step.
  std::optional<double> mfu;
  double step_s = 0;  ///< Seconds of the step on rank 0, without validation.
  /// Mean per target of the validation data, behind the update; nothing in steps without
  /// validation.
  std::optional<double> validation_loss;
};

}  // namespace armillary::train
