// The verb `export`: the parameters of a run as a folder for other programs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "armillary/train/export_model.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kExportExamples = R"(
Examples:
  armillary export runs/llama my_llama
  armillary export runs/llama/checkpoints/step-000020 my_llama --format hf
  armillary export runs/default my_gpt --format armillary
  armillary train recipes/llama.toml --init-from my_llama

hf: config.json and model.safetensors, as transformers loads a Llama, Mistral, Qwen2 or Qwen3, with the tokenizer of
the folder that the run began with. armillary: any model (docs/checkpoints.md).
Exit code: 0 done, 2 bad input.)";

struct ExportArguments {
  std::string run;
  std::string folder;
  std::string format = "hf";
};

}  // namespace

void add_export(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<ExportArguments>();
  CLI::App* verb = app.add_subcommand("export", kExportDescription);
  verb->add_option("run", arguments->run,
                   "Folder of a run (its newest checkpoint), or a checkpoint")
      ->required();
  verb->add_option("dir", arguments->folder, "New or empty folder")->required();
  verb->add_option("--format", arguments->format, "hf or armillary; default hf");
  verb->footer(kExportExamples);
  verb->callback([arguments, &exit_code] {
    const std::string checkpoint = train::export_model(
        arguments->run, arguments->folder, train::parse_folder_format(arguments->format));
    fmt::print("export: {} from {}\n", arguments->folder, checkpoint);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
