// The steps of a run, from the state in which it begins to its last checkpoint, rollbacks on the
// way, and the launcher of ranks as threads. One step is in rank_trainer.h.
#include "armillary/train/trainer.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/comm/together.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/io/file_system.h"
#include "armillary/io/run_lock.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/checkpoint/restore.h"
#include "armillary/train/checkpoint/resumable.h"
#include "armillary/train/checkpoint/saver.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/forward_loss.h"
#include "armillary/train/lr_schedule.h"
#include "armillary/train/mesh.h"
#include "armillary/train/rank_trainer.h"
#include "armillary/train/recording.h"
#include "armillary/train/same_recipe.h"
#include "armillary/train/spike_guard.h"
#include "armillary/train/step_proof.h"
#include "armillary/train/step_shape.h"

namespace armillary::train {
namespace {

/// The checkpoints of a run on one rank; none are saved unless checkpoint.enable.
class Saving {
 public:
  Saving(comm::Communicator& comm, const Recipe& recipe) : recipe_(recipe) {
    if (!recipe.checkpoint.enable) return;
    saver_.emplace(comm, io::real_file_system(),
                   SaverOptions{.folder = checkpoint_folder(recipe),
                                .keep = recipe.checkpoint.keep_latest_k,
                                .recipe = print_recipe(recipe)});
  }

  double busy() const { return saver_ ? saver_->busy() : 0; }

  /// After each step; `is_last` if no other follows.
  void after_step(const RankTrainer& trainer, std::int64_t step, double busy_ranks, bool is_last) {
    if (!saver_) return;
    saver_->advance(busy_ranks);
    if (!is_last && step % recipe_.checkpoint.interval != 0) return;
    saver_->save(step, trainer.saved(), trainer.progress(step));
    last_ = checkpoint_folder(recipe_) + "/" + checkpoint_name(step);
  }

  /// Waits for the last checkpoint and returns its folder.
  std::string finish() {
    if (saver_) saver_->finish();
    return last_;
  }

 private:
  const Recipe& recipe_;
  std::optional<CheckpointSaver> saver_;
  std::string last_;
};

/// A run may be made longer, not shorter than it is.
void check_steps(const RunProgress& progress, const Recipe& recipe) {
  if (recipe.training.steps < progress.step) {
    fail<InvalidArgument>(
        "checkpoint: training.steps = {} given; at least {}, the steps of the checkpoint, is "
        "required",
        recipe.training.steps, progress.step);
  }
}

void check_options(const TrainOptions& options) {
  if (options.resume && !options.init_from.empty()) {
    fail<InvalidArgument>("train: --resume and --init-from {} given; one of them is required",
                          options.init_from);
  }
}

/// The parts of a rank's run that stay the same.
struct RunParts {
  comm::Communicator& comm;
  const Data& data;
  const Recipe& recipe;
  const TrainOptions& options;
  const Recording& recording;

