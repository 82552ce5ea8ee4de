#include "armillary/attention/at_once.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace armillary::attention {
namespace {

using plan::Op;
using plan::OpKind;
using plan::View;

class AtOnce {
 public:
  AtOnce(CompiledProgram& compiled, const std::vector<std::vector<int>>& waits, int attend)
      : compiled_(compiled), waits_(waits), attend_(attend) {}

  /// Makes the op write its results, if its sums, operands from `first_sum` on, come from nothing
  /// and go nowhere but into results of these dtypes.
  void find(std::size_t first_sum, const std::vector<plan::Dtype>& dtypes) {
    if (compiled_.calls[attend_].size() != 1) return;
    for (const LocatedView& view : compiled_.views[attend_]) {
      if (view.segments.size() != 1) return;
    }
    std::vector<ResultView> results;
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      const std::optional<ResultView> result = result_of(first_sum + i);
      if (!result || !may_be_written(*result, dtypes[i])) return;
      results.push_back(*result);
    }
    if (computes_between(results)) return;
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      const int sum = op(attend_).views[first_sum + i].tile;
      compiled_.home[sum] = CompiledProgram::kNowhere;
      for (std::size_t j = 0; j < compiled_.program.ops.size(); ++j) {
        if (static_cast<int>(j) != attend_ && touches(static_cast<int>(j), sum)) {
          compiled_.part_of_other[j] = true;
        }
      }
    }
    compiled_.at_once[attend_] = std::move(results);
  }

 private:
  const Op& op(int number) const { return compiled_.program.ops[number]; }

  bool touches(int number, int tile) const {
    const plan::Views& views = op(number).views;
    return std::any_of(views.begin(), views.end(),
                       [&](const View& view) { return view.tile == tile; });
  }

  bool is_whole(const View& view) const {
    const plan::Tile& tile = compiled_.program.tiles[view.tile];
    return view.heads == tile.heads && view.blocks == tile.blocks;
  }

  /// Where all of a sum goes, if it is cleared before and touched by nothing else.
  std::optional<ResultView> result_of(std::size_t sum_view) const {
    const int sum = op(attend_).views[sum_view].tile;
    std::optional<ResultView> result;
    bool cleared = false;
    for (int j = 0; j < static_cast<int>(compiled_.program.ops.size()); ++j) {
      if (!touches(j, sum)) continue;
      for (std::size_t v = 0; v < op(j).views.size(); ++v) {
        const View& view = op(j).views[v];
        if (view.tile != sum) continue;
        if (!is_whole(view)) return std::nullopt;
        if (j == attend_) continue;
        const bool clears = op(j).kind == OpKind::Clear && j < attend_;
        const bool moves =
            (op(j).kind == OpKind::Copy && v == 1) || (op(j).kind == OpKind::Finish && v >= 2);
        if (clears) {
          cleared = true;
        } else if (moves && j > attend_ && !result) {
          result = ResultView{j, op(j).kind == OpKind::Copy ? 0 : v - 2};
        } else {
          return std::nullopt;
        }
      }
    }
    return cleared ? result : std::nullopt;
  }

  /// Whether what is written when the result's op runs may be written when the op that attends
  /// does: nothing else waits in between, and nothing that it reads lies in the same memory.
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

}  // namespace

void find_at_once(CompiledProgram& compiled, const std::vector<std::vector<int>>& waits) {
  const plan::Dtype dtype = compiled.problem.dtype;
  const std::size_t ops = compiled.program.ops.size();
  compiled.at_once.resize(ops);
  compiled.part_of_other.assign(ops, false);
  for (std::size_t i = 0; i < ops; ++i) {
    AtOnce at_once(compiled, waits, static_cast<int>(i));
    const OpKind kind = compiled.program.ops[i].kind;
    if (kind == OpKind::Attend) at_once.find(3, {dtype, accumulator(dtype)});
    if (kind == OpKind::AttendGrad) at_once.find(6, {dtype, dtype, dtype});
  }
}

}  // namespace armillary::attention
