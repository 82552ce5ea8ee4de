// The verb `report`: one HTML file with a plan, its simulated timeline, and a measured one of a
// finished run, or the phases of inference of a model. The page is made in report/.
#include "armillary/lab/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/host/recorder/problems.h"
#include "armillary/host/recorder/reader.h"
#include "armillary/predict/cost/inference.h"
#include "armillary/predict/sim/compare.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/group_share.h"
#include "cli/output_file.h"
#include "cli/problem_flags.h"
#include "cli/serve_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// The flags of the verb.
struct ReportFlags : ProblemFlags {
  std::string cluster;
  ServeFlags serve;
  std::string run;
  std::string out = "report.html";
  bool no_table = false;
  std::string problem_flag;  ///< A flag of the problem, if there is one.
};

/// A run with the flags of its problem.
struct RunToShow {
  ReportFlags flags;
  recorder::RecordedRun run;
};

/// Puts a flag of a recorded problem in its place. @throws InvalidArgument for a name that is none.
void set_flag(ReportFlags& flags, const std::string& name, const std::string& value) {
  constexpr std::array<std::pair<std::string_view, std::string ReportFlags::*>, 14> kPlaces{
      {{"--strategy", &ReportFlags::strategy},
       {"--world", &ReportFlags::world},
       {"--batch", &ReportFlags::batch},
       {"--seq", &ReportFlags::seq},
       {"--kv-seq", &ReportFlags::kv_seq},
       {"--heads", &ReportFlags::heads},
       {"--kv-heads", &ReportFlags::kv_heads},
       {"--head-dim", &ReportFlags::head_dim},
       {"--value-dim", &ReportFlags::value_dim},
       {"--dtype", &ReportFlags::dtype},
       {"--mask", &ReportFlags::mask},
       {"--layout", &ReportFlags::layout},
       {"--transfer-dtype", &ReportFlags::transfer_dtype},
       {"--wire", &ReportFlags::transfer_dtype}}};  // of older runs
  const auto* const place = std::ranges::find(kPlaces, name, &decltype(kPlaces)::value_type::first);
  if (place == kPlaces.end()) {
    fail<InvalidArgument>("report: {} is recorded in {}; a flag of a problem is required",
                          quote(name), excerpt(flags.run));
  }
  flags.*place->second = value;
}

/// Refuses a problem of another world than the run's: plans of a large one take seconds to make.
void check_world(const recorder::RecordedProblem& problem, const std::string& run_folder,
                 const recorder::RecordedRun& run) {
  const std::string ranks = fmt::to_string(run.flights.size());
  for (const auto& [name, value] : problem.flags) {
    if (name != "--world" || value == ranks) continue;
    fail<InvalidArgument>(
        "report: {} has a problem of world {}, the run has {}; it is left out if it is removed",
        quote(recorder::problems_path(run_folder)), excerpt(value),
        count_of(run.flights.size(), "rank"));
  }
}

/// The run, and its problem if it recorded one: the last of which every pass has a whole call, and
/// only calls of that one. Otherwise the flags are those that were given.
RunToShow run_to_show(ReportFlags flags) {
  recorder::RecordedRun run = recorder::read_run(flags.run);
  const std::int64_t pid = run.flights.at(0) ? run.flights[0]->pid : 0;
  const std::vector<recorder::RecordedProblem> problems = recorder::read_problems(flags.run, pid);
  if (problems.empty()) return {std::move(flags), std::move(run)};
  if (!flags.problem_flag.empty()) {
    fail<InvalidArgument>("report: {} with --run {}, which says its problem; leave it out",
                          flags.problem_flag, excerpt(flags.run));
  }
  for (const recorder::RecordedProblem& problem : problems) check_world(problem, flags.run, run);
  std::optional<RunToShow> last;
  std::int64_t until_ns = std::numeric_limits<std::int64_t>::max();
  for (auto problem = problems.rbegin(); problem != problems.rend(); ++problem) {
    RunToShow one{flags, report::calls_between(run, problem->since_ns, until_ns)};
    for (const auto& [name, value] : problem->flags) set_flag(one.flags, name, value);
    const std::vector<plan::Plan> plans = lowered_plans(one.flags);
    const auto whole = [&](const plan::Plan& plan) {
      return report::has_whole_call(one.run, plan);
    };
    if (std::ranges::all_of(plans, whole)) return one;
    if (!last) last = std::move(one);
    until_ns = problem->since_ns;
  }
  return *std::move(last);
}

