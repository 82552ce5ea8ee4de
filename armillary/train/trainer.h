// trainer.h: trains a model on data, every sequence spread over the ranks.
//
//   step:  sequence -> shard -> forward -> backward -> sum gradients -> clip -> AdamW
//          \_____ per rank, attention over all ranks _____/  \_______ replicas stay equal _______/
//
// Every rank holds the whole model and its own tokens of each sequence. Ranks may be threads of
// this process, or anything else that has a communicator. The loss is the sum over all target
// tokens of the step divided by their number, so it and the gradients do not depend on the number
// of ranks, up to rounding. Every plan is proved before it runs (proof/together.h), beside the step
// before.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "armillary/train/data.h"
#include "armillary/train/mesh.h"
#include "armillary/train/models/model.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// Metrics of one step. Rates are per rank, as torchtitan's are per device.
struct StepMetrics {
  std::int64_t step = 0;  ///< From 1.
  double loss = 0;        ///< Mean cross-entropy per target token, in nats, before the update.
  double grad_norm = 0;   ///< 2-norm of the gradient of all parameters, before clipping.
  std::int64_t memory_bytes = 0;  ///< Peak resident memory of the process so far.
  double tps = 0;                 ///< Tokens per second.
  double tflops = 0;              ///< ModelCost::flops per second, in 10^12.
  std::optional<double> mfu;      ///< tflops over the measured peak of a rank, in percent.
};

struct TrainOptions {
  /// Folder of the run, in which each rank leaves the file of its flight recorder
  /// (recorder/recorder.h); empty: no recorder. A run that hangs or fails is explained by it.
  std::string run_folder;
};

/// One rank's part of all steps of the recipe. Every rank of the mesh calls it with its own
/// replica; rank 0 calls `on_step` after each step. It trains `model` and does not read [model] and
/// [activation_checkpoint]. It computes with the threads of the calling thread
/// (at::set_num_threads).
/// @throws InvalidArgument if the recipes of two ranks differ (same_recipe.h), if the data has a
/// larger vocabulary than the model, or as checked_sequence one step ahead of the sequence; Error
/// as below; CommError on ranks whose peer has failed; IoError if its recorder cannot be opened.
void train(const Mesh& mesh, Model& model, const Data& data, const Recipe& recipe,
           const std::function<void(const StepMetrics&)>& on_step,
           const TrainOptions& options = {});

/// Runs `body` on the ranks of a group of `world`, or on the one that this process is, each with a
/// deadline of `timeout_s` for every wait. Throws what a rank threw.
using RunRanks = std::function<void(int world, double timeout_s,
                                    const std::function<void(comm::Communicator&)>& body)>;

/// Runs the recipe, each rank with a replica of the recipe's model. Ranks are threads of this
/// process unless `run_ranks` says otherwise.
///
/// (1) The same recipe and data give bitwise the same loss and grad_norm in every run on the same
/// machine, whatever the timing; (2) `on_step` may throw: all ranks then end, and its exception is
/// thrown again.
/// @throws InvalidArgument if the recipe is not valid for this data; CommError if a rank waits
/// longer than comm.train_timeout_seconds; Error if the loss is not finite (names the step);
/// IoError as above.
void train(const Recipe& recipe, const Data& data,
           const std::function<void(const StepMetrics&)>& on_step, const RunRanks& run_ranks = {},
           const TrainOptions& options = {});

}  // namespace armillary::train
