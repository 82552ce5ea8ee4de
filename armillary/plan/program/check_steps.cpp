// Rule `order`, shown rank by rank. Every node of the graph of check_waits.cpp gets a number such
// that each edge goes from a lower number to a higher one, so there is no cycle. The number is the
// step, then the phase, then for compute ops the place in the program:
//
//   phase 0   compute ops that wait for no batch of their step
//   phase 1   starts of batches
//   phase 2   messages
//   phase 3   ends of batches
//   phase 4   compute ops that wait for a batch of their step, or for such an op
//
// Only messages connect ranks, and both ends of a message are in one step; so all other edges are
// looked at on one rank alone.
#include <algorithm>
#include <atomic>
#include <map>
#include <span>

#include "armillary/plan/program/check.h"
#include "armillary/plan/program/hazards.h"
#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::plan {
namespace {

/// Steps of each lane do not decrease.
bool lanes_ascend(const RankProgram& program) {
  std::map<Lane, int> last;  // The latest step.
  for (const Op& op : program.ops) {
    int& before = last[op.lane];
    if (op.step < before) return false;
    before = op.step;
  }
  return true;
}

/// The waits of one rank go from lower numbers to higher ones.
bool waits_ascend(const RankProgram& program) {
  std::vector<char> is_late(program.ops.size());  // Compute ops of phase 4.
  int computed = -1;                              // The last compute op so far.
  bool ascend = true;
  for_each_dependencies(program, [&](int i, std::span<const int> waits) {
    const Op& op = program.ops[i];
    bool late = computed >= 0 && program.ops[computed].step == op.step && is_late[computed] != 0;
    for (const int earlier : waits) {
      const Op& before = program.ops[earlier];
      if (before.step < op.step) continue;
      const bool late_before = before.is_comm() || is_late[earlier] != 0;
      if (before.step > op.step || (op.is_comm() && late_before)) ascend = false;
      late = late || late_before;
    }
    if (op.is_comm()) return;
    is_late[i] = late ? 1 : 0;
    computed = i;
  });
  return ascend;
}

}  // namespace

bool waits_follow_steps(const World& all, const std::vector<MatchedMessage>& messages) {
  const auto in_one_step = [&](const MatchedMessage& message) {
    return all.ranks[message.from].ops[message.send].step ==
           all.ranks[message.to].ops[message.recv].step;
  };
  const int world = static_cast<int>(all.ranks.size());
  std::atomic<bool> follow = true;
  parallel_for_ranks(world, [&](Rank rank) {
    if (!follow) return;
    const RankProgram& program = all.ranks[rank];
    // Messages are cut into as many parts as there are ranks.
    const std::size_t begin = messages.size() * rank / world;
    const std::size_t end = messages.size() * (rank + 1) / world;
    const auto part = std::span(messages).subspan(begin, end - begin);
    if (!std::ranges::all_of(part, in_one_step) || !lanes_ascend(program) ||
        !waits_ascend(program)) {
      follow = false;
    }
  });
  return follow;
}

}  // namespace armillary::plan
