// The pass `coalesce`. Messages of an all-to-all in one batch with the same peer become one message
// with the views of all, at the place of the first of them.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/program/hazards.h"

namespace armillary::plan {
namespace {

/// True if two messages have the same peer, step and direction. Both peers see that, so they join
/// the same messages.
bool same_message(const Op& a, const Op& b) {
  return a.kind == b.kind && a.peer == b.peer && a.step == b.step &&
         a.collective == Collective::AllToAll && b.collective == Collective::AllToAll;
}

}  // namespace

RankProgram coalesce(RankProgram program) {
  const bool trades = std::any_of(program.ops.begin(), program.ops.end(), [](const Op& op) {
    return op.collective == Collective::AllToAll;
  });
  if (!trades) return program;
  const std::vector<std::vector<int>> waits = dependencies(program);
  std::map<Lane, std::vector<int>> batches;  // By lane: the messages of its latest batch.
  std::vector<bool> joined(program.ops.size(), false);
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    Op& op = program.ops[i];
    if (!op.is_comm()) continue;
    std::vector<int>& batch = batches[op.lane];
    if (!batch.empty() && program.ops[batch.front()].step != op.step) batch.clear();
    const auto first = std::find_if(batch.begin(), batch.end(), [&](int other) {
      // All ops that it waits for come before that message, too.
      return same_message(program.ops[other], op) && (waits[i].empty() || waits[i].back() < other);
    });
    joined[i] = first != batch.end();
    if (joined[i]) {
      Views& views = program.ops[*first].views;
      for (View& view : op.views) views.push_back(std::move(view));
    } else {
      batch.push_back(i);
    }
  }
  std::vector<Op> rest;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (!joined[i]) rest.push_back(std::move(program.ops[i]));
  }
  program.ops = std::move(rest);
  return program;
}

}  // namespace armillary::plan
