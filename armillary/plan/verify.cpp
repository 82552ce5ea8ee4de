#include "armillary/plan/verify.h"

#include "armillary/core/error.h"
#include "armillary/plan/verify/structure.h"
#include "armillary/plan/verify/symbols.h"
#include "armillary/plan/verify/waits.h"

namespace armillary::plan {

std::vector<Diagnostic> verify(const Plan& plan, int limit) {
  ARMILLARY_CHECK(limit >= 1);
  validate(plan.problem);
  verifier::Report report(limit);
  verifier::check_partition(plan, report);
  if (!report.empty()) return report.take();
  verifier::check_form(plan, report);
  if (!report.empty()) return report.take();
  verifier::check_externals(plan, report);
  if (!report.empty()) return report.take();
  verifier::check_loans(plan, report);
  if (!report.empty()) return report.take();
  const std::vector<verifier::Message> messages = verifier::match_messages(plan, report);
  if (!report.empty()) return report.take();
  const std::vector<verifier::Event> events = verifier::order_events(plan, messages, report);
  if (!report.empty()) return report.take();
  verifier::run_symbols(plan, messages, events, report);
  return report.take();
}

namespace {

bool are_alike(const Tile& a, const Tile& b) {
  return a.tensor == b.tensor && a.heads == b.heads && a.blocks == b.blocks;
}

}  // namespace

bool finds_saved(const RankProgram& forward, const RankProgram& later) {
  return std::ranges::equal(forward.saved, later.saved, [&](int left, int found) {
    return are_alike(forward.tiles[left], later.tiles[found]);
  });
}

std::vector<Diagnostic> verify_saved(const Plan& forward, const Plan& backward, int limit) {
  verifier::Report report(limit);
  if (!(forward.problem == backward.problem) || !(forward.blocks == backward.blocks)) {
    report.add(-1, -1, "blocks", "forward and backward solve different problems");
    return report.take();
  }
  for (std::size_t r = 0; r < forward.ranks.size(); ++r) {
    const RankProgram& left = forward.ranks[r];
    const RankProgram& found = backward.ranks[r];
    for (std::size_t s = 0; s < left.saved.size(); ++s) {
      const Tile& a = left.tiles[left.saved[s]];
      const Tile& b = found.tiles[found.saved[s]];
      if (!are_alike(a, b)) {
        report.add(left.rank, -1, "blocks", "forward saves {} but backward finds {}",
                   verifier::describe(left, {left.saved[s], a.heads, a.blocks}),
                   verifier::describe(found, {found.saved[s], b.heads, b.blocks}));
      }
    }
  }
  return report.take();
}

}  // namespace armillary::plan
