// trainer.h: trains a model on data, over the ranks of a mesh.
//
//   step:  sequence -> shard -> forward -> backward -> sum gradients -> clip -> AdamW
//          \______ per rank, attention over cp ______/  \______ replicas stay equal ______/
//
// Ranks along dp share the sequences of a step, training.local_batch_size of them in a pass as one
// (microbatch.h), and ranks along cp the tokens of each pass; what they hold of the model is
// divided as parallelism.zero says (store.h). Ranks may be threads of this process, or anything
// else that has a communicator. The loss is the sum over all target tokens of the step divided by
// their number, so it and the gradients do not depend on the number of ranks or passes, up to
// rounding. The program of the step is proved before the first one (step_proof.h), every plan of
// attention before it runs (proof/together.h), beside the step before.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "armillary/comm/mesh.h"
#include "armillary/model/model.h"
#include "armillary/plan/program/program.h"
#include "armillary/train/data.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/step_metrics.h"

namespace armillary::train {

/// The caller's part in a run. Callbacks that are left out are not called.
struct TrainOptions {
  /// After each step, on rank 0. May throw: all ranks then end.
  std::function<void(const StepMetrics&)> on_step = {};
  /// Before the first step, on rank 0: the steps that were taken before, 0 unless the run resumes;
  /// again after each rollback, whose steps are taken again. Nothing is written before it, except
  /// in the folder of checkpoints and by the recorder.
  std::function<void(std::int64_t steps)> on_start = {};
  /// A line for the reader, on rank 0: a checkpoint that is passed over, the one that is resumed,
  /// learning rates that are not those with which the run began, the reason of a rollback.
  std::function<void(const std::string& line)> on_notice = {};
  /// Asked before the first step and near the end of each, on every rank. If one rank says yes, all
  /// stop after that step, in the same one, and save if checkpoint.enable and a step was taken.
  std::function<bool()> stop_requested = {};
  /// Go on from the newest checkpoint of the run folder: bitwise as if the run had never stopped on
  /// the same world and strategy, up to rounding on another one; if training.steps, the peak rate
  /// or [lr_scheduler] are not those of the checkpoint, with other learning rates.
  bool resume = false;
  /// Folder of the run, in which each rank leaves the file of its flight recorder
  /// (host/recorder/recorder.h); empty: no recorder. A run that hangs or fails is explained by it.
  /// Rank 0 locks the folder (io/run_lock.h).
  std::string run_folder = {};
  /// Begin with the parameters of this folder (checkpoint/model_folder.h), not with those of
  /// training.seed. Not together with `resume`.
  std::string init_from = {};
  /// Data of the validation loss, which must outlive the run; required if
  /// training.validation_interval is not 0.
  const Data* validation = nullptr;
  /// Sees the program of a rank's steps before it is proved, on every rank. One that it changes is
  /// refused.
  std::function<void(plan::RankProgram& program)> on_program = {};
};

/// How a run ended.
struct TrainResult {
  std::int64_t steps = 0;      ///< Steps taken, those before a resumption included.
  bool stopped = false;        ///< stop_requested ended it before training.steps.
  std::string checkpoint;      ///< Folder of the last checkpoint saved; empty if none was.
  std::int64_t rollbacks = 0;  ///< To the last checkpoint (training.spike_guard).
};

/// One rank's part of all steps of the recipe. Every rank of the mesh calls it with a model of its
/// own, whose parameters begin as training.seed says. It trains `model` on the ranks of `mesh` and
/// does not read [model], [activation_checkpoint] and the degrees of [parallelism] but
/// data_parallel_replicate_degree. It computes with the threads of the calling thread
/// (at::set_num_threads).
/// @throws InvalidArgument as check_built and check_batch (mesh.h) for the mesh, as check_dtypes
/// (dtypes.h), if the recipes of two ranks differ (same_recipe.h), if the data has a larger
/// vocabulary than the model, as check_parameters (model/parameter.h) or step_shape_of, or for a
/// unit that uses what it did not declare, before any tile moves, as checked_parts one step ahead
/// of the sequence, or as choose_checkpoint and restore (checkpoint/restore.h); IoError if
/// checkpoints cannot be read, their folder or the recorder not be written, or another run writes
/// into the run folder; Error as below; CommError on ranks whose peer has failed.
TrainResult train(const comm::Mesh& mesh, model::Model& model, const Data& data,
                  const Recipe& recipe, const TrainOptions& options);

/// Runs `body` on the ranks of a group of `world`, or on the one that this process is, each with a
/// deadline of `timeout_s` for every wait. Throws what a rank threw.
using RunRanks = std::function<void(int world, double timeout_s,
                                    const std::function<void(comm::Communicator&)>& body)>;

/// Runs the recipe, each rank with a replica of the recipe's model. Ranks are threads of this
/// process unless `run_ranks` says otherwise.
///
/// (1) The same recipe and data give bitwise the same loss and grad_norm in every run on the same
/// machine, whatever the timing; (2) callbacks may throw: all ranks then end, and the exception is
/// thrown again.
/// @throws InvalidArgument if the recipe is not valid for this data; CommError if a rank waits
/// longer than comm.train_timeout_seconds; Error if the loss is not finite or a spike (names the
/// step), unless a rollback follows, or a checkpoint cannot be written (checkpoint/saver.h). The
/// result is that of rank 0.
TrainResult train(const Recipe& recipe, const Data& data, const TrainOptions& options,
                  const RunRanks& run_ranks = {});

}  // namespace armillary::train
