// The verb `plan`: prints the plans of a strategy as grids or JSON, a comparison of all strategies
// that solve a problem, the list of strategies, or docs/strategies.md.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "armillary/core/count_text.h"
#include "armillary/plan/json.h"
#include "armillary/plan/text.h"
#include "cli/costs.h"
#include "cli/problem_flags.h"
#include "cli/strategies_document.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// The flags of the verb. At most one of the flags that choose an output may be given.
struct PlanFlags : ProblemFlags {
  bool json = false;
  bool list = false;
  bool compare = false;
  std::string ranks_per_node;
  bool document = false;
};

/// One line for each strategy: its name and keys, a summary and its paper.
void print_list() {
  // The column is as wide as the longest name with its keys.
  std::size_t width = 0;
  for (const plan::StrategyInfo& info : plan::strategies()) {
    width = std::max(width, usage(info).size());
  }
  for (const plan::StrategyInfo& info : plan::strategies()) {
    fmt::print("{:<{}}  {}; {}\n", usage(info), width, info.summary, info.paper);
  }
}

/// For a forward plan of an `auto:` strategy: the ratio of its bytes to the lower bound.
void print_distance(const plan::Plan& plan, const Costs& of_plan) {
  const plan::Mask& mask = plan.problem.mask;
  if (plan.pass != plan::Pass::Forward || !plan.strategy.starts_with("auto:") ||
      mask.q_len() != mask.kv_len()) {
    return;
  }
  // The bound is for the work that each rank of this plan has.
  plan::ForwardBound bound(plan.problem);
  if (const std::optional<double> over = over_bound(of_plan, bound)) {
    fmt::print(
        "{:.2f} times what any strategy with this work on each rank must send (bound of {})\n",
        *over, bound.name() == "full mask" ? "a full mask" : "any mask");
  }
}

/// The line below a grid: the costs of the busiest rank.
void print_summary(const plan::Plan& plan) {
  const Costs of_plan = costs(plan);
  const plan::Traffic& most = of_plan.most;
  fmt::print("{} {}: world {}, {}; most on one rank: {} sent, {} received, {} in slots\n",
             plan.strategy, to_string(plan.pass), plan.problem.world, count_of(most.steps, "step"),
             count_of(most.sent_bytes, "byte"), most.received_bytes, most.peak_slot_bytes);
  print_distance(plan, of_plan);
}

/// The largest share of a cost, divided by the mean; "-" if there is none of it.
std::string over_mean(std::int64_t most, std::int64_t sum, int world) {
  if (sum == 0) return "-";
  return fmt::format("{:.2f}", static_cast<double>(most) * world / static_cast<double>(sum));
}

constexpr double kMib = 1 << 20;

/// Bytes that leave a node, on the rank that sends most of them.
std::int64_t most_between_nodes(const plan::Plan& plan, int ranks_per_node) {
  std::int64_t most = 0;
  for (const plan::RankProgram& program : plan.ranks) {
    most = std::max(most,
                    plan::sent_between_nodes(plan.problem, plan.blocks, program, ranks_per_node));
  }
  return most;
}

/// A row of the comparison, without its last `|`. Columns are forward, then backward, then the
/// bytes between nodes of both, if they are asked for.
std::string compared(const plan::Problem& problem, const plan::Strategy& strategy,
                     const std::vector<plan::Lowering>& lowerings,
                     std::optional<plan::ForwardBound>& bound, std::optional<int> ranks_per_node) {
  // Cells of both passes are written in one loop; the bytes between nodes are appended at the end.
  std::string row = fmt::format("| {} ", to_string(strategy));
  std::string between_nodes;
  for (const plan::Plan& plan :
       lowered_plans(problem, strategy, {plan::Pass::Forward, plan::Pass::Backward}, lowerings)) {
    const bool forward = plan.pass == plan::Pass::Forward;
    const Costs of_plan = costs(plan);
    const auto& [most, sum, pairs] = of_plan;
    // The work is that of both passes: they attend to the same pairs.
    if (forward) {
      row += fmt::format("| {} ", over_mean(most.visible_pairs, sum.visible_pairs, problem.world));
    }
    row += fmt::format("| {} | {:.2f} | {} ", most.steps, most.sent_bytes / kMib,
                       over_mean(most.sent_bytes, sum.sent_bytes, problem.world));
    if (forward) {
      const std::optional<double> over = bound ? over_bound(of_plan, *bound) : std::nullopt;
      row += over ? fmt::format("| {:.2f} ", *over) : "| - ";
    }
    row += fmt::format("| {:.2f} ", most.peak_slot_bytes / kMib);
    if (ranks_per_node) {
      between_nodes += fmt::format("| {:.2f} ", most_between_nodes(plan, *ranks_per_node) / kMib);
    }
  }
  return row + between_nodes;
}