/// The cluster of a report beside a run. The kernel curves of another dtype stand in where it has
/// none of the run's; `machines` tells that, and on what the run ran.
sim::Cluster cluster_beside(const RunToShow& shown, std::string& machines) {
  const ReportFlags& flags = shown.flags;
  sim::Cluster cluster = sim::load_cluster(flags.cluster);
  std::set<std::string> hosts;
  for (const auto& flight : shown.run.flights) {
    if (flight) hosts.insert(flight->host);
  }
  const std::vector<std::string> presets = sim::preset_names();
  const bool is_file =
      flags.cluster.find('/') != std::string::npos || flags.cluster.ends_with(".toml");
  const bool is_preset = !is_file && std::ranges::find(presets, cluster.name) != presets.end();
  machines = fmt::format(
      "Measured on {}{}; simulated on {}{}.", *hosts.begin(),
      hosts.size() > 1 ? " and " + count_of(hosts.size() - 1, "other") : "", flags.cluster,
      is_preset ? ", another machine: armillary calibrate describes this one" : "");
  const plan::Dtype dtype = plan::parse_dtype(flags.dtype);
  std::vector<sim::KernelCurve>& kernels = cluster.device.kernels;
  const auto serves = [&](const sim::KernelCurve& curve) {
    return bytes_of(curve.dtype) == bytes_of(dtype);  // as the simulator takes them
  };
  if (!kernels.empty() && std::ranges::none_of(kernels, serves)) {
    const plan::Dtype other = kernels.front().dtype;
    for (sim::KernelCurve& curve : kernels) {
      if (curve.dtype == other) curve.dtype = dtype;
    }
    machines += fmt::format(" {} has no kernels of {}: simulated with those of {}.",
                            cluster.device.name, to_string(dtype), to_string(other));
  }
  return cluster;
}

/// Adds passes, each beside that of the run, and the table to a page with its cluster, and writes
/// it.
void write_page(const ReportFlags& flags, const std::optional<RunToShow>& shown,
                report::Report content) {
  const plan::Problem of_flags = problem(flags);
  if (of_flags.world > report::kMaxRanks) {
    fail<InvalidArgument>("report: world {}; at most {} ranks fit into a page", of_flags.world,
                          report::kMaxRanks);
  }
  check_fits(flags, content.cluster);
  check_writable("report", flags.out);
  for (plan::Plan& plan : lowered_plans(flags)) {
    sim::Timeline timeline =
        simulate(plan, content.cluster, {.record = {.ops = true, .flows = true}});
    content.passes.push_back({.plan = std::move(plan), .timeline = std::move(timeline)});
    report::ReportedPass& pass = content.passes.back();
    if (shown) pass.measured = report::measured_pass(flags.run, shown->run, pass.plan);
  }
  if (!flags.no_table) {
    content.strategies = sim::compare_strategies(of_flags, content.cluster, passes(flags));
  }
  const std::string page = report::to_html(content);
  write_file("report", flags.out, page);
  fmt::print("{}: {:.1f} MB, {} of {}\n", flags.out, static_cast<double>(page.size()) / 1e6,
             count_of(content.passes.size(), "pass", "passes"), count_of(of_flags.world, "rank"));
  if (shown) fmt::print("{}\n", content.machines);
}

void run_report(const ReportFlags& arguments) {
  std::optional<RunToShow> shown;
  std::string machines;
  if (!arguments.run.empty()) shown = run_to_show(arguments);
  const ReportFlags& flags = shown ? shown->flags : arguments;
  const sim::Cluster cluster =
      shown ? cluster_beside(*shown, machines) : sim::load_cluster(flags.cluster);
  report::Report content{.mask = flags.mask, .cluster = cluster, .passes = {}};
  content.machines = machines;
  write_page(flags, shown, std::move(content));
}

