#include "armillary/plan/program/block_ids.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace armillary::plan {
namespace {

/// True if `id` is the id after the last one of the run.
bool continues(const IdRun& run, int id) {
  return run.last != std::numeric_limits<int>::max() && id == run.last + 1;
}

}  // namespace

BlockIds::BlockIds(std::initializer_list<int> ids) {
  for (const int id : ids) push_back(id);
}

BlockIds::BlockIds(const std::vector<int>& ids) {
  for (const int id : ids) push_back(id);
}

void BlockIds::push_back(int id) {
  append({id, id});
}

void BlockIds::append(IdRun run) {
  // An empty list keeps its first run in the object; the heap is used from the second run on.
  if (!many_ && one_.size() == 0) {
    one_ = run;
    return;
  }
  IdRun& last = many_ ? many_->back() : one_;
  if (continues(last, run.first)) {
    last.last = run.last;
    return;
  }
  if (!many_) many_ = std::make_unique<std::vector<IdRun>>(1, one_);
  many_->push_back(run);
}

std::size_t BlockIds::size() const {
  std::size_t count = 0;
  for (const IdRun& run : runs()) count += run.size();
  return count;
}

// Ids inside a run ascend by construction, so only the borders of runs are compared.
bool ascend_below(const BlockIds& ids, int end) {
  std::int64_t before = -1;
  for (const IdRun& run : ids.runs()) {
    if (run.first <= before || run.last >= end) return false;
    before = run.last;
  }
  return true;
}

// Both lists ascend, so the run that holds the next run of `some` is found by going forward only.
bool includes(const BlockIds& all, const BlockIds& some) {
  const auto outer = all.runs();
  auto at = outer.begin();
  return std::all_of(some.runs().begin(), some.runs().end(), [&](const IdRun& run) {
    at = std::find_if(at, outer.end(), [&](const IdRun& other) { return run.last <= other.last; });
    return at != outer.end() && at->first <= run.first;
  });
}

}  // namespace armillary::plan
