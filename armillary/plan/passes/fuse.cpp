// The pass `fuse`, in two walks over the program. fuse_clears: an op that attends in one kernel
// call takes over the clears of its accumulators (`init_q`, `init_kv`). fuse_results: such an op
// also takes over the `finish` or the copies that end its accumulators, if they may happen at its
// place. Ops that were taken over are marked and dropped at the end of each walk.
#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/passes/compact.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/program/hazards.h"
#include "armillary/plan/segments.h"

namespace armillary::plan {
namespace {

/// The places of the accumulators of attend and attend_grad, by side.
constexpr std::array kAttended{AttendOperand::kOut, AttendOperand::kLse};
constexpr std::array kGradsOfQ{AttendGradOperand::kDQ};
constexpr std::array kGradsOfKv{AttendGradOperand::kDK, AttendGradOperand::kDV};

/// The ops that touch each tile, in order; kept in one array.
class Users {
 public:
  explicit Users(const RankProgram& program) : ends_(program.tiles.size() + 1, 0) {
    // Room is counted by view, so one op that touches a tile twice leaves some free.
    for (const Op& op : program.ops) {
      for (const View& view : op.views) ++ends_[view.tile + 1];
    }
    for (std::size_t tile = 1; tile < ends_.size(); ++tile) ends_[tile] += ends_[tile - 1];
    begins_.assign(ends_.begin(), ends_.end() - 1);
    ops_.resize(ends_.back());
    ends_.assign(begins_.begin(), begins_.end());
    for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
      for (const View& view : program.ops[i].views) {
        int& end = ends_[view.tile];
        if (end == begins_[view.tile] || ops_[end - 1] != i) ops_[end++] = i;
      }
    }
  }
  std::span<const int> operator[](int tile) const {
    return {ops_.data() + begins_[tile], ops_.data() + ends_[tile]};
  }

 private:
  std::vector<int> begins_;  ///< By tile.
  std::vector<int> ends_;
  std::vector<int> ops_;
};

/// One walk over the program of a rank. Indices of ops are stable until drop_done().
class Fusion {
 public:
  Fusion(const Problem& problem, const Blocks& blocks, RankProgram& program)
      : problem_(problem),
        blocks_(blocks),
        program_(program),
        users_(program),
        done_(program.ops.size(), false) {}

  /// The accumulators of queries (out and lse, or dq) and those of keys (dk and dv) are decided
  /// separately.
  void fuse_clears() {
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) {
      Op& attend = program_.ops[i];
      const bool grad = attend.kind == OpKind::AttendGrad;
      if (!grad && attend.kind != OpKind::Attend) continue;
      const std::vector<int> of_q = attend.init[kQSide] ? std::vector<int>()
                                    : grad              ? clears_of(i, kGradsOfQ)
                                                        : clears_of(i, kAttended);
      const std::vector<int> of_kv =
          !grad || attend.init[kKvSide] ? std::vector<int>() : clears_of(i, kGradsOfKv);
      // Most ops have no clears before them; to locate all their views would take far longer.
      if ((of_q.empty() && of_kv.empty()) || !is_one_call(attend)) continue;
      attend.init[kQSide] |= !of_q.empty();
      attend.init[kKvSide] |= !of_kv.empty();
      for (const int clear : of_q) done_[clear] = true;
      for (const int clear : of_kv) done_[clear] = true;
    }
    drop_done();
  }

