#include "armillary/attention/fused.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace armillary::attention {
namespace {

using plan::Op;
using plan::OpKind;
using plan::View;

/// An op that attends by one call, which sees all of its views.
class Attending {
 public:
  Attending(CompiledProgram& compiled, const std::vector<std::vector<int>>& waits, int attend)
      : compiled_(compiled), waits_(waits), attend_(attend) {}

  /// Fuses what clears its sums, operands `first` to `last`, if that is what all of them begin
  /// with.
  bool fuse_clears(std::size_t first, std::size_t last) {
    std::vector<int> clears;
    for (std::size_t v = first; v <= last; ++v) {
      const std::optional<int> clear = clear_of(op(attend_).views[v]);
      if (!clear) return false;
      clears.push_back(*clear);
    }
    for (const int clear : clears) compiled_.fused[clear] = true;
    return true;
  }

  /// Fuses what becomes of its sums, operands from `first` on, if all of them begin with the op and
  /// become results of these dtypes. Requires that what clears them is fused.
  void fuse_results(std::size_t first, const std::vector<plan::Dtype>& dtypes) {
    std::vector<ResultView> results;
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      const std::optional<ResultView> result = result_of(op(attend_).views[first + i], i);
      if (!result || !may_be_written(*result, dtypes[i])) return;
      results.push_back(*result);
    }
    if (computes_between(results)) return;
    const bool finishes = op(results[0].op).kind == OpKind::Finish;
    if (finishes && results[0].op != results[1].op) return;
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      compiled_.home[op(attend_).views[first + i].tile] = CompiledProgram::kNowhere;
      compiled_.fused[results[i].op] = true;
    }
    compiled_.results[attend_] = std::move(results);
  }

 private:
  const Op& op(int number) const { return compiled_.program.ops[number]; }

  bool is_whole(const View& view) const {
    const plan::Tile& tile = compiled_.program.tiles[view.tile];
    return view.heads == tile.heads && view.blocks == tile.blocks;
  }

  /// The operand of an op that shows a tile; none if there is no such.
  std::optional<std::size_t> operand(int number, int tile) const {
    const plan::Views& views = op(number).views;
    for (std::size_t v = 0; v < views.size(); ++v) {
      if (views[v].tile == tile) return v;
    }
    return std::nullopt;
  }

  /// The op before this one that touches a sum, if it clears all of it.
  std::optional<int> clear_of(const View& sum) const {
    if (!is_whole(sum)) return std::nullopt;
    for (int j = attend_ - 1; j >= 0; --j) {
      if (!operand(j, sum.tile)) continue;
      const bool clears = op(j).kind == OpKind::Clear && is_whole(op(j).views[0]);
      return clears ? std::optional(j) : std::nullopt;
    }
    return std::nullopt;
  }

  /// Where all of a sum goes last, if nothing but what clears it, this op and what makes it the
  /// result `number` touches it: `finish`, which adds the sinks, of attention, `copy` of a
  /// gradient. An op before this one that did so would read what another op wrote before; where
  /// several do, computes_between() finds all but the last.
  std::optional<ResultView> result_of(const View& sum, std::size_t number) const {
    const bool attends = op(attend_).kind == OpKind::Attend;
    const std::optional<int> clear = clear_of(sum);
    std::optional<ResultView> result;
    for (int j = 0; j < static_cast<int>(compiled_.program.ops.size()); ++j) {
      const std::optional<std::size_t> v = operand(j, sum.tile);
      if (!v || j == attend_ || j == clear) continue;
      const bool makes = attends ? op(j).kind == OpKind::Finish && *v == number + 2
                                 : op(j).kind == OpKind::Copy && *v == 1;
      if (!is_whole(op(j).views[*v]) || !makes) return std::nullopt;
      result = ResultView{j, attends ? number : 0};
    }
    return result;
  }

  /// Whether what is written when the result's op runs may be written when this one does: no other
  /// op is waited for in between, and nothing that this one reads lies in the same memory.
  bool may_be_written(const ResultView& result, plan::Dtype dtype) const {
    const plan::RankProgram& program = compiled_.program;
    const View& to = op(result.op).views[result.operand];
    if (dtype_of(compiled_.problem, program.tiles[to.tile]) != dtype) return false;
    if (compiled_.views[result.op][result.operand].segments.size() != 1) return false;
    const int slot = program.tiles[to.tile].slot;
    for (const View& view : op(attend_).views) {
      if (program.tiles[view.tile].slot == slot) return false;
    }
    const std::vector<int>& before = waits_[attend_];
    return std::all_of(waits_[result.op].begin(), waits_[result.op].end(), [&](int w) {
      const bool computed = op(w).lane == plan::kCompute && w <= attend_;
      return computed || std::find(before.begin(), before.end(), w) != before.end();
    });
  }

  /// Whether another op is computed before the last of these.
  bool computes_between(const std::vector<ResultView>& results) const {
    int last = attend_;
    for (const ResultView& result : results) last = std::max(last, result.op);
    for (int j = attend_ + 1; j < last; ++j) {
      const bool one = std::any_of(results.begin(), results.end(),
                                   [&](const ResultView& result) { return result.op == j; });
      if (op(j).lane == plan::kCompute && !one) return true;
    }
    return false;
  }

  CompiledProgram& compiled_;
  const std::vector<std::vector<int>>& waits_;
  int attend_;
};

bool is_one_call(const CompiledProgram& compiled, std::size_t op) {
  const std::vector<LocatedView>& views = compiled.views[op];
  return compiled.calls[op].size() == 1 &&
         std::all_of(views.begin(), views.end(),
                     [](const LocatedView& view) { return view.segments.size() == 1; });
}

}  // namespace

void find_fused(CompiledProgram& compiled, const std::vector<std::vector<int>>& waits) {
  const plan::Dtype dtype = compiled.problem.dtype;
  const std::size_t ops = compiled.program.ops.size();
  compiled.fused.assign(ops, false);
  compiled.fresh.assign(ops, {false, false});
  compiled.results.resize(ops);
  for (std::size_t i = 0; i < ops; ++i) {
    if (!is_one_call(compiled, i)) continue;
    Attending attending(compiled, waits, static_cast<int>(i));
    if (compiled.program.ops[i].kind == OpKind::Attend) {
      compiled.fresh[i] = {attending.fuse_clears(3, 4), false};
      if (compiled.fresh[i][0]) attending.fuse_results(3, {dtype, accumulator(dtype)});
    } else {
      compiled.fresh[i] = {attending.fuse_clears(6, 6), attending.fuse_clears(7, 8)};
      if (compiled.fresh[i][0] && compiled.fresh[i][1]) {
        attending.fuse_results(6, {dtype, dtype, dtype});
      }
    }
  }
}

}  // namespace armillary::attention
