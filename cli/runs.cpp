// The verb `runs`: compares runs by the files that they leave. It only reads; a run may go on.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "armillary/core/json_text.h"
#include "armillary/lab/report/run_folder.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kRunsExamples = R"(
Examples:
  armillary runs runs                     every run below a folder
  armillary runs runs/a runs/b
  armillary runs runs --json | jq .loss

Loss and validation loss are the last ones, tokens/s the median of all ranks, memory the most of rank 0.
Exit code: 0 done, 2 no folder of a run, or a damaged file.)";

struct RunsArguments {
  std::vector<std::string> folders;
  bool json = false;
};

void run_runs(const RunsArguments& arguments) {
  std::vector<report::RunSummary> runs;
  for (const std::string& path : arguments.folders) {
    for (const std::string& folder : report::find_runs(path)) {
      runs.push_back(report::summarize(folder));
    }
  }
  if (!arguments.json) return fmt::print("{}", report::describe(runs));
  for (const report::RunSummary& run : runs) fmt::print("{}\n", json_text(report::to_json(run)));
}

}  // namespace

void add_runs(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<RunsArguments>();
  CLI::App* verb = app.add_subcommand("runs", "Compare runs: loss, speed and memory in a table");
  verb->add_option("folders", arguments->folders,
                   "Folders of runs, or folders with runs below them")
      ->required();
  verb->add_flag("--json", arguments->json, "One JSON object per line");
  verb->footer(kRunsExamples);
  verb->callback([arguments, &exit_code] {
    run_runs(*arguments);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
