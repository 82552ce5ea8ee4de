#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "armillary/plan/json.h"
#include "armillary/plan/text.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

struct PlanFlags : ProblemFlags {
  bool json = false;
  bool list = false;
  bool compare = false;
};

void print_list() {
  for (const plan::StrategyInfo& info : plan::strategies()) {
    std::string name = info.name;
    char separator = ':';
    for (const std::string& key : info.keys) {
      name += fmt::format("{}{}=N", separator, key);
      separator = ',';
    }
    fmt::print("{:<14} {:<66} {}\n", name, info.summary, info.paper);
  }
}

/// What a plan costs its busiest rank.
plan::Traffic busiest(const plan::Plan& plan) {
  plan::Traffic most;
  for (const plan::RankProgram& program : plan.ranks) {
    const plan::Traffic one = plan::traffic(plan.problem, plan.blocks, program);
    most.sent_bytes = std::max(most.sent_bytes, one.sent_bytes);
    most.received_bytes = std::max(most.received_bytes, one.received_bytes);
    most.peak_slot_bytes = std::max(most.peak_slot_bytes, one.peak_slot_bytes);
    most.steps = std::max(most.steps, one.steps);
  }
  return most;
}

void print_summary(const plan::Plan& plan) {
  const plan::Traffic most = busiest(plan);
  fmt::print(
      "{} {}: world {}, {} steps; most on one rank: {} bytes sent, {} received, {} in slots\n",
      plan.strategy, to_string(plan.pass), plan.problem.world, most.steps, most.sent_bytes,
      most.received_bytes, most.peak_slot_bytes);
}

/// A Markdown table of all strategies that solve the problem: steps and, on the busiest rank, MiB.
void print_comparison(const plan::Problem& problem) {
  constexpr double kMib = 1 << 20;
  std::string table =
      "| strategy | steps | sent | slots | backward: steps | sent | slots |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const plan::Strategy& strategy : plan::legal_strategies(problem)) {
    table += fmt::format("| {} ", to_string(strategy));
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      const plan::Traffic most = busiest(plan::make_plan(problem, strategy, pass));
      table += fmt::format("| {} | {:.2f} MiB | {:.2f} MiB ", most.steps, most.sent_bytes / kMib,
                           most.peak_slot_bytes / kMib);
    }
    table += "|\n";
  }
  fmt::print("{}", table);
}

void run(const PlanFlags& flags) {
  if (flags.list) return print_list();
  const plan::Problem solved = problem(flags);
  if (flags.compare) return print_comparison(solved);
  const plan::Strategy strategy = plan::parse_strategy(flags.strategy);
  for (const plan::Pass pass : passes(flags)) {
    const plan::Plan plan = plan::make_plan(solved, strategy, pass);
    if (flags.json) {
      fmt::print("{}\n", plan::to_json(plan));
    } else {
      fmt::print("{}", plan::to_string(plan));
      print_summary(plan);
    }
  }
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("plan", "Print the plan of a strategy for a problem");
  auto flags = std::make_shared<PlanFlags>();
  flags->pass = "forward";
  add_problem_flags(*verb, *flags);
  CLI::Option* const json =
      verb->add_flag("--json", flags->json, "The plan as JSON, one object per pass and line");
  CLI::Option* const list =
      verb->add_flag("--list", flags->list, "All strategies with their keys")->excludes(json);
  verb->add_flag("--compare", flags->compare, "A table of all strategies that solve the problem")
      ->excludes(json)
      ->excludes(list)
      ->excludes("--strategy")
      ->excludes("--pass");
  verb->footer(
      "Examples:\n"
      "  armillary plan --strategy ring --world 4 --seq 64 --mask causal --layout zigzag\n"
      "  armillary plan --strategy usp:u=2 --world 8 --heads 32 --kv-heads 8 --pass backward\n"
      "  armillary plan --compare --world 8 --seq 65536 --heads 32 --kv-heads 8\n"
      "  armillary plan --strategy allgather --mask documents:1000,3096 --json > plan.json");
  verb->callback([flags, &exit_code] {
    run(*flags);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
