// The verb `check`: is the model of a recipe, over ranks, the same as on one device? It reads the
// recipe with its settings, shortens the sequence, runs the check on the chosen engine, and writes
// the report, which rank 0 alone prints.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/check_model.h"
#include "armillary/train/load_data.h"
#include "cli/output_file.h"
#include "cli/torch/engine.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kCheckExamples = R"(
Examples:
  armillary check recipes/llama.toml
  armillary check recipes/default.toml --set parallelism.strategy=usp:u=2 --report check.json
  armillary launch -n 4 -- check recipes/llama.toml      4 processes instead of threads

Compares the loss, every gradient and every output of attention of the recipe's model, over the ranks of its
[parallelism], with the same model on one device and a plain S x S attention. A leak probe changes tokens and looks
where the mask hides them; a determinism probe runs twice. Each line has its value and its bound. Without
training.dataset_path the sequence is random bytes in packed documents.
Exit code: 0 equal to one device, 1 not, 2 bad input, or one rank, where nothing is spread. `armillary.check` in Python checks models of PyTorch.)";

struct CheckArguments {
  std::string recipe;
  std::vector<std::string> settings;
  std::int64_t tokens = 512;
  std::string init_from;
  std::string report;
  bool json = false;
  launch::EngineFlags engine;
};

/// The recipe with its settings, and with a sequence that is short enough to be held S x S.
train::Recipe read_recipe(const CheckArguments& arguments) {
  if (arguments.tokens < 1) {
    fail<InvalidArgument>("check: --tokens {} given; at least 1 is required", arguments.tokens);
  }
  train::Recipe recipe = train::load_recipe(arguments.recipe);
  for (const std::string& setting : arguments.settings) train::apply_setting(recipe, setting);
  if (recipe.model.name == "dit" && recipe.training.seq_len > arguments.tokens) {
    fail<InvalidArgument>(
        "check: --tokens {} with training.seq_len {} of a dit, whose pictures are not cut; at "
        "least {} is required; nearest: --tokens {}",
        arguments.tokens, recipe.training.seq_len, recipe.training.seq_len,
        recipe.training.seq_len);
  }
  recipe.training.seq_len = std::min(recipe.training.seq_len, arguments.tokens);
  train::validate(recipe);
  const MeshShape mesh = train::mesh_of(recipe.parallelism);
  if (mesh.dp * mesh.tp > 1) {
    fail<InvalidArgument>(
        "check: a mesh of dp {} x tp {}; ranks along cp alone are compared with one device; dp and "
        "tp of 1 are required: --set parallelism.data_parallel_shard_degree=1 --set "
        "parallelism.data_parallel_replicate_degree=1 --set parallelism.tensor_parallel_degree=1",
        mesh.dp, mesh.tp);
  }
  if (recipe.parallelism.expert_parallel_degree > 1) {
    fail<InvalidArgument>(
        "check: parallelism.expert_parallel_degree = {}; every rank of a check has all parameters; "
        "1 is required: --set parallelism.expert_parallel_degree=1",
        recipe.parallelism.expert_parallel_degree);
  }
  return recipe;
}

/// The report of all ranks, the same in every process.
train::CheckReport check(const CheckArguments& arguments, const train::Recipe& recipe,
                         const launch::EngineChoice& choice) {
  const train::TrainingOptions& training = recipe.training;
  const bool is_random = training.dataset_path.empty() && recipe.model.name != "dit";
  const std::unique_ptr<train::Data> data =
      is_random
          ? std::make_unique<train::PackedText>(train::random_text(training.seq_len, training.seed))
          : train::load_data(recipe);
  train::CheckReport report;
  const auto world = static_cast<int>(recipe.parallelism.context_parallel_degree);
  run_ranks_on(choice, world, recipe.comm.train_timeout_seconds, [&](comm::Communicator& comm) {
    const train::CheckReport of_rank = train::check_model(
        comm, [](const train::Recipe& of) { return train::make_model(of); }, *data, recipe,
        arguments.init_from);
    if (choice.place || comm.rank() == 0) report = of_rank;
  });
  return report;
}

int run_check(const CheckArguments& arguments) {
  const train::Recipe recipe = read_recipe(arguments);
  const auto world = static_cast<int>(recipe.parallelism.context_parallel_degree);
  const launch::EngineChoice choice = choose_engine(
      arguments.engine, {world, fmt::format("parallelism.context_parallel_degree = {}", world)});
  if (choice.is_first() && !arguments.report.empty()) check_writable("check", arguments.report);
  const train::CheckReport report = check(arguments, recipe, choice);
  const std::string text = train::describe(report);
  const std::string json = train::to_json(report).dump(2) + '\n';
  if (choice.is_first()) {
    if (!arguments.report.empty()) {
      write_file("check", arguments.report, arguments.report.ends_with(".json") ? json : text);
    }
    std::fputs((arguments.json ? json : text).c_str(), stdout);
  }
  if (!report.ok()) return kFailed;
  return report.world == 1 ? kBadInput : kDone;  // Nothing was compared over ranks.
}

}  // namespace

void add_check(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<CheckArguments>();
  CLI::App* verb = app.add_subcommand("check", kCheckDescription);
  verb->add_option("recipe", arguments->recipe, "TOML file")->required();
  verb->add_option("--set", arguments->settings, "section.key=value, over the recipe's")
      ->expected(1)
      ->take_all();
  verb->add_option(
      "--tokens", arguments->tokens,
      "Tokens of the sequence, at most; training.seq_len if that is less, as it is for pictures; "
      "default 512");
  verb->add_option("--init-from", arguments->init_from,
                   "Check the parameters of a folder or a .gguf file, as `train --init-from`, not "
                   "random ones");
  verb->add_option("--report", arguments->report,
                   "File for the report: JSON if its name ends so, text otherwise");
  verb->add_flag("--json", arguments->json, "Print the report as JSON");
  add_engine_flags(*verb, arguments->engine);
  verb->footer(kCheckExamples);
  verb->callback([arguments, &exit_code] { exit_code = run_check(*arguments); });
}

}  // namespace armillary::cli
