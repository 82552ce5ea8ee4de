// Rule `loan`: what is read in the memory of another rank stays as it is.
#include <algorithm>
#include <vector>

#include "armillary/plan/each_rank.h"
#include "armillary/plan/hazards.h"
#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {
namespace {

class LoanChecker {
 public:
  LoanChecker(const RankProgram& program, Report& report)
      : program_(program),
        report_(report),
        written_later_(program.slots.size()),
        writers_(program.tiles.size(), 0) {}

  /// From the last op to the first: what is known of an op is what is written after it.
  void check() {
    if (std::ranges::none_of(program_.ops, &Op::loan)) return;
    for (const Op& op : program_.ops) {
      for (std::size_t v = 0; v < op.views.size(); ++v) {
        if (writes(op, v)) ++writers_[op.views[v].tile];
      }
    }
    for (int i = static_cast<int>(program_.ops.size()); i-- > 0;) {
      const Op& op = program_.ops[i];
      if (op.loan) check(i);
      for (std::size_t v = 0; v < op.views.size(); ++v) {
        if (writes(op, v)) written_later_[slot_of(op.views[v])].push_back(&op.views[v]);
      }
    }
  }

 private:
  int slot_of(const View& view) const { return program_.tiles[view.tile].slot; }

  void check(int i) {
    const Op& op = program_.ops[i];
    if (!op.is_comm() || op.views.size() != 1) {
      report_.add(program_.rank, i, "loan", "{} of {} views is no loan; one view is required",
                  to_string(op.kind), op.views.size());
      return;
    }
    const View& view = op.views[0];
    if (op.kind == OpKind::Send) {
      const std::vector<const View*>& later = written_later_[slot_of(view)];
      const auto over = std::find_if(later.rbegin(), later.rend(), [&](const View* other) {
        return other->tile != view.tile || overlap(*other, view);
      });
      if (over == later.rend()) return;
      report_.add(program_.rank, i, "loan", "lends {}, over which {} is written",
                  describe(program_, view), describe(program_, **over));
    } else if (!is_whole(program_.tiles[view.tile], view) ||
               program_.slots[slot_of(view)].external || writers_[view.tile] != 1) {
      report_.add(program_.rank, i, "loan",
                  "borrows {}, which is not a whole tile that it alone writes, beside the caller's",
                  describe(program_, view));
    }
  }

  const RankProgram& program_;
  Report& report_;
  std::vector<std::vector<const View*>> written_later_;  ///< By slot.
  std::vector<int> writers_;                             ///< By tile: operands that write it.
};

}  // namespace

void check_loans(const Plan& plan, Report& report) {
  const int count = static_cast<int>(plan.ranks.size());
  std::vector<Report> of_rank(count, Report(report.limit()));
  for_each_rank(count, [&](Rank rank) { LoanChecker(plan.ranks[rank], of_rank[rank]).check(); });
  for (const Report& found : of_rank) report.add(found);
}

}  // namespace armillary::plan::verifier