  /// Runs after fuse_clears(), on a new object: a clear that is still there would count as one more
  /// op that touches the accumulator, and end_of() accepts only two.
  void fuse_results() {
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) {
      const Op& attend = program_.ops[i];
      if (attend.kind == OpKind::Attend && attend.init[kQSide]) end_attend(i);
      if (attend.kind == OpKind::AttendGrad && attend.init[kQSide] && attend.init[kKvSide]) {
        end_attend_grad(i);
      }
    }
    drop_done();
  }

 private:
  const Op& op(int number) const { return program_.ops[number]; }
  bool is_one_call(const Op& op) const {
    return plan::is_one_call(problem_.mask, blocks_, program_, op);
  }
  bool is_whole(const View& view) const { return plan::is_whole(program_.tiles[view.tile], view); }

  void drop_done() {
    std::size_t next = 0;
    std::erase_if(program_.ops, [&](const Op&) { return done_[next++]; });
  }

  /// attend and finish become attend_all.
  void end_attend(int attend) {
    const Views& sums = op(attend).views;
    const int finish = end_of(sums[AttendOperand::kOut], OpKind::Finish, FinishOperand::kPartOut);
    if (finish < 0 ||
        finish != end_of(sums[AttendOperand::kLse], OpKind::Finish, FinishOperand::kPartLse)) {
      return;
    }
    Op fused = op(attend);
    fused.kind = OpKind::AttendAll;
    fused.init[kQSide] = false;
    fused.views[AttendOperand::kOut] = op(finish).views[FinishOperand::kOut];
    fused.views[AttendOperand::kLse] = op(finish).views[FinishOperand::kLse];
    replace(attend, std::move(fused), {finish});
  }

  /// attend_grad and the copies of dq, dk and dv become attend_grad_all.
  void end_attend_grad(int attend) {
    Op fused = op(attend);
    fused.kind = OpKind::AttendGradAll;
    fused.init[kQSide] = fused.init[kKvSide] = false;
    std::vector<int> copies;
    for (const std::size_t v :
         {AttendGradOperand::kDQ, AttendGradOperand::kDK, AttendGradOperand::kDV}) {
      const int copy = end_of(fused.views[v], OpKind::Copy, CopyOperand::kSrc);
      if (copy < 0) return;
      const View& result = op(copy).views[CopyOperand::kDst];
      const Tile& tile = program_.tiles[result.tile];
      if (tile.partial && !tile.narrow) return;
      fused.views[v] = result;
      copies.push_back(copy);
    }
    replace(attend, std::move(fused), copies);
  }

  /// The clears of the accumulators at these places, if each is touched last before the op by its
  /// clear (clear_of); otherwise none.
  std::vector<int> clears_of(int attend, std::span<const std::size_t> sums) const {
    std::vector<int> clears;
    for (const std::size_t v : sums) {
      const int clear = clear_of(attend, op(attend).views[v]);
      if (clear < 0) return {};
      clears.push_back(clear);
    }
    return clears;
  }

  /// The last op before this one that touches any part of an accumulator, if it clears exactly that
  /// view; otherwise -1.
  int clear_of(int attend, const View& sum) const {
    const std::span<const int> users = users_[sum.tile];
    auto user = std::lower_bound(users.begin(), users.end(), attend);
    while (user != users.begin()) {
      const Op& before = op(*--user);
      const bool touches = std::any_of(
          before.views.begin(), before.views.end(),
          [&](const View& view) { return view.tile == sum.tile && overlap(view, sum); });
      if (!touches) continue;
      const bool clears = before.kind == OpKind::Clear && before.views[ClearOperand::kDst] == sum;
      return clears ? *user : -1;
    }
    return -1;
  }

  /// The op of `kind` that reads all of an accumulator at place `source` and turns it into a
  /// result, if no op but this and one before touches the accumulator; otherwise -1.
  int end_of(const View& sum, OpKind kind, std::size_t source) const {
    const std::span<const int> users = users_[sum.tile];
    if (users.size() != 2) return -1;
    const int last = users.back();
    if (op(last).kind != kind) return -1;
    const View& read = op(last).views[source];
    return read.tile == sum.tile && is_whole(read) ? last : -1;
  }

  /// Puts `fused` in the place of an op and of the ops that end its accumulators, if the results
  /// may be written at that time.
  void replace(int attend, Op fused, const std::vector<int>& ends) {
    // No other compute op stands between.
    const int last = *std::max_element(ends.begin(), ends.end());
    for (int j = attend + 1; j < last; ++j) {
      if (!op(j).is_comm() && std::count(ends.begin(), ends.end(), j) == 0) return;
    }
    // The ends wait for nothing that this op does not wait for; compute ops up to it are in order.
    // They are found when first asked for: before any op of the walk has been replaced.
    if (waits_.empty()) waits_ = dependencies(program_);
    const std::vector<int>& before = waits_[attend];
    for (const int end : ends) {
      for (const int w : waits_[end]) {
        const bool computed = !op(w).is_comm() && w <= attend;
        if (!computed && std::find(before.begin(), before.end(), w) == before.end()) return;
      }
    }
    // No operand that is read, and no other result, lies in the slot of a result.
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
  std::vector<std::vector<int>> waits_;  ///< By op: dependencies(), for fuse_results.
  Users users_;
  std::vector<bool> done_;  ///< By op: another op does its work.
};

}  // namespace

// The second walk has its own users of tiles, without the clears that were dropped.
RankProgram fuse(const Problem& problem, const Blocks& blocks, RankProgram program) {
  Fusion(problem, blocks, program).fuse_clears();
  Fusion(problem, blocks, program).fuse_results();
  compact(problem, blocks, program);
  return program;
}

}  // namespace armillary::plan
