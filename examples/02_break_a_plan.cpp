// A plan is data: this program prints it, proves it, then removes one op and prints the place where
// the proof fails.
#include <fmt/format.h>

#include <algorithm>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/text.h"
#include "armillary/plan/verify/verify.h"

using namespace armillary::plan;

int main() {
  const Problem problem{.world = 4,
                        .heads = 8,
                        .kv_heads = 2,
                        .mask = parse_mask("causal", {64, 64}),
                        .layout = parse_layout("contiguous")};
  Plan plan = make_plan(problem, parse_strategy("ring"), Pass::Forward);
  fmt::print("{}{} diagnostics\n\n", to_string(plan), verify(plan).size());

  // Rank 3 does not attend to the keys that arrived last.
  std::vector<Op>& ops = plan.ranks[3].ops;
  const auto attends = [](const Op& op) { return op.kind == OpKind::Attend; };
  ops.erase(std::find_if(ops.rbegin(), ops.rend(), attends).base() - 1);

  // The grid marks the op at which the error was found.
  const std::vector<Diagnostic> diagnostics = verify(plan);
  if (diagnostics.empty()) return 1;
  fmt::print("{}rule `{}` is broken: {}\n", to_string(plan, &diagnostics[0]), diagnostics[0].rule,
             diagnostics[0].text);
  return 0;
}
