#include <algorithm>
#include <utility>
#include <vector>

#include "armillary/plan/hazards.h"
#include "armillary/plan/passes/compact.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/segments.h"

namespace armillary::plan {
namespace {

class Fusion {
 public:
  Fusion(const Problem& problem, const Blocks& blocks, RankProgram& program)
      : problem_(problem),
        blocks_(blocks),
        program_(program),
        users_(program.tiles.size()),
        done_(program.ops.size(), false) {
    for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
      for (const View& view : program.ops[i].views) {
        std::vector<int>& users = users_[view.tile];
        if (users.empty() || users.back() != i) users.push_back(i);
      }
    }
  }

  void fuse_clears() {
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) {
      Op& attend = program_.ops[i];
      const bool grad = attend.kind == OpKind::AttendGrad;
      if ((!grad && attend.kind != OpKind::Attend) || !is_one_call(attend)) continue;
      if (!attend.fresh_q) attend.fresh_q = grad ? begins(i, 6, 6) : begins(i, 3, 4);
      if (grad && !attend.fresh_kv) attend.fresh_kv = begins(i, 7, 8);
    }
    drop_done();
  }

  /// Requires that clears are fused: of an op that writes its sums, nothing before it touches them.
  void fuse_results() {
    waits_ = dependencies(program_);
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) {
      const Op& attend = program_.ops[i];
      if (attend.kind == OpKind::Attend && attend.fresh_q) end_attend(i);
      if (attend.kind == OpKind::AttendGrad && attend.fresh_q && attend.fresh_kv) {
        end_attend_grad(i);
      }
    }
    drop_done();
  }

 private:
  const Op& op(int number) const { return program_.ops[number]; }
  bool is_one_call(const Op& op) const {
    return plan::is_one_call(problem_.mask, locate(blocks_, program_, op));
  }
  bool is_whole(const View& view) const { return plan::is_whole(program_.tiles[view.tile], view); }

  void drop_done() {
    std::size_t next = 0;
    std::erase_if(program_.ops, [&](const Op&) { return done_[next++]; });
  }

  void end_attend(int attend) {
    const int finish = end_of(attend, 3, OpKind::Finish);
    if (finish < 0 || finish != end_of(attend, 4, OpKind::Finish)) return;
    Op fused = op(attend);
    fused.kind = OpKind::AttendAll;
    fused.fresh_q = false;
    for (std::size_t v : {0, 1}) fused.views[3 + v] = op(finish).views[v];
    replace(attend, std::move(fused), {finish});
  }

  void end_attend_grad(int attend) {
    Op fused = op(attend);
    fused.kind = OpKind::AttendGradAll;
    fused.fresh_q = fused.fresh_kv = false;
    std::vector<int> copies;
    for (std::size_t v = 6; v < fused.views.size(); ++v) {
      const int copy = end_of(attend, v, OpKind::Copy);
      if (copy < 0) return;
      const Tile& result = program_.tiles[op(copy).views[0].tile];
      if (result.partial && !result.narrow) return;
      fused.views[v] = op(copy).views[0];
      copies.push_back(copy);
    }
    replace(attend, std::move(fused), copies);
  }

  /// Whether the sums, operands `first` to `last`, all begin with what clears them, which then need
  /// not be done.
  bool begins(int attend, std::size_t first, std::size_t last) {
    std::vector<int> clears;
    for (std::size_t v = first; v <= last; ++v) {
      const int clear = clear_of(attend, op(attend).views[v]);
      if (clear < 0) return false;
      clears.push_back(clear);
    }
    for (const int clear : clears) done_[clear] = true;
    return true;
  }

  /// The op before this one that touches any of a sum, if it clears just that; or -1.
  int clear_of(int attend, const View& sum) const {
    const std::vector<int>& users = users_[sum.tile];
    auto user = std::lower_bound(users.begin(), users.end(), attend);
    while (user != users.begin()) {
      const Op& before = op(*--user);
      const bool touches = std::any_of(
          before.views.begin(), before.views.end(),
          [&](const View& view) { return view.tile == sum.tile && overlap(view, sum); });
      if (touches) return before.kind == OpKind::Clear && before.views[0] == sum ? *user : -1;
    }
    return -1;
  }

  /// The op of `kind` that makes all of a sum, operand `v`, a result, if nothing but this op
  /// touches it besides; or -1.
  int end_of(int attend, std::size_t v, OpKind kind) const {
    const View& sum = op(attend).views[v];
    const std::vector<int>& users = users_[sum.tile];
    if (users.size() != 2 || op(users[1]).kind != kind) return -1;
    const std::size_t source = kind == OpKind::Copy ? 1 : v - 1;
    const View& read = op(users[1]).views[source];
    return read.tile == sum.tile && is_whole(read) ? users[1] : -1;
  }

  /// Puts `fused` in the place of an op and of those that end its sums, if what they write may be
  /// written when it runs: nothing is computed between, nothing else is waited for, and nothing
  /// that it reads lies in the same memory.
  void replace(int attend, Op fused, const std::vector<int>& ends) {
    const int last = *std::max_element(ends.begin(), ends.end());
    for (int j = attend + 1; j < last; ++j) {
      if (!op(j).is_comm() && std::count(ends.begin(), ends.end(), j) == 0) return;
    }
    const std::vector<int>& before = waits_[attend];
    for (const int end : ends) {
      for (const int w : waits_[end]) {
        const bool computed = !op(w).is_comm() && w <= attend;
        if (!computed && std::find(before.begin(), before.end(), w) == before.end()) return;
      }
    }
    for (std::size_t v = 0; v < fused.views.size(); ++v) {
      for (std::size_t w = 0; w < v; ++w) {
        if (writes(fused, v) && slot(fused.views[v]) == slot(fused.views[w])) return;
      }
    }
    if (!is_one_call(fused)) return;
    program_.ops[attend] = std::move(fused);
    for (const int end : ends) done_[end] = true;
  }

  int slot(const View& view) const { return program_.tiles[view.tile].slot; }

  const Problem& problem_;
  const Blocks& blocks_;
  RankProgram& program_;
  std::vector<std::vector<int>> waits_;  ///< Of the ops, for fuse_results.
  std::vector<std::vector<int>> users_;  ///< Of each tile: the ops that touch it, in order.
  std::vector<bool> done_;               ///< By op: another one does it.
};

}  // namespace

RankProgram fuse(const Problem& problem, const Blocks& blocks, RankProgram program) {
  Fusion(problem, blocks, program).fuse_clears();
  Fusion(problem, blocks, program).fuse_results();
  compact(problem, blocks, program);
  return program;
}

}  // namespace armillary::plan
