// The verb `train`: reads a recipe with its settings, estimates memory and time, and trains, or
// with --dry-run prints the estimate only. Ranks are threads, or this process is one rank of many:
// each then reads and checks everything, and rank 0 alone prints and writes the run folder.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/process_stat.h"
#include "armillary/core/user_text.h"
#include "armillary/host/launch/launch_folder.h"
#include "armillary/train/block_pool.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/estimate.h"
#include "armillary/train/load_data.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/trainer.h"
#include "armillary/train/whole_sequences.h"
#include "cli/mesh_settings.h"
#include "cli/stop_signals.h"
#include "cli/torch/engine.h"
#include "cli/torch/recipe_model.h"
#include "cli/torch/run_watch.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kTrainExamples = R"(
Examples:
  armillary train recipes/default.toml --set training.dataset_path=src
  armillary train recipes/default.toml --set training.dataset_path=src --dry-run
  armillary train recipes/default.toml --set training.steps=20 --set optimizer.lr=1e-3 --print-config
  armillary train recipes/papers/gpt_3b.toml --dry-run
  armillary train recipes/papers/gpt_3b.toml --set model.scale=tiny --set training.dataset_path=src
  armillary train my.toml --set parallelism.strategy=usp:u=2 --set parallelism.layout=striped:16 --json
  armillary launch -n 4 -- train my.toml         4 processes instead of threads; see also mpirun, srun
  armillary train my.toml --set checkpoint.enable=true --set checkpoint.interval=100
  armillary train my.toml --set checkpoint.enable=true --resume

The run folder (job.dump_folder) gets recipe.toml, metrics.jsonl, run.html, a page with its curves that grows in a
browser, flight/, the last ops of each rank (`armillary explain FOLDER` says who waited for whom), with checkpoint.enable
checkpoints, and with metrics.enable_tensorboard event files. `armillary runs` compares folders.
SIGTERM or Ctrl-C ends the run after its step, with a checkpoint; a second one ends it at once.
Exit code: 0 done or stopped by a signal, 1 the run failed, 2 bad input, 130 or 143 a second signal.)";

/// The command line of the verb.
struct TrainArguments {
  std::string recipe;
  std::vector<std::string> settings;
  bool print_config = false;
  bool dry_run = false;
  bool json = false;
  bool resume = false;
  std::string init_from;
  std::string mesh;  ///< auto:CLUSTER, or empty.
  launch::EngineFlags engine;
};

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
}

/// Refuses a recipe whose ranks on this machine need more memory than it has.
void require_memory(const train::Estimate& estimate, int local_ranks) {
  constexpr double kGib = 1 << 30;
  const double bytes = estimate.memory.total() + estimate.memory.host;
  const double needed = bytes / kGib * static_cast<double>(local_ranks);
  const double there = static_cast<double>(physical_memory_bytes()) / kGib;
  if (needed > there) {
    fail<InvalidArgument>(
        "train: {:.1f} GiB are needed for {}, the machine has {:.1f}; lower model.dim, "
        "model.n_layers or training.seq_len, or give --set model.scale=tiny",
        needed, count_of(local_ranks, "rank"), there);
  }
}

/// A line for the reader: text, or JSON as all lines are then.
void print_notice(const std::string& line, bool json) {
  print((json ? nlohmann::json{{"notice", line}}.dump() : line) + '\n');
  std::fflush(stdout);
}

/// Says how a run ended that was told to stop.
std::string describe_stop(const train::Recipe& recipe, const train::TrainResult& result) {
  const std::string nothing = recipe.checkpoint.enable
                                  ? "no checkpoint: no step was taken"
                                  : "no checkpoint: checkpoint.enable is false";
  return fmt::format("train: stopped by {} after step {} of {}; {}", StopSignals::name(),
                     result.steps, recipe.training.steps,
                     result.checkpoint.empty() ? nothing : "saved " + result.checkpoint);
}

/// Puts the fastest mesh of a described cluster, and the sequences of its passes, into the recipe.
void take_mesh(train::Recipe& recipe, const TrainArguments& arguments) {
  const sim::Cluster cluster = cluster_of_mesh(arguments.mesh);  // its text goes first
  tune::AdviceQuestion question = mesh_question(recipe, arguments.recipe);
  question.cluster = cluster;
  const tune::Advised mesh = choose_mesh(question);
  for (const std::string& setting : mesh_settings(mesh)) {
    const std::string key = setting.substr(0, setting.find('=') + 1);
    for (const std::string& other : arguments.settings) {
      if (!other.starts_with(key)) continue;
      fail<InvalidArgument>(
          "train: --set {} and --mesh {} given, which chooses it; one of them is "
          "required",
          other, arguments.mesh);
    }
    train::apply_setting(recipe, setting);
  }
}

/// Refuses a folder of checkpoints in a run that saves none and resumes none.
void check_checkpoint_folder(const train::CheckpointOptions& checkpoint, bool resumes) {
  const std::string usual = train::CheckpointOptions().folder;
  if (checkpoint.enable || resumes || checkpoint.folder == usual) return;
  fail<InvalidArgument>(
      "recipe: checkpoint.folder = {} with checkpoint.enable = false, where nothing is saved; {}, "
      "the default, is required; nearest: checkpoint.enable = true",
      excerpt(checkpoint.folder), usual);
}

/// The data of a recipe. A dry run needs none for a mask that does not follow documents.
std::unique_ptr<train::Data> data_of(const train::Recipe& recipe, bool dry_run) {
  const train::TrainingOptions& training = recipe.training;
  if (dry_run && training.dataset_path.empty() &&
      !train::reads_documents(recipe.parallelism.mask)) {
    return std::make_unique<train::WholeSequences>(training.seq_len);
  }
  return train::load_data(recipe);
}

