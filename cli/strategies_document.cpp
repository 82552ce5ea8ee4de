// docs/strategies.md: an introduction, a table of costs, then a text for each strategy. All numbers
// are those of one problem, on 8 ranks.
#include "cli/strategies_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/text.h"
#include "cli/costs.h"

namespace armillary::cli {
namespace {

/// The text before the first strategy. Numbers and rules in it must agree with the functions below.
constexpr const char* kIntroduction = R"(# Strategies

Written by `armillary plan --document > docs/strategies.md` from each `StrategyInfo` and its plans. Pictures of plans
on 4 ranks: [tests/golden/pictures.txt](../tests/golden/pictures.txt), of any problem: `armillary plan --strategy ..`

A mask takes away what nobody needs: with a sliding window `ring`, `allgather`, `double_ring` and
`bidirectional_ring` move the halo. It does not take away what a strategy moves by its cut: heads for tokens
(`ulysses`, `usp`), a team's gather (`startrail` with c > 1), transposes and rows (`attention2d`).

## Costs

4,096 tokens, causal, `zigzag`, 8 query heads and 2 KV heads of dim 64, bf16, on 8 ranks, with the first legal
values of the keys; the rank that has most. *sent* is what it sends, *slots* the buffers it needs beside inputs,
outputs and what forward leaves for backward, *x bound* the mean sent over the least that any strategy with the same
shares of the work can receive ([lower_bound.md](../armillary/plan/lower_bound.md)).

)";

/// The text before the texts of the strategies.
constexpr const char* kTexts = R"(
Formulas of bytes count words per rank with a full mask, and a sum as one word, as with `--transfer-dtype input`; by
default a partial sum of a bf16 problem takes two. N tokens, P ranks, d the dim of a head, Dq = query heads x d,
Dk = KV heads x d, eps = 2/d for the log-sum-exp, u, Rq = R and Rk = C the ways over heads, queries and keys.

*Shorter rings* go to the side on which tiles pass fewer ranks on their way to those who need them, or both ways at
once. With zigzag and a causal mask rings of K, V go back, with a window that looks both ways all go both ways.
)";

/// The problem of all numbers. The introduction describes it.
plan::Problem problem() {
  constexpr std::int64_t kTokens = 4096;
  return {.world = 8,
          .heads = 8,
          .kv_heads = 2,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::parse_mask("causal", {kTokens, kTokens}),
          .layout = plan::parse_layout("zigzag")};
}

/// The strategy with the first values of its keys that solve the problem; nothing if none do.
std::optional<plan::Strategy> first_legal(const plan::Problem& problem, const std::string& name) {
  const std::vector<plan::Strategy> legal = plan::legal_strategies(problem);
  const auto entry = std::find_if(legal.begin(), legal.end(),
                                  [&](const plan::Strategy& one) { return one.name == name; });
  return entry == legal.end() ? std::nullopt : std::optional(*entry);
}

/// The text of a list's item in lines of at most 118 bytes. None begins with a sign, which would be
/// an item of its own.
std::string wrapped(const std::string& text) {
  constexpr std::size_t kWidth = 118;
  std::istringstream words(text);
  std::string lines;
  std::size_t width = 0;
  for (std::string word; words >> word;) {
    const bool fits = width + 1 + word.size() <= kWidth || word == "+" || word == "-";
    if (width > 0) lines += fits ? " " : "\n  ";
    width = fits && width > 0 ? width + 1 + word.size() : (width > 0 ? 2 : 0) + word.size();
    lines += word;
  }
  return lines + '\n';
}

/// A row of the table of costs; nothing if the strategy does not solve the problem.
std::string cost_row(const std::string& name) {
  constexpr std::int64_t kKib = 1024;  // All sizes of these plans are multiples of it.
  const std::optional<plan::Strategy> strategy = first_legal(problem(), name);
  if (!strategy) return "";
  std::string row = fmt::format("| `{}` |", to_string(*strategy));
  // Forward first, then backward: cells of one row.
  plan::ForwardBound bound(problem());
  for (plan::Plan& plan :
       plan::make_plans(problem(), *strategy, {plan::Pass::Forward, plan::Pass::Backward})) {
    const bool forward = plan.pass == plan::Pass::Forward;
    // Costs of the plan that runs, on the rank that has most of each.
    const Costs of_plan = costs(plan::lower(std::move(plan)));
    const plan::Traffic& most = of_plan.most;
    row += fmt::format(" {} | {} |", most.steps, most.sent_bytes / kKib);
    if (forward) {
      const std::optional<double> over = over_bound(of_plan, bound);
      row += over ? fmt::format(" {:.2f} |", *over) : " - |";
    }
    row += fmt::format(" {} |", most.peak_slot_bytes / kKib);
  }
  return row + '\n';
}

}  // namespace

std::string strategies_document() {
  std::string document = kIntroduction;
  document +=
      "| strategy | forward: steps | sent KiB | x bound | slots KiB | backward: steps | sent KiB "
      "| slots KiB |\n|---|---|---|---|---|---|---|---|\n";
  for (const plan::StrategyInfo& info : plan::strategies()) document += cost_row(info.name);
  document += kTexts;
  // A heading with the keys, and the texts of the registry as a list.
  for (const plan::StrategyInfo& info : plan::strategies()) {
    document += fmt::format("\n## `{}`\n\n{}.\n\n", usage(info), info.summary);
    document += wrapped("- **Paper:** " + info.paper + ".");
    document += wrapped("- **Sent:** " + info.bytes + ".");
    document +=
        wrapped("- **Differs:** " + info.differs + (info.shortens_rings ? " Shorter rings." : ""));
  }
  return document;
}

}  // namespace armillary::cli
