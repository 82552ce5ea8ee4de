// The verb `verify`: proves plans that a strategy makes or that a file holds. It prints a line for
// each plan that is exact; for one that is wrong it prints the plan with the place of the first
// error marked, and the broken rules. It can break a plan on purpose first, to show an error, and
// record the proof of a problem in a file.
#include "armillary/plan/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/json_text.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/plan/json.h"
#include "armillary/plan/mutate.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/program/parallel_for_ranks.h"
#include "armillary/plan/text.h"
#include "armillary/plan/verify/verify_folded.h"
#include "armillary/proof/proof_file.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// The flags of the verb.
struct VerifyFlags : ProblemFlags {
  std::string file;
  std::string mutation;
  std::string proofs;
  bool json = false;
  bool fold = false;
};

/// Plans as JSON lines; empty lines are skipped. `name` is that of the input, for errors.
std::vector<plan::Plan> parse_plans(std::string_view text, const std::string& name) {
  std::vector<plan::Plan> plans;
  int number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    // Errors of the parser get the line number.
    try {
      plans.push_back(plan::parse_json(line));
    } catch (const InvalidArgument& error) {
      fail<InvalidArgument>("verify: {}, line {}: {}", name, number, error.what());
    }
  }
  if (plans.empty()) {
    fail<InvalidArgument>("verify: {} holds no plan; one JSON object per line is required", name);
  }
  return plans;
}

/// Plans of a file, or of standard input, which may be a pipe.
std::vector<plan::Plan> read_plans(const std::string& path) {
  if (path == "-" || path == "/dev/stdin") {
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    if (std::cin.bad()) fail<IoError>("verify: standard input cannot be read to its end");
    return parse_plans(text, "standard input");
  }
  return parse_plans(read_input({.where = "verify",
                                 .required = "a file of plans as JSON lines, or - for standard "
                                             "input,"},
                                path),
                     excerpt(path));
}

/// The plans of `--file`, or else of the strategy.
std::vector<plan::Plan> make_plans(const VerifyFlags& flags) {
  if (!flags.file.empty()) return read_plans(flags.file);
  return lowered_plans(flags);
}

/// Breaks the first plan on purpose: applies its single-op mutation of this number. The plan must
/// be correct before. Says on standard error what was changed.
void break_one(std::vector<plan::Plan>& plans, const std::string& number) {
  if (!plan::verify(plans[0], 1).empty()) {
    fail<InvalidArgument>("--break: the plan is wrong already; one that verifies is required");
  }
  // Mutations are numbered in a fixed order, so a number names the same one every time.
  const std::vector<plan::Mutation> all = plan::mutations(plans[0]);
  if (all.empty()) fail<InvalidArgument>("--break: this plan has no op to break");
  const std::int64_t n =
      parse_integer("--break", number, {0, static_cast<std::int64_t>(all.size()) - 1});
  fmt::print(stderr, "broken on purpose: {}\n", to_string(all[n]));
  plans[0] = plan::apply(plans[0], all[n]);
}

void add_diagnostics(nlohmann::ordered_json& line,
                     const std::vector<plan::Diagnostic>& diagnostics) {
  line["diagnostics"] = nlohmann::json::array();
  for (const plan::Diagnostic& d : diagnostics) {
    line["diagnostics"].push_back(
        {{"rank", d.rank}, {"op", d.op}, {"rule", d.rule}, {"text", d.text}});
  }
}

/// Ops of all ranks, and steps of the program with most.
struct PlanSize {
  std::size_t ops = 0;
  int steps = 0;
};

PlanSize size_of(const plan::Plan& plan) {
  std::vector<int> steps(plan.ranks.size());
  plan::parallel_for_ranks(static_cast<int>(steps.size()), [&](plan::Rank rank) {
    steps[rank] = plan::count_steps(plan.ranks[rank]);
  });
  PlanSize size;
  for (const plan::RankProgram& program : plan.ranks) size.ops += program.ops.size();
  for (const int one : steps) size.steps = std::max(size.steps, one);
  return size;
}