/// The data of a run; those of validation are null without it.
struct RunData {
  std::unique_ptr<train::Data> training;
  std::unique_ptr<train::Data> validation = {};
};

/// The run on the chosen engine. Its folder is written from on_start on, by rank 0.
void run_steps(const TrainArguments& arguments, const train::Recipe& recipe, const RunData& data,
               const launch::EngineChoice& choice, const std::string& summary) {
  RunWatch watch(recipe, arguments.json);
  bool is_described = false;
  const auto on_start = [&](std::int64_t steps) {
    launch::tell_run_folder(recipe.job.dump_folder);  // First: opening files may fail.
    watch.start(steps);
    // `export` puts the tokenizer beside the parameters again. A rollback has it there.
    if (!arguments.init_from.empty() && steps == 0) {
      train::copy_tokenizer(arguments.init_from, train::tokenizer_folder(recipe.job.dump_folder));
    }
    if (std::exchange(is_described, true)) return;  // A rollback starts again.
    if (!arguments.json) return print(summary);
    for (const std::string& line : train::settings_without_effect(recipe)) print_notice(line, true);
  };
  const auto on_notice = [&](const std::string& line) {
    print_notice(line, arguments.json);
    watch.note(line);
  };
  train::TrainResult result;
  try {
    result = train::train(
        recipe, *data.training,
        {.on_step = [&](const train::StepMetrics& metrics) { watch.step(metrics); },
         .on_start = on_start,
         .on_notice = on_notice,
         .stop_requested = &StopSignals::stop_requested,
         .resume = arguments.resume,
         .run_folder = recipe.job.dump_folder,
         .init_from = arguments.init_from,
         .validation = data.validation.get()},
        [&](int world, double timeout_s, const std::function<void(comm::Communicator&)>& body) {
          run_ranks_on(choice, world, timeout_s, body);
        });
  } catch (const std::exception& error) {
    watch.fail_with(error);
    throw;
  }
  watch.end(result.stopped ? report::RunState::Stopped : report::RunState::Done);
  if (result.stopped) print_notice(describe_stop(recipe, result), arguments.json);
}

void run_train(const TrainArguments& arguments) {
  // First: a run is stopped also while it starts; a signal ends what takes no step.
  std::optional<StopSignals> stop_signals(std::in_place);
  if (arguments.dry_run || arguments.print_config) stop_signals.reset();
  // The recipe: the file, then the settings in the order in which they were given.
  train::Recipe recipe = train::load_recipe(arguments.recipe);
  for (const std::string& setting : arguments.settings) train::apply_setting(recipe, setting);
  if (!arguments.mesh.empty()) take_mesh(recipe, arguments);
  train::validate(recipe);
  check_checkpoint_folder(recipe.checkpoint, arguments.resume);
  if (arguments.print_config) {
    print(train::print_recipe(recipe));
    return;
  }
  if (!arguments.init_from.empty() && !arguments.resume) {
    // First: a file with other sizes is named, not the memory that they need.
    train::check_source(arguments.init_from, recipe.model, train::make_model(recipe)->parameters());
  }
  const MeshShape mesh = train::mesh_of(recipe.parallelism);
  const int world = mesh.ranks();
  const std::string where =
      mesh.dp * mesh.tp == 1
          ? fmt::format("parallelism.context_parallel_degree = {}", world)
          : fmt::format("a mesh of dp {} x cp {} x tp {}", mesh.dp, mesh.cp, mesh.tp);
  const launch::EngineChoice choice = choose_engine(arguments.engine, {world, where});
  // The estimate, which needs the documents for their masks.
  RunData data{.training = data_of(recipe, arguments.dry_run)};
  const train::Estimate estimate = train::estimate(recipe, *data.training);
  const std::string summary = arguments.json ? train::to_json(recipe, estimate).dump() + '\n'
                                             : train::describe(recipe, estimate);
  if (arguments.dry_run) {
    if (choice.is_first()) print(summary);
    return;
  }
  require_memory(estimate, choice.local_world(world));
  data.validation = train::load_validation_data(recipe);
  return_large_blocks();
  train::BlockPool::install();
  run_steps(arguments, recipe, data, choice, summary);
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<TrainArguments>();
  CLI::App* verb = app.add_subcommand("train", kTrainDescription);
  verb->add_option("recipe", arguments->recipe, "TOML file")->required();
  verb->add_option("--set", arguments->settings,
                   "section.key=value, over the recipe's; model.scale=tiny shrinks all sizes to "
                   "what trains here in seconds, model.from=PATH takes [model] from what "
                   "--init-from begins with")
      ->expected(1)
      ->take_all();
  verb->add_flag("--print-config", arguments->print_config, "Print the whole recipe and stop");
  verb->add_flag("--dry-run", arguments->dry_run,
                 "Print parameters, plan, traffic and memory; train nothing, write nothing");
  verb->add_flag("--resume", arguments->resume,
                 "Go on from the newest checkpoint of the run folder");
  verb->add_option("--init-from", arguments->init_from,
                   "Begin with the parameters of a folder of `armillary export` or of Hugging "
                   "Face, or of a .gguf file");
  verb->add_option("--mesh", arguments->mesh,
                   "auto:CLUSTER: the fastest mesh of `armillary advise` that trains, on all its "
                   "devices, with its training.local_batch_size");
  verb->add_flag("--json", arguments->json, "One JSON object per line");
  add_engine_flags(*verb, arguments->engine);
  verb->footer(kTrainExamples);
  verb->callback([arguments, &exit_code] {
    run_train(*arguments);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