  /// A line for the reader, on rank 0.
  void tell(const std::string& line) const {
    if (comm.rank() == 0 && options.on_notice) options.on_notice(line);
  }
};

/// The state from which steps are taken: the one that the caller asks for, or that of a rollback.
struct Beginning {
  bool resume = false;           ///< From the newest checkpoint.
  BatchOrder order = {};         ///< Leaves out what rollbacks have left out.
  std::int64_t spike_batch = 0;  ///< That of the step that asked for the rollback; 0: none did.
};

/// Leaves out the batches of a rollback to the end of `step`, as training.spike_skip says.
void skip_spike(Beginning& from, const std::string& spike_skip, std::int64_t step) {
  if (from.spike_batch == 0 || spike_skip == "none") return;
  const bool skips_all = spike_skip == "since_checkpoint";
  from.order.skip(skips_all ? from.order.batch_of(step) + 1 : from.spike_batch, from.spike_batch);
}

/// Puts the state from which steps are taken into the trainer. Returns the steps taken before.
/// Collective.
std::int64_t begin(const RunParts& run, RankTrainer& trainer, Beginning& from) {
  const Recipe& recipe = run.recipe;
  const TrainOptions& options = run.options;
  const std::string path =
      choose_checkpoint(run.comm, checkpoint_folder(recipe), from.resume, options.on_notice);
  RunProgress progress;
  if (!path.empty()) {
    Recipe saved;
    const auto check = [&](const Restored& restored) {
      saved = parse_saved_recipe(restored.recipe, path + "/" + kRecipeName);
      check_resumable(settings(recipe), settings(saved));
      check_steps(restored.progress, recipe);
      trainer.check_tensors(path, restored);
    };
    progress = restore(run.comm, path, check, run.data, trainer.state()).progress;
    run.tell(fmt::format("checkpoint: resumed from {}", path));
    const auto change = describe_rate_change(rates_of(saved), rates_of(recipe), progress.step);
    if (change) run.tell(*change);
  } else if (!options.init_from.empty()) {
    comm::run_together(run.comm, [&] { trainer.load_parameters_of(options.init_from); });
  }
  from.order.skip(BatchOrder(progress.skipped));
  skip_spike(from, recipe.training.spike_skip, progress.step);
  progress.skipped = from.order.skipped();
  trainer.begin_after(progress);
  return progress.step;
}

/// Whether a rank has a number that is not 0. Collective.
bool any_rank(comm::Communicator& comm, double mine) {
  comm::all_reduce_sum(comm, std::span(&mine, 1));
  return mine > 0;
}

/// Whether a validation loss is asked for behind a step.
bool is_validated(const TrainingOptions& training, std::int64_t step) {
  const std::int64_t interval = training.validation_interval;
  return interval > 0 && (step % interval == 0 || step == training.steps);
}

/// The end of the steps that were taken from one beginning.
struct StepsTaken {
  TrainResult result;
  std::string spike = {};  ///< The reason of a rollback; empty: the run is over.
};

/// Takes the steps after the `before` that were taken, to the last, to a stop or to a spike that
/// asks for a rollback, and saves. Collective.
StepsTaken take_steps(const RunParts& run, RankTrainer& trainer, std::int64_t before) {
  comm::Communicator& comm = run.comm;
  const TrainOptions& options = run.options;
  const std::int64_t last = run.recipe.training.steps;
  StepsTaken taken{.result = {.steps = before}};
  TrainResult& result = taken.result;
  Saving saving(comm, run.recipe);
  // Only rank 0 tells the caller; losses and norms are equal on all ranks.
  const bool tells = comm.rank() == 0;
  // The run begins, for the record too: where the caller fails, it is this run that failed.
  if (before < last) {
    run.recording.begin_step(before + 1);
    run.recording.set_activity({.name = "starting the run"});
  }
  if (tells && options.on_start) options.on_start(before);

  const auto stops = [&options] {
    return options.stop_requested && options.stop_requested() ? 1.0 : 0.0;
  };
  run.recording.set_activity({.name = "beginning together", .collective = true});
  result.stopped = before < last && any_rank(comm, stops());
  while (result.steps < last && !result.stopped) {
    const std::int64_t step = result.steps + 1;
    StepMetrics metrics =
        trainer.step(step, [&] { return Beside{.stops = stops(), .busy = saving.busy()}; });
    taken.spike = trainer.spike();
    if (!taken.spike.empty()) break;
    result.steps = step;
    if (is_validated(run.recipe.training, step)) {
      metrics.validation_loss = trainer.validation_loss(*options.validation);
    }
    if (tells && options.on_step) {
      run.recording.set_activity({.name = "reporting the step"});
      options.on_step(metrics);
    }
    result.stopped = trainer.beside().stops > 0 && step < last;
    saving.after_step(trainer, step, trainer.beside().busy, result.stopped || step == last);
  }
  run.recording.set_activity({.name = "saving the last checkpoint", .collective = true});
  result.checkpoint = saving.finish();
  return taken;
}

/// The beginning of another rollback. @throws Error on every rank if there is no checkpoint to go
/// back to, or too many went before.
void go_back(const RunParts& run, const StepsTaken& taken, Beginning& from) {
  const TrainingOptions& training = run.recipe.training;
  const std::int64_t rollbacks = taken.result.rollbacks;
  if (taken.result.checkpoint.empty() && !from.resume) {
    fail<Error>("train: {}; there is no checkpoint yet to go back to: lower checkpoint.interval",
                taken.spike);
  }
  if (rollbacks >= training.spike_rollbacks) {
    fail<Error>("train: {}; {} went before, training.spike_rollbacks are {}", taken.spike,
                count_of(rollbacks, "rollback"), training.spike_rollbacks);
  }
  from.resume = true;
  from.spike_batch = from.order.batch_of(taken.result.steps + 1);
  run.tell(fmt::format("train: {}; rollback {} of at most {}, training.spike_skip = {}: batch {}",
                       taken.spike, rollbacks + 1, training.spike_rollbacks, training.spike_skip,
                       from.spike_batch));
}

/// The parts of a rank's trainer that rollbacks keep.
struct TrainerParts {
  const comm::Mesh& mesh;
  model::Model& model;
  const ProvedStep& proved;
};

/// Takes the steps of a run, again from the last checkpoint where one asks for a rollback, with all
/// that a rank has of the steps before forgotten. Collective.
TrainResult take_all_steps(const RunParts& run, const TrainerParts& parts) {
  Beginning from{.resume = run.options.resume};
  std::string saved;
  for (std::int64_t rollbacks = 0;; ++rollbacks) {
    RankTrainer trainer(parts.mesh, parts.model, parts.proved,
                        {run.data, run.recipe, run.recording});
    const std::int64_t before = begin(run, trainer, from);
    StepsTaken taken = take_steps(run, trainer, before);
    // A stop may come before a checkpoint behind a rollback.
    if (taken.result.checkpoint.empty()) taken.result.checkpoint = saved;
    taken.result.rollbacks = rollbacks;
    if (taken.spike.empty()) return taken.result;
    if (run.recipe.training.spike_guard != "rollback") fail<Error>("train: {}", taken.spike);
    go_back(run, taken, from);
    saved = taken.result.checkpoint;
  }
}

/// Refuses validation data that are not there, or not of the model.
void check_validation(const Data* validation, const TrainingOptions& training,
                      const model::Model& model) {
  if (training.validation_interval == 0) return;
  if (validation == nullptr) {
    fail<InvalidArgument>(
        "train: training.validation_interval = {} without validation data; 0 is required, or data "
        "(TrainOptions::validation)",
        training.validation_interval);
  }
  if (validation->vocab_size() > model.vocab_size()) {
    fail<InvalidArgument>(
        "train: validation data with a vocabulary of {}; at most {}, the model's, is required",
        validation->vocab_size(), model.vocab_size());
  }
  validation_sequences(training, *validation);
}

/// Refuses recipes, data and beginnings that differ between ranks. Collective.
void expect_same_run(comm::Communicator& comm, const Data& data, const Recipe& recipe,
                     const TrainOptions& options) {
  std::vector<std::string> lines = settings(recipe);
  lines.push_back(fmt::format("--resume = {}", options.resume));
  lines.push_back(fmt::format("--init-from = {}", !options.init_from.empty()));
  for (const std::string& line : data.identity()) lines.push_back("data with " + line);
  if (recipe.training.validation_interval > 0 && options.validation != nullptr) {
    lines.push_back(fmt::format("sequences of validation data = {}",
                                options.validation->sequences_per_epoch()));
    for (const std::string& line : options.validation->identity()) {
      lines.push_back("validation data with " + line);
    }
  }
  expect_same_settings(comm, std::move(lines));
}

/// Refuses data whose first sequence differs between ranks. Collective.
void expect_same_start(const RunParts& run, const model::Model& model, const Data& data,
                       const char* what) {
  std::uint64_t digest = 0;
  comm::run_together(run.comm, [&] {
    digest = checked_parts(data, 0, {run.recipe.training.seq_len, model.fields()}).digest;
  });
  expect_same_data(run.comm, digest, what);
}

}  // namespace

TrainResult train(const comm::Mesh& mesh, model::Model& model, const Data& data,
                  const Recipe& recipe, const TrainOptions& options) {
  check_built(mesh.shape());
  comm::Communicator& comm = mesh.world();
  TrainResult result;
  const auto all_steps = [&](const Recording& recording) {
    recording.set_activity({.name = "comparing recipes and parameters", .collective = true});
    expect_same_run(comm, data, recipe, options);
    comm::run_together(comm, [&] {
      check_batch(mesh.shape(), recipe.training);
      check_dtypes(recipe.training,
                   std::int64_t{mesh.size(MeshAxis::Dp)} * mesh.size(MeshAxis::Cp));
      if (data.vocab_size() > model.vocab_size()) {
        fail<InvalidArgument>(
            "train: data with a vocabulary of {}; at most {}, the model's, is required",
            data.vocab_size(), model.vocab_size());
      }
      check_validation(options.validation, recipe.training, model);
      model::check_parameters(model.parameters(), model.units(), mesh.size(MeshAxis::Tp));
      if (!options.init_from.empty()) {
        check_source(options.init_from, recipe.model, model.parameters());
      }
    });
    const RunParts run{comm, data, recipe, options, recording};
    expect_same_start(run, model, data, "data");
    if (recipe.training.validation_interval > 0) {
      expect_same_start(run, model, *options.validation, "validation data");
    }
    plan::step::StepShape shape;
    comm::run_together(comm, [&] {
      shape =
          step_shape_of(model, mesh.shape(), recipe.parallelism, recipe.training, recipe.optimizer);
      plan::step::check_shape(shape);
    });
    const ProvedStep proved = proved_step(comm, shape, options.on_program);
    result = take_all_steps(run, {mesh, model, proved});
  };
  // A rank that throws, in a callback or for its own data, ends the others with its reason.
  runtime::or_abort(comm, [&] {
    // Another run in the same folder would destroy its files: it is refused before it touches any.
    std::optional<io::RunLock> lock;
    comm::run_together(comm, [&] {
      if (comm.rank() == 0 && !options.run_folder.empty()) lock.emplace(options.run_folder);
    });
    std::optional<Recording> recording;
    try {
      // One rank's disk may be full: then all ranks say so, before the first step.
      comm::run_together(comm, [&] { recording.emplace(comm, options.run_folder); });
    } catch (const std::exception& error) {
      if (recording) recording->refuse(error.what());
      throw;
    }
    recording->until_end([&] { all_steps(*recording); });
  });
  return result;
}

TrainResult train(const Recipe& recipe, const Data& data, const TrainOptions& options,
                  const RunRanks& run_ranks) {
  validate(recipe, data.vocab_size());
  check_options(options);
  TrainResult result;
  const auto body = [&](comm::Communicator& comm) {
    at::set_num_threads(static_cast<int>(recipe.parallelism.threads_per_rank));
    const std::unique_ptr<model::Model> model = make_model(recipe);
    const TrainResult mine =
        train(comm::Mesh(comm, mesh_of(recipe.parallelism)), *model, data, recipe, options);
    if (comm.rank() == 0) result = mine;
  };
  const int world = mesh_of(recipe.parallelism).ranks();
  const double timeout_s = recipe.comm.train_timeout_seconds;
  if (run_ranks) {
    run_ranks(world, timeout_s, body);
  } else {
    comm::run_ranks(world, body, {.timeout_s = timeout_s});
  }
  return result;
}

}  // namespace armillary::train
