// Batches in two passes: each op joins the last batch of its lane or begins one, then a counting
// sort puts the ops of a batch side by side.
#include "armillary/plan/program/batches.h"

#include <utility>

namespace armillary::plan {

Batches::Batches(const RankProgram& program) : of_(program.ops.size()), first_(1, -1) {
  const int count = static_cast<int>(program.ops.size());
  std::vector<int> last(1, -1);  // By lane: its last batch.
  for (int i = 0; i < count; ++i) {
    const Op& op = program.ops[i];
    if (static_cast<std::size_t>(op.lane) >= last.size()) {
      last.resize(op.lane + 1, -1);
      first_.resize(op.lane + 1, -1);
    }
    int& before = last[op.lane];
    if (before < 0 || !op.is_comm() || batches_[before].step != op.step) {
      const int count = static_cast<int>(batches_.size());
      batches_.push_back({.lane = op.lane, .step = op.step});
      (before < 0 ? first_[op.lane] : batches_[before].next) = count;
      before = count;
    }
    of_[i] = before;
    ++batches_[before].end;  // A count, until all are known.
  }
  int begin = 0;
  for (Batch& batch : batches_) {
    batch.begin = begin;
    begin += std::exchange(batch.end, begin);
  }
  order_.resize(count);
  for (int i = 0; i < count; ++i) order_[batches_[of_[i]].end++] = i;
}

}  // namespace armillary::plan
