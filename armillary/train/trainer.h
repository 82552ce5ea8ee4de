// trainer.h: trains a model on packed text, every sequence spread over the ranks.
//
//   step:  sequence -> shard -> forward -> backward -> sum gradients -> clip -> AdamW
//          \_____ per rank, attention over all ranks _____/  \_______ replicas stay equal _______/
//
// Ranks are threads of this process with one computing thread each. Every rank holds the whole
// model and its own tokens of each sequence. The loss is the sum over all target tokens of the step
// divided by their number, so it and the gradients do not depend on the number of ranks, up to
// rounding. Every plan is proved before it runs (proof/together.h), that of a step beside the
// step before.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "armillary/train/data.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// What one step was like. Rates are per rank, as torchtitan's are per device.
struct StepMetrics {
  std::int64_t step = 0;  ///< From 1.
  double loss = 0;        ///< Mean cross-entropy per target token, in nats, before the update.
  double grad_norm = 0;   ///< 2-norm of the gradient of all parameters, before clipping.
  std::int64_t memory_bytes = 0;  ///< Peak resident memory of the process so far.
  double tps = 0;                 ///< Tokens per second.
  double tflops = 0;              ///< 10^12 floating point operations of the model per second:
                                  ///< matrices, and visible query-key pairs only.
  std::optional<double> mfu;      ///< tflops over the measured peak of a rank, in percent.
};

/// Runs the recipe's steps and calls `on_step` after each, on the thread of rank 0.
///
/// (1) The same recipe and text give bitwise the same loss and grad_norm in every run on the same
///     machine, whatever the timing. (2) `on_step` may throw: all ranks then end, and its exception
///     is thrown again.
/// @throws InvalidArgument if the recipe is not valid for this text; CommError if a rank waits
/// longer than comm.train_timeout_seconds; Error if the loss is not finite (names the step).
void train(const Recipe& recipe, const PackedText& text,
           const std::function<void(const StepMetrics&)>& on_step);

/// Reads and packs the recipe's dataset. @throws IoError, InvalidArgument (dataset_path is empty,
/// or the text is shorter than a sequence).
PackedText load_text(const Recipe::Training& training);

}  // namespace armillary::train
