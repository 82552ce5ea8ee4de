// problem_flags.cpp: flags of a problem: their help texts, and the conversion from text by the
// parsers of the library. All values are texts until then, so that every bad one is refused in the
// same words wherever it was given.
#include "cli/problem_flags.h"

#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/predict/cost/attention_memory.h"

namespace armillary::cli {

int parse_count(std::string_view flag, const std::string& text) {
  return static_cast<int>(parse_integer(flag, text, {1, std::numeric_limits<int>::max()}));
}

CLI::Validator not_empty() {
  // The second text is a description, which would be repeated in the help of every flag.
  return {[](const std::string& text) -> std::string {
            return text.empty() ? "'' given; a value is required" : "";
          },
          ""};
}

void add_problem_flags(CLI::App& verb, ProblemFlags& flags) {
  // Defaults stand in brackets in the help texts, so CLI11's own are replaced by a blank.
  const auto add = [&](const char* name, std::string& value, const std::string& help) {
    verb.add_option(name, value, help)
        ->capture_default_str()
        ->option_text(" ")
        ->group(kProblemGroup)
        ->check(not_empty());
  };
  // The strategy and the problem, then the choices of passes, lowering and transfer dtype.
  add("--strategy", flags.strategy,
      "NAME[:key=value,..]; `armillary plan --list` shows all [ring]");
  add("--world", flags.world,
      "Ranks that share the sequence, up to 16384; plans of up to 1024 are printed [4]");
  add("--seq", flags.seq, "Queries in the whole sequence [4096]");
  add("--kv-seq", flags.kv_seq, "Keys [as many as queries]");
  add("--heads", flags.heads, "Query heads [8]");
  add("--kv-heads", flags.kv_heads, "KV heads; must divide the query heads [as many]");
  add("--head-dim", flags.head_dim, "Dim of a head of Q and K [64]");
  add("--value-dim", flags.value_dim, "Dim of a head of V and the output [as --head-dim]");
  add("--batch", flags.batch, "Sequences at once [1]");
  add("--dtype", flags.dtype, "fp64, fp32, bf16 or fp16 [bf16]");
  add("--mask", flags.mask,
      "full | causal[:align=start|end] | window:left=L,right=R | prefix:N | block_causal:B |\n"
      "documents:LEN,LEN,..[,within=causal|full|window,left=L,right=R] |\n"
      "bands:Q0-Q1/K0-K1/LO..HI;.. [causal]");
  add("--layout", flags.layout, "contiguous, zigzag, striped[:W] or balanced [contiguous]");
  add("--pass", flags.pass,
      fmt::format("forward, backward, replay or both [{}]",
                  flags.pass.empty() ? "forward for plan, both for verify" : flags.pass));
  add("--lower", flags.lower,
      "How the strategy's program is shortened before it runs: all, none, or some of\n"
      "fuse, alias, coalesce, zero_copy with commas between them [all]");
  add("--transfer-dtype", flags.transfer_dtype,
      "accumulator or input: dtype in which partial outputs and gradients travel [accumulator]");
  // A switch has no value, so it is no part of the list above.
  verb.add_flag("--return-lse", flags.return_lse, "Also bring the log-sum-exp home")
      ->option_text(" ")
      ->group(kProblemGroup);
}

plan::Problem problem(const ProblemFlags& flags) {
  // Flags that were left out take the value of another flag.
  const std::int64_t seq = parse_integer("--seq", flags.seq);
  const std::int64_t kv_seq = flags.kv_seq.empty() ? seq : parse_integer("--kv-seq", flags.kv_seq);
  const int heads = parse_count("--heads", flags.heads);
  const int head_dim = parse_count("--head-dim", flags.head_dim);
  plan::Problem problem{
      .world = parse_count("--world", flags.world),
      .batch = parse_integer("--batch", flags.batch, {1}),
      .heads = heads,
      .kv_heads = flags.kv_heads.empty() ? heads : parse_count("--kv-heads", flags.kv_heads),
      .head_dim = head_dim,
      .value_dim = flags.value_dim.empty() ? head_dim : parse_count("--value-dim", flags.value_dim),
      .dtype = plan::parse_dtype(flags.dtype),
      .mask = plan::parse_mask(flags.mask, {seq, kv_seq}),
      .layout = plan::parse_layout(flags.layout),
      .return_lse = flags.return_lse,
      .transfer_dtype = plan::parse_transfer_dtype(flags.transfer_dtype)};
  plan::validate(problem);  // Rules between flags, such as heads and KV heads.
  return problem;
}

std::optional<plan::Problem> with_length(ProblemFlags flags, std::int64_t seq) {
  try {
    flags.seq = std::to_string(seq);
    return problem(flags);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

std::vector<plan::Pass> passes(const ProblemFlags& flags) {
  constexpr std::array<std::string_view, 4> kNames{"forward", "backward", "replay", "both"};
  // Cases are in the order of the names.
  switch (parse_choice("--pass", flags.pass, kNames)) {
    case 0:
      return {plan::Pass::Forward};
    case 1:
      return {plan::Pass::Backward};
    case 2:
      return {plan::Pass::Replay};
    default:
      return {plan::Pass::Forward, plan::Pass::Backward};
  }
}

void check_fits(const ProblemFlags& flags, const sim::Cluster& cluster) {
  const plan::Problem of_flags = problem(flags);
  const plan::Strategy strategy = plan::parse_strategy(flags.strategy);
  check_legal(of_flags, strategy);
  cost::check_fits({.problem = [&](std::int64_t seq) { return with_length(flags, seq); },
                    .seq = of_flags.mask.q_len(),
                    .strategy = strategy,
                    .passes = passes(flags)},
                   cluster);
}

std::vector<plan::Plan> lowered_plans(const plan::Problem& problem, const plan::Strategy& strategy,
                                      const std::vector<plan::Pass>& passes,
                                      const std::vector<plan::Lowering>& lowerings) {
  std::vector<plan::Plan> plans = plan::make_plans(problem, strategy, passes);
  for (plan::Plan& plan : plans) plan = plan::lower(std::move(plan), lowerings);
  return plans;
}

std::vector<plan::Plan> lowered_plans(const ProblemFlags& flags) {
  // Cheap flags are parsed first: an error in them comes before the plans are made.
  const std::vector<plan::Lowering> lowerings = plan::parse_lowerings(flags.lower);
  return lowered_plans(problem(flags), plan::parse_strategy(flags.strategy), passes(flags),
                       lowerings);
}

}  // namespace armillary::cli
