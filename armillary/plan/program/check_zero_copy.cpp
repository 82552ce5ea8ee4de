// Rule `zero_copy`: memory that is read by another rank keeps its value until the run ends, and
// memory that is not written because the sender's is read in its place has no other use. Ops are
// looked at from the last one to the first.
#include <algorithm>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/plan/program/check.h"
#include "armillary/plan/program/hazards.h"
#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::plan {
namespace {

/// Checks the messages without a copy of one rank.
class ZeroCopyChecker {
 public:
  ZeroCopyChecker(const RankProgram& program, Diagnostics& diagnostics)
      : program_(program),
        diagnostics_(diagnostics),
        later_(program),
        writers_(program.tiles.size(), 0) {}

  void check() {
    if (std::ranges::none_of(program_.ops, &Op::zero_copy)) return;
    // How many operands write each tile.
    for (const Op& op : program_.ops) {
      for (std::size_t v = 0; v < op.views.size(); ++v) {
        if (program_.words->writes(op, v)) ++writers_[op.views[v].tile];
      }
    }
    for (int i = static_cast<int>(program_.ops.size()); i-- > 0;) {
      if (program_.ops[i].zero_copy) check(i);
      later_.add(program_.ops[i]);
    }
  }

 private:
  void check(int i) {
    const Op& op = program_.ops[i];
    if (!op.is_comm() || op.views.size() != 1) {
      diagnostics_.add(program_.rank, i, "zero_copy",
                       "{} of {} is not zero copy; one view is required",
                       (*program_.words)[op.kind].name, count_of(op.views.size(), "view"));
      return;
    }
    // A send lends its view: later writes of the slot must be of other parts of the same tile. A
    // receive borrows a whole tile of its own.
    const View& view = op.views.front();
    if (op.kind == kSend) {
      const View* const over = later_.over(view);
      if (over == nullptr) return;
      diagnostics_.add(program_.rank, i, "zero_copy", "lends {}, over which {} is written",
                       describe(program_, view), describe(program_, *over));
      return;
    }
    const Tile& tile = program_.tiles[view.tile];
    if (!is_whole(tile, view) || program_.slots[tile.slot].external || writers_[view.tile] != 1) {
      diagnostics_.add(
          program_.rank, i, "zero_copy",
          "borrows {}, which is not a whole tile that it alone writes, beside the caller's",
          describe(program_, view));
    }
  }

  const RankProgram& program_;
  Diagnostics& diagnostics_;
  LaterWrites later_;         ///< Writes after the op that is checked.
  std::vector<int> writers_;  ///< By tile: operands that write it.
};

}  // namespace

void check_zero_copy(const World& world, Diagnostics& diagnostics) {
  const int count = static_cast<int>(world.ranks.size());
  std::vector<Diagnostics> of_rank(count, Diagnostics(diagnostics.limit()));
  parallel_for_ranks(count,
                     [&](Rank rank) { ZeroCopyChecker(world.ranks[rank], of_rank[rank]).check(); });
  for (const Diagnostics& faults : of_rank) diagnostics.add(faults);
}

}  // namespace armillary::plan
