// The verb `report`: one HTML file with a plan, its simulated timeline, and a measured one of a
// finished run. The page is made in report/.
#include "armillary/report/report.h"

#include <fmt/format.h>

#include <memory>

#include "armillary/core/error.h"
#include "armillary/recorder/reader.h"
#include "armillary/sim/compare.h"
#include "armillary/sim/engine.h"
#include "cli/output_file.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// The flags of the verb.
struct ReportFlags : ProblemFlags {
  std::string cluster;
  std::string run;
  std::string out = "report.html";
  bool no_table = false;
};

void run_report(const ReportFlags& flags) {
  const sim::Cluster cluster = sim::load_cluster(flags.cluster);
  const plan::Problem of_flags = problem(flags);
  if (of_flags.world > report::kMaxRanks) {
    fail<InvalidArgument>("report: world {}; at most {} ranks fit into a page", of_flags.world,
                          report::kMaxRanks);
  }
  check_fits(flags, cluster);
  check_writable("report", flags.out);
  report::Report content{.mask = flags.mask, .cluster = cluster, .passes = {}};
  for (plan::Plan& plan : lowered_plans(flags)) {
    sim::Timeline timeline = simulate(plan, cluster, {.record = {.ops = true, .flows = true}});
    content.passes.push_back({.plan = std::move(plan), .timeline = std::move(timeline)});
  }
  if (!flags.run.empty()) {
    const recorder::RecordedRun run = recorder::read_run(flags.run);
    for (report::ReportedPass& pass : content.passes) {
      pass.measured = report::measured_pass(flags.run, run, pass.plan);
    }
  }
  if (!flags.no_table) {
    content.strategies = sim::compare_strategies(of_flags, cluster, passes(flags));
  }
  const std::string page = report::to_html(content);
  write_file("report", flags.out, page);
  fmt::print("{}: {:.1f} MB, {} passes of {} ranks\n", flags.out,
             static_cast<double>(page.size()) / 1e6, content.passes.size(), of_flags.world);
}

}  // namespace

void add_report(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("report", "A plan and its timeline as one HTML page");
  auto flags = std::make_shared<ReportFlags>();
  flags->pass = "both";
  add_problem_flags(*verb, *flags);
  verb->add_option("--cluster", flags->cluster, "PRESET, PRESET:nodes=N, or a .toml file")
      ->check(not_empty())
      ->required();
  verb->add_option("--out", flags->out, "The page that is written [report.html]")
      ->check(not_empty());
  verb->add_option("--run", flags->run,
                   "Folder of a run of the same problem: its last whole call of each pass is laid "
                   "over the simulated one")
      ->check(not_empty());
  verb->add_flag("--no-table", flags->no_table, "Without the table of strategies");
  verb->footer(
      "Examples:\n"
      "  armillary report --cluster c6 --world 8 --seq 65536 --heads 32 --head-dim 128\n"
      "  armillary report --cluster c1 --strategy usp:u=8 --world 64 --seq 524288 --heads 32 "
      "--head-dim 128 --layout zigzag --out usp.html\n"
      "  armillary bench layer --world 2 --flight runs/layer; armillary report --cluster my.toml "
      "--world 2 --run runs/layer");
  verb->callback([flags, &exit_code] {
    run_report(*flags);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
