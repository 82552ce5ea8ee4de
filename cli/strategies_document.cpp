// docs/strategies.md: an introduction, then for each strategy a text, a picture and a table of
// costs. All pictures and numbers are those of one problem, on 4 or 8 ranks.
#include "cli/strategies_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategy.h"
#include "armillary/plan/text.h"
#include "cli/costs.h"

namespace armillary::cli {
namespace {

/// The text before the first strategy. Numbers and rules in it must agree with the functions below.
constexpr const char* kIntroduction = R"(# Strategies

Written by the program: `armillary plan --document > docs/strategies.md`. `tests/golden/` compares the two; change the
strategy's `StrategyInfo` or its plan, not this file.

Pictures and numbers are those of one problem: 4,096 tokens, causal, `zigzag`, 8 query heads and 2 KV heads of dim 64, bf16. A
picture is the forward pass on 4 ranks, with the first legal values of the keys. Its cells read `kv1>r3` (send K and V of block 1
to rank 3), `kv0<r1` (receive), `q2*kv1` (attend); `o` is a partial output with its log-sum-exp, `out` the result, `[0:2]` heads
0 and 1. Blocks 2r and 2r + 1 are the early and the late piece of rank r. Tables count the rank that has most: *sent* is what
it sends, *slots* the buffers it needs beside inputs, outputs and what forward leaves for backward; *x bound* is the mean sent over the
least that any strategy with the same share of the work on every rank can receive, with this mask and layout
([notes/lower_bound.md](notes/lower_bound.md)).

*Shorter rings* is said of strategies whose rings do not all go from rank to rank + 1: each goes to the side on which tiles pass fewer ranks on
their way to those who need them with this mask and layout, or both ways at once, half of the ring each. With zigzag and a causal mask
rings of K, V go back, with a window that looks both ways all go both ways and have half the steps.

Formulas of bytes count words per rank with a full mask, and a sum as one word: that is `--wire input`; by default a partial sum of a
bf16 problem takes two. N tokens, P ranks, d the dim of a head, Dq = query heads x d, Dk = KV heads x d,
eps = 2/d for the log-sum-exp, u, Rq = R and Rk = C the ways over heads, queries and keys.

A mask takes away what nobody needs: keys that a rank's queries do not see, and queries that see none of its keys. With a sliding window
`ring`, `allgather`, `double_ring` and `bidirectional_ring` move the halo, with packed documents that are shards nothing. It does not take away
what a strategy moves by its cut, whatever the mask: heads for tokens (`ulysses`, `usp`), a team's gather (`startrail` with c > 1), transposes
and rows (`attention2d`). `auto:traffic` counts that and takes the ring where it is less.
)";

/// The problem of all pictures and numbers. The introduction describes it.
plan::Problem problem(int world) {
  constexpr std::int64_t kTokens = 4096;
  return {.world = world,
          .heads = 8,
          .kv_heads = 2,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::parse_mask("causal", {kTokens, kTokens}),
          .layout = plan::parse_layout("zigzag")};
}

/// The strategy with the first values of its keys that solve the problem; nothing if none do.
std::optional<plan::Strategy> first_legal(const plan::Problem& problem, const std::string& name) {
  const std::vector<plan::Strategy> legal = plan::legal_strategies(problem);
  const auto found = std::find_if(legal.begin(), legal.end(),
                                  [&](const plan::Strategy& one) { return one.name == name; });
  return found == legal.end() ? std::nullopt : std::optional(*found);
}

/// The forward plan on 4 ranks, as a grid in a code block.
std::string picture(const std::string& name) {
  const plan::Problem four = problem(4);
  const std::optional<plan::Strategy> strategy = first_legal(four, name);
  if (!strategy) return "Not on 4 ranks.\n";
  return fmt::format("`{}`:\n\n```\n{}```\n", to_string(*strategy),
                     to_string(plan::lower(plan::make_plan(four, *strategy, plan::Pass::Forward))));
}

/// A Markdown table of costs, with a row for each number of ranks that the strategy solves.
std::string cost_table(const std::string& name) {
  constexpr std::int64_t kKib = 1024;  // All sizes of these plans are multiples of it.
  std::string table =
      "| ranks | strategy | forward: steps | sent KiB | x bound | slots KiB | backward: steps "
      "| sent KiB | slots KiB |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const int world : {4, 8}) {
    const std::optional<plan::Strategy> strategy = first_legal(problem(world), name);
    if (!strategy) continue;
    table += fmt::format("| {} | `{}` |", world, to_string(*strategy));
    // Forward first, then backward: cells of one row.
    plan::ForwardBound bound(problem(world));
    for (plan::Plan& plan :
         plan::make_plans(problem(world), *strategy, {plan::Pass::Forward, plan::Pass::Backward})) {
      const bool forward = plan.pass == plan::Pass::Forward;
      // Costs of the plan that runs, on the rank that has most of each.
      const Costs of_plan = costs(plan::lower(std::move(plan)));
      const plan::Traffic& most = of_plan.most;
      table += fmt::format(" {} | {} |", most.steps, most.sent_bytes / kKib);
      if (forward) {
        const std::optional<double> over = over_bound(of_plan, bound);
        table += over ? fmt::format(" {:.2f} |", *over) : " - |";
      }
      table += fmt::format(" {} |", most.peak_slot_bytes / kKib);
    }
    table += '\n';
  }
  return table;
}

}  // namespace

std::string strategies_document() {
  // A heading with the keys, the texts of the registry as a list, the picture and the table.
  std::string document = kIntroduction;
  for (const plan::StrategyInfo& info : plan::strategies()) {
    document += fmt::format(
        "\n## `{}`\n\n{}.\n\n- **Paper:** {}.\n- **Sent:** {}.\n- **Differs:** {}{}\n\n{}\n{}",
        usage(info), info.summary, info.paper, info.bytes, info.differs,
        info.shortens_rings ? " Shorter rings." : "", picture(info.name), cost_table(info.name));
  }
  return document;
}

}  // namespace armillary::cli