/// The flags of attention in a layer of a prefill, on the ranks of one index along tp.
ReportFlags flags_of_layer(ReportFlags flags, const cost::Inference& of) {
  const cost::ModelAttention& model = of.model.attention;
  flags.world = std::to_string(of.cp);
  flags.heads = std::to_string(model.heads / of.tp);
  flags.kv_heads = std::to_string(std::max<std::int64_t>(model.kv_heads / of.tp, 1));
  flags.head_dim = std::to_string(model.head_dim);
  flags.layout = to_string(of.layout);
  flags.pass = "forward";
  return flags;
}

std::vector<report::ReportedPhase> phases_of(const cost::InferenceCost& cost) {
  const cost::StepTime& prefill = cost.prefill;
  const cost::DecodeTime& decode = cost.decode;
  return {{"time to first token",
           prefill.total(),
           {{"products", prefill.products},
            {"attention", prefill.attention},
            {"passes over activations", prefill.passes},
            {"messages of tp", prefill.tensor_parallel}}},
          {"time per token",
           decode.total(),
           {{"matrices", decode.matrices},
            {"cache", decode.cache},
            {"exchange", decode.exchange},
            {"messages of tp", decode.tensor_parallel}}}};
}

/// A page of both phases of a prompt, with the forward pass of a layer.
void report_inference(const CLI::App& verb, const ReportFlags& flags) {
  const sim::Cluster cluster = sim::load_cluster(flags.cluster);
  const cost::Inference inference = inference_of(verb, flags.serve, flags, cluster);
  const cost::InferenceCost cost = inference_cost(inference, cluster);
  check_inference_fits("report", inference, cost, cluster);
  constexpr double kGib = 1 << 30;
  report::Report content{
      .mask = flags.mask, .cluster = sim::group_share(cluster, inference.tp), .passes = {}};
  content.phases = phases_of(cost);
  content.phase_notes = {
      fmt::format("{} reads {} over cp {}, tp {}; attention above is that of one of {}, on the "
                  "ranks of one index along tp.",
                  flags.serve.model, count_of(inference.prompt, "token"), inference.cp,
                  inference.tp, count_of(inference.model.attention.layers, "layer")),
      fmt::format("The cache has {:.2f} GiB on a rank; the longest prompt in one pass is {}.",
                  cost.cache_bytes / kGib, count_of(cost.longest_prompt, "token"))};
  write_page(flags_of_layer(flags, inference), std::nullopt, std::move(content));
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
  verb->add_option(
          "--run", flags->run,
          "Folder of a run: its problem is taken, or, of a bench, that of the flags; its last "
          "whole call of each pass is laid over the simulated one")
      ->check(not_empty());
  verb->add_flag("--no-table", flags->no_table, "Without the table of strategies");
  add_serve_flags(*verb, flags->serve);
  verb->footer(
      "Examples:\n"
      "  armillary report --cluster c6 --world 8 --seq 65536 --heads 32 --head-dim 128\n"
      "  armillary report --cluster c1 --strategy usp:u=8 --world 64 --seq 524288 --heads 32 "
      "--head-dim 128 --layout zigzag --out usp.html\n"
      "  armillary report --cluster c1:nodes=16 --serve llama3-70b --tp 8 --seq 1048576\n"
      "  armillary calibrate --world 4 --out my.toml; armillary report --cluster my.toml --run "
      "runs/default\n"
      "  armillary bench layer --world 2 --flight runs/layer; armillary report --cluster my.toml "
      "--world 2 --run runs/layer");
  verb->callback([flags, verb, &exit_code] {
    for (const CLI::Option* option : verb->get_options()) {
      const std::string name = option->get_name();
      const bool of_plans = name == "--pass" || name == "--lower";
      if (option->get_group() == kProblemGroup && !of_plans && option->count() > 0) {
        flags->problem_flag = name;
      }
    }
    if (flags->serve.model.empty()) {
      run_report(*flags);
    } else {
      report_inference(*verb, *flags);
    }
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