/// The JSON line of a plan: verdict, costs by rank, and all diagnostics.
nlohmann::ordered_json result_line(const plan::Plan& plan,
                                   const std::vector<plan::Diagnostic>& diagnostics) {
  nlohmann::ordered_json line{{"ok", diagnostics.empty()},
                              {"strategy", plan.strategy},
                              {"world", plan.problem.world},
                              {"pass", to_string(plan.pass)}};
  // Lists with a number for each rank; their names are in the order of `values` below.
  constexpr const char* kPerRank[] = {"sent_bytes_per_rank", "received_bytes_per_rank",
                                      "peak_slot_bytes_per_rank", "visible_pairs_per_rank"};
  for (const char* key : kPerRank) line[key] = nlohmann::json::array();
  // Sizes of a malformed plan mean nothing, so it has no costs.
  const bool readable = diagnostics.empty() ||
                        (diagnostics[0].rule != "well_formed" && diagnostics[0].rule != "blocks");
  std::vector<plan::Traffic> traffic;
  if (readable) {
    traffic.resize(plan.ranks.size());
    plan::parallel_for_ranks(plan.problem.world, [&](plan::Rank rank) {
      traffic[rank] = plan::traffic(plan.problem, plan.blocks, plan.ranks[rank]);
    });
  }
  for (const plan::Traffic& one : traffic) {
    const std::int64_t values[] = {one.sent_bytes, one.received_bytes, one.peak_slot_bytes,
                                   one.visible_pairs};
    for (int i = 0; i < 4; ++i) line[kPerRank[i]].push_back(values[i]);
  }
  const PlanSize size = size_of(plan);
  line["steps"] = size.steps;
  line["ops"] = size.ops;
  add_diagnostics(line, diagnostics);
  return line;
}

/// Prints the verdict about one plan. `assumption` names an assumption of the proof, or is empty.
void print(const plan::Plan& plan, const std::vector<plan::Diagnostic>& diagnostics,
           std::string_view assumption, bool json) {
  if (json) {
    fmt::print("{}\n", json_text(result_line(plan, diagnostics)));
    return;
  }
  if (diagnostics.empty()) {
    const PlanSize size = size_of(plan);
    fmt::print("{} {}: exact{}. world {}, {} in {}; no deadlock, no hazard, every pair once\n",
               excerpt(plan.strategy), to_string(plan.pass), assumption, plan.problem.world,
               count_of(size.ops, "op"), count_of(size.steps, "step"));
    return;
  }
  // The printed plan marks the place of the first broken rule; all broken rules follow as lines.
  fmt::print("{}", plan::to_string(plan, &diagnostics[0]));
  for (const plan::Diagnostic& d : diagnostics) {
    fmt::print("{} {}: rank {} op {}: {}: {}\n", excerpt(plan.strategy), to_string(plan.pass),
               d.rank, d.op, d.rule, d.text);
  }
}

/// The ranks that the proof looked at.
std::string what_was_proved(const plan::FoldedProof& proof, int world) {
  if (world == 1) return "The one rank was proved";
  if (proof.classes == world) {
    return fmt::format("No two ranks are alike: each of {} was proved", world);
  }
  return fmt::format(
      "Folded: one rank of each of {} was proved, and {} of {} were compared with theirs",
      count_of(proof.classes, "class", "classes"), proof.compared, count_of(world, "rank"));
}

/// Prints the verdict about a pass of which one rank of each class was proved, or all if none are
/// alike.
void print_folded(const plan::Planner& planner, plan::Pass pass, const plan::FoldedProof& proof,
                  bool json) {
  const std::string name = fmt::format("{} {}", to_string(planner.strategy()), to_string(pass));
  const int world = planner.problem().world;
  if (json) {
    nlohmann::ordered_json line{{"ok", proof.diagnostics.empty()},
                                {"strategy", to_string(planner.strategy())},
                                {"world", world},
                                {"pass", to_string(pass)},
                                {"classes", proof.classes},
                                {"compared", proof.compared},
                                {"steps", proof.steps},
                                {"ops", proof.ops}};
    add_diagnostics(line, proof.diagnostics);
    fmt::print("{}\n", json_text(line));
    return;
  }
  if (proof.diagnostics.empty()) {
    fmt::print("{}: exact. world {}, {} in {}; no deadlock, no hazard, every pair once. {}\n", name,
               world, count_of(proof.ops, "op"), count_of(proof.steps, "step"),
               what_was_proved(proof, world));
  }
  for (const plan::Diagnostic& d : proof.diagnostics) {
    fmt::print("{}: rank {} op {}: {}: {}\n", name, d.rank, d.op, d.rule, d.text);
  }
}

