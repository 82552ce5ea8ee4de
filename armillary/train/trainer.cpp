// The steps of a run, from the state in which it begins to its last checkpoint, and the launcher of
// ranks as threads. One step is in rank_trainer.h.
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
#include "armillary/core/error.h"
#include "armillary/io/file_system.h"
#include "armillary/io/run_lock.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/checkpoint/restore.h"
#include "armillary/train/checkpoint/resumable.h"
#include "armillary/train/checkpoint/saver.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/lr_schedule.h"
#include "armillary/train/mesh.h"
#include "armillary/train/rank_trainer.h"
#include "armillary/train/recording.h"
#include "armillary/train/same_recipe.h"
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

/// Puts the state with which the run begins into the trainer. Returns the steps taken before.
std::int64_t begin(comm::Communicator& comm, RankTrainer& trainer, const Data& data,
                   const Recipe& recipe, const TrainOptions& options) {
  const std::string path =
      choose_checkpoint(comm, checkpoint_folder(recipe), options.resume, options.on_notice);
  std::int64_t steps = 0;
  if (!path.empty()) {
    Recipe saved;
    const auto check = [&](const Restored& restored) {
      saved = parse_saved_recipe(restored.recipe, path + "/" + kRecipeName);
      check_resumable(settings(recipe), settings(saved));
      check_steps(restored.progress, recipe);
      trainer.check_tensors(path, restored);
    };
    steps = restore(comm, path, check, data, trainer.state()).progress.step;
    if (comm.rank() == 0 && options.on_notice) {
      options.on_notice(fmt::format("checkpoint: resumed from {}", path));
      const auto change = describe_rate_change(rates_of(saved), rates_of(recipe), steps);
      if (change) options.on_notice(*change);
    }
  }
  if (!options.init_from.empty()) {
    comm::run_together(comm, [&] { trainer.load_parameters_of(options.init_from); });
  }
  trainer.begin_after(steps);
  return steps;
}

/// Whether a rank has a number that is not 0. Collective.
bool any_rank(comm::Communicator& comm, double mine) {
  comm::all_reduce_sum(comm, std::span(&mine, 1));
  return mine > 0;
}

/// The parts of a rank's run that stay the same.
struct RunParts {
  comm::Communicator& comm;
  const Recipe& recipe;
  const TrainOptions& options;
  const Recording& recording;
};

/// Takes the steps after the `before` that were taken, to the last or to a stop, and saves.
/// Collective.
TrainResult take_steps(const RunParts& run, RankTrainer& trainer, std::int64_t before) {
  const auto& [comm, recipe, options, recording] = run;
  const std::int64_t last = recipe.training.steps;
  TrainResult result{.steps = before};
  Saving saving(comm, recipe);
  // Only rank 0 tells the caller; losses and norms are equal on all ranks.
  const bool tells = comm.rank() == 0;
  // The run begins, for the record too: where the caller fails, it is this run that failed.
  if (before < last) {
    recording.begin_step(before + 1);
    recording.set_activity({.name = "starting the run"});
  }
  if (tells && options.on_start) options.on_start(before);

  const auto stops = [&stop_requested = options.stop_requested] {
    return stop_requested && stop_requested() ? 1.0 : 0.0;
  };
  recording.set_activity({.name = "beginning together", .collective = true});
  result.stopped = before < last && any_rank(comm, stops());
  while (result.steps < last && !result.stopped) {
    const std::int64_t step = ++result.steps;
    const StepMetrics metrics =
        trainer.step(step, [&] { return Beside{.stops = stops(), .busy = saving.busy()}; });
    if (tells && options.on_step) {
      recording.set_activity({.name = "reporting the step"});
      options.on_step(metrics);
    }
    result.stopped = trainer.beside().stops > 0 && step < last;
    saving.after_step(trainer, step, trainer.beside().busy, result.stopped || step == last);
  }
  recording.set_activity({.name = "saving the last checkpoint", .collective = true});
  result.checkpoint = saving.finish();
  return result;
}

}  // namespace

TrainResult train(const comm::Mesh& mesh, model::Model& model, const Data& data,
                  const Recipe& recipe, const TrainOptions& options) {
  check_built(mesh.shape());
  comm::Communicator& comm = mesh.world();
  TrainResult result;
  const auto all_steps = [&](const Recording& recording) {
    recording.set_activity({.name = "comparing recipes and parameters", .collective = true});
    std::vector<std::string> lines = settings(recipe);
    lines.push_back(fmt::format("--resume = {}", options.resume));
    lines.push_back(fmt::format("--init-from = {}", !options.init_from.empty()));
    for (const std::string& line : data.identity()) lines.push_back("data with " + line);
    expect_same_settings(comm, std::move(lines));
    comm::run_together(comm, [&] {
      check_batch(mesh.shape(), recipe.training);
      check_dtypes(recipe.training,
                   std::int64_t{mesh.size(MeshAxis::Dp)} * mesh.size(MeshAxis::Cp));
      if (data.vocab_size() > model.vocab_size()) {
        fail<InvalidArgument>(
            "train: data with a vocabulary of {}; at most {}, the model's, is required",
            data.vocab_size(), model.vocab_size());
      }
      model::check_parameters(model.parameters(), model.units(), mesh.size(MeshAxis::Tp));
    });
    std::uint64_t digest = 0;
    comm::run_together(comm, [&] {
      digest = checked_parts(data, 0, {recipe.training.seq_len, model.fields()}).digest;
    });
    expect_same_data(comm, digest, "data");
    plan::step::StepShape shape;
    comm::run_together(comm, [&] {
      shape =
          step_shape_of(model, mesh.shape(), recipe.parallelism, recipe.training, recipe.optimizer);
      plan::step::check_shape(shape);
    });
    RankTrainer trainer(mesh, model, proved_step(comm, shape, options.on_program),
                        {data, recipe, recording});
    const std::int64_t before = begin(comm, trainer, data, recipe, options);
    result = take_steps({comm, recipe, options, recording}, trainer, before);
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