/// Explains the column `x bound` for this problem.
std::string legend(std::optional<plan::ForwardBound>& bound) {
  if (!bound) return "-, it is there for as many queries as keys only";
  return fmt::format(
      "mean sent forward, over the least that any strategy with\nthe row's pairs on every rank can "
      "receive with this mask and layout (bound of {}; - where that is nothing);\nthe least is "
      "{:.2f} MiB a rank where all have the same share of the pairs. armillary/plan/lower_bound.md",
      bound->name() == "full mask" ? "a full mask" : "any mask",
      bound->bytes_of_equal_work() / kMib);
}

/// A Markdown table of all strategies that solve the problem: steps, and MiB on the busiest rank.
void print_comparison(const plan::Problem& problem, const std::vector<plan::Lowering>& lowerings,
                      std::optional<int> ranks_per_node) {
  // The bound is defined for as many queries as keys. All rows share it, because it keeps results.
  bool first = true;
  std::optional<plan::ForwardBound> bound;
  if (problem.mask.q_len() == problem.mask.kv_len()) bound.emplace(problem);
  for (const plan::Strategy& strategy : plan::legal_strategies(problem)) {
    // The first row is made before the heading is printed: an error comes without output.
    const std::string row = compared(problem, strategy, lowerings, bound, ranks_per_node);
    if (first) {
      fmt::print(
          "| strategy | work max/mean | steps | sent MiB | max/mean | x bound | slots MiB "
          "| backward: steps | sent MiB | max/mean | slots MiB {}|\n"
          "|---|---|---|---|---|---|---|---|---|---|---|{}\n",
          ranks_per_node ? "| between nodes MiB | backward " : "",
          ranks_per_node ? "---|---|" : "");
    }
    first = false;
    fmt::print("{}|\n", row);
  }
  fmt::print("\nsent, slots: on the busiest rank. x bound: {}.\n", legend(bound));
  if (ranks_per_node) {
    fmt::print(
        "between nodes: sent to ranks of other nodes of {} neighbours, by the busiest rank.\n",
        *ranks_per_node);
  }
}

/// Prints what the flags ask for. Plans are printed when all passes are made.
void run(const PlanFlags& flags) {
  // The flags that choose an output exclude each other, so their order does not matter.
  if (flags.list) return print_list();
  if (flags.document) return fmt::print("{}", strategies_document());
  if (flags.compare) {
    std::optional<int> ranks_per_node;
    if (!flags.ranks_per_node.empty()) {
      ranks_per_node = parse_count("--ranks-per-node", flags.ranks_per_node);
    }
    return print_comparison(problem(flags), plan::parse_lowerings(flags.lower), ranks_per_node);
  }
  for (const plan::Plan& plan : lowered_plans(flags)) {
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
  CLI::Option* const compare =
      verb->add_flag("--compare", flags->compare,
                     "A table of the strategies that solve the problem, with the\n"
                     "usual values of their keys")
          ->excludes(json)
          ->excludes(list)
          ->excludes("--strategy")
          ->excludes("--pass");
  verb->add_option("--ranks-per-node", flags->ranks_per_node,
                   "With --compare: also the bytes that leave nodes of so many neighbours")
      ->needs(compare)
      ->check(not_empty());
  verb->add_flag("--document", flags->document,
                 "All strategies with their costs, as docs/strategies.md")
      ->excludes(json)
      ->excludes(list)
      ->excludes(compare);
  verb->footer(
      "Examples:\n"
      "  armillary plan --strategy ring --world 4 --seq 64 --mask causal --layout zigzag\n"
      "  armillary plan --strategy usp:u=2 --world 8 --heads 32 --kv-heads 8 --pass backward\n"
      "  armillary plan --strategy ring --world 2 --lower none\n"
      "  armillary plan --compare --world 8 --seq 65536 --heads 32 --kv-heads 8\n"
      "  armillary plan --compare --world 16 --heads 32 --ranks-per-node 8\n"
      "  armillary plan --strategy allgather --mask documents:1000,3096 --json > plan.json\n"
      "  armillary plan recipes/llama.toml --set parallelism.zero=3");
  verb->callback([flags, &exit_code] {
    run(*flags);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
