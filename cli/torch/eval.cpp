// The verb `eval`: the loss of a run's newest checkpoint, or of a model folder, on data that it was
// not trained on. The run is only read; its mesh need not be the one that trained.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/spec.h"
#include "armillary/train/evaluate.h"
#include "armillary/train/load_data.h"
#include "armillary/train/recipe.h"
#include "cli/torch/engine.h"
#include "cli/torch/run_recipe.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kEvalExamples = R"(
Examples:
  armillary eval runs/llama --part validation
  armillary eval runs/llama/checkpoints/step-000020 --set parallelism.context_parallel_degree=2
  armillary eval runs/default --set training.dataset_path=docs --sequences 20
  armillary eval my.toml --init-from my_llama --json
  armillary launch -n 4 -- eval runs/llama               4 processes instead of threads

The mean loss over the targets of all sequences, the same on any mesh. Text and pictures have no parts: all of a file
is read. Nothing is written.
Exit code: 0 done, 1 a rank failed, 2 bad input.)";

struct EvalArguments {
  std::string run;
  std::vector<std::string> settings;
  std::string part = "validation";
  bool json = false;
  train::EvalOptions options;
  launch::EngineFlags engine;
};

void print_result(const train::EvalResult& result, bool json) {
  if (json) {
    const nlohmann::json line{
        {"loss", result.loss}, {"sequences", result.sequences}, {"targets", result.targets}};
    fmt::print("{}\n", line.dump());
    return;
  }
  fmt::print("loss {:.6f} over {} targets of {} sequences\n", result.loss, result.targets,
             result.sequences);
}

void run_eval(const EvalArguments& arguments) {
  train::EvalOptions options = arguments.options;
  const auto [recipe, checkpoint] = recipe_of_run("eval", arguments.run, arguments.settings);
  options.checkpoint = checkpoint;
  constexpr std::array<std::string_view, 2> kParts{"train", "validation"};
  const std::size_t part = parse_choice("eval: --part", arguments.part, kParts);
  const train::Recipe one_pass = train::eval_recipe(recipe);
  train::validate(one_pass);
  const MeshShape mesh = train::mesh_of(recipe.parallelism);
  const launch::EngineChoice choice = choose_engine(
      arguments.engine,
      {mesh.ranks(), fmt::format("a mesh of dp {} x cp {} x tp {}", mesh.dp, mesh.cp, mesh.tp)});
  const std::unique_ptr<train::Data> data =
      train::load_data(recipe, static_cast<corpus::CorpusPart>(part));
  const train::EvalResult result = train::evaluate(
      recipe, *data, options,
      [&](int world, double timeout_s, const std::function<void(comm::Communicator&)>& body) {
        run_ranks_on(choice, world, timeout_s, body);
      });
  if (choice.is_first()) print_result(result, arguments.json);
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<EvalArguments>();
  CLI::App* verb = app.add_subcommand("eval", kEvalDescription);
  verb->add_option("run", arguments->run,
                   "Folder of a run (its newest checkpoint), a checkpoint, or a recipe (TOML)")
      ->required();
  verb->add_option("--set", arguments->settings, "section.key=value, over the recipe's")
      ->expected(1)
      ->take_all();
  verb->add_option("--part", arguments->part,
                   "Part of prepared data: validation or train; default validation");
  verb->add_option("--sequences", arguments->options.sequences,
                   "Sequences that are read, from the first on; default those of an epoch");
  verb->add_option("--init-from", arguments->options.init_from,
                   "With a recipe: parameters of a folder or a .gguf file, as `train --init-from`");
  verb->add_flag("--json", arguments->json, "Print a JSON object");
  add_engine_flags(*verb, arguments->engine);
  verb->footer(kEvalExamples);
  verb->callback([arguments, &exit_code] {
    run_eval(*arguments);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