/// Proves all passes as they run, and records the proof.
int save_proof(const VerifyFlags& flags) {
  // Programs that run are always lowered by all passes, so no other proof is of use.
  std::vector<plan::Lowering> lowerings = plan::parse_lowerings(flags.lower);
  std::sort(lowerings.begin(), lowerings.end());
  if (!std::equal(lowerings.begin(), lowerings.end(), plan::kLowerings.begin(),
                  plan::kLowerings.end())) {
    fail<InvalidArgument>("--save-proof: --lower is {}; 'all' is required: what runs is lowered",
                          quote(flags.lower));
  }
  // Prove, record, and say so.
  const plan::Problem request = problem(flags);
  const plan::Strategy strategy = plan::parse_strategy(flags.strategy);
  const std::string path = proof::save_proof(flags.proofs, request, strategy);
  if (flags.json) {
    const nlohmann::ordered_json line{
        {"ok", true}, {"strategy", to_string(strategy)}, {"world", request.world}, {"proof", path}};
    fmt::print("{}\n", json_text(line));
  } else {
    fmt::print("{}: forward, backward and replay are exact on {}; recorded in {}\n",
               to_string(strategy), count_of(request.world, "rank"), path);
  }
  return kDone;
}

/// Proves one rank of each class, and prints the verdicts. Returns the exit code.
int verify_by_class(const VerifyFlags& flags) {
  const std::vector<plan::Lowering> lowerings = plan::parse_lowerings(flags.lower);
  const plan::Planner planner(problem(flags), plan::parse_strategy(flags.strategy));
  const std::vector<plan::Pass> request = passes(flags);
  const auto program = [&](plan::Pass pass, plan::Rank rank) {
    return plan::lower(planner.problem(), planner.blocks(), planner.program(pass, rank), lowerings);
  };
  const std::vector<plan::FoldedProof> proofs = plan::verify_folded(planner, request, program);
  bool ok = true;
  for (std::size_t p = 0; p < proofs.size(); ++p) {
    const plan::FoldedProof& proof = proofs[p];
    ok = ok && proof.diagnostics.empty();
    print_folded(planner, request[p], proof, flags.json);
  }
  return ok ? kDone : kFailed;
}

/// Verifies the plans and prints the verdicts. Returns the exit code.
int run(const VerifyFlags& flags) {
  if (!flags.proofs.empty()) return save_proof(flags);
  const bool large = flags.file.empty() && flags.mutation.empty() &&
                     parse_count("--world", flags.world) > plan::kMostTogether;
  if (flags.fold || large) return verify_by_class(flags);
  std::vector<plan::Plan> plans = make_plans(flags);
  if (!flags.mutation.empty()) break_one(plans, flags.mutation);
  const std::vector<plan::PassVerdict> verdicts = plan::verify_together(plans);
  bool ok = true;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const auto& [diagnostics, assumes_forward] = verdicts[i];
    ok = ok && diagnostics.empty();
    print(plans[i], diagnostics, assumes_forward ? ", given what forward saves" : "", flags.json);
  }
  return ok ? kDone : kFailed;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("verify", "Prove that a plan is exact attention, or show where it is not");
  auto flags = std::make_shared<VerifyFlags>();
  flags->pass = "both";
  add_problem_flags(*verb, *flags);
  CLI::Option* const file =
      verb->add_option("--file", flags->file, "Plans to judge, as JSON lines; - for standard input")
          ->option_text("FILE")
          ->check(not_empty());
  for (CLI::Option* option : verb->get_options()) {  // Plans in a file include their problem.
    if (option->get_group() == kProblemGroup) file->excludes(option);
  }
  verb->add_option("--break", flags->mutation,
                   "Break the plan on purpose: apply its N-th single-op mutation first")
      ->option_text("N")
      ->check(not_empty());
  CLI::Option* const save =
      verb->add_option("--save-proof", flags->proofs,
                       "Prove all passes and record it in DIR, for parallelism.proofs of a recipe")
          ->option_text("DIR")
          ->check(not_empty())
          ->excludes(file)
          ->excludes("--break");
  save->excludes("--pass");
  verb->add_flag("--fold", flags->fold,
                 "Prove one rank of each class of ranks that are alike, all where none are; above "
                 "1024 ranks always")
      ->excludes(file)
      ->excludes("--break")
      ->excludes(save);
  verb->add_flag(
      "--json", flags->json,
      "One object per plan and line; visible_pairs count (batch entry, query head, query, key)");
  verb->footer(
      "Examples:\n"
      "  armillary verify --strategy ring --world 64 --seq 65536 --layout zigzag\n"
      "  armillary verify --strategy usp:u=4 --world 8 --heads 32 --kv-heads 8 --json\n"
      "  armillary verify --strategy ring --world 4 --seq 64 --break 12\n"
      "  armillary plan --strategy ulysses --json | armillary verify --file -\n"
      "  armillary verify --strategy ring --world 64 --seq 65536 --save-proof proofs\n"
      "  armillary verify recipes/llama.toml --set parallelism.zero=3\n"
      "Exit code: 0 if every plan is exact, 1 if one is not, 2 for bad input.");
  verb->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace armillary::cli
