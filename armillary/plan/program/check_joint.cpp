// Rule `match` of joint ops. Each rank's joint ops are queued by lane and group; then the n-th of
// the queues of a group are put side by side.
#include <algorithm>
#include <map>
#include <utility>

#include "armillary/plan/program/check.h"

namespace armillary::plan {
namespace {

/// A group, as its members know it, and by member the joint ops of one lane.
struct JointQueues {
  std::span<const Rank> group;
  std::vector<std::vector<int>> ops;
};

std::map<std::pair<Lane, std::vector<Rank>>, JointQueues> joint_queues(const World& world) {
  std::map<std::pair<Lane, std::vector<Rank>>, JointQueues> all;
  for (const RankProgram& program : world.ranks) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      if (!(*program.words)[op.kind].joint) continue;
      const std::vector<Rank>& group = program.groups[op.peer];
      JointQueues& queues = all[{op.lane, group}];
      if (queues.ops.empty()) queues = {group, std::vector<std::vector<int>>(group.size())};
      const auto member = std::ranges::lower_bound(group, program.rank) - group.begin();
      queues.ops[member].push_back(static_cast<int>(i));
    }
  }
  return all;
}

/// The joint op of each member at one place of the queues. Adds a diagnostic if a member has none,
/// or one of another kind.
JointAction joint_action(const World& world, const JointQueues& queues, std::size_t place,
                         Diagnostics& diagnostics) {
  JointAction joint{.group = queues.group, .ops = {}};
  const auto there = [&](std::size_t member) { return place < queues.ops[member].size(); };
  std::size_t first = 0;
  while (!there(first)) ++first;
  const RankProgram& model = world.ranks[queues.group[first]];
  const int op = queues.ops[first][place];
  const std::string_view name = (*model.words)[model.ops[op].kind].name;
  for (std::size_t member = 0; member < queues.ops.size(); ++member) {
    const RankProgram& program = world.ranks[queues.group[member]];
    if (!there(member)) {
      diagnostics.add(model.rank, op, "match", "rank {} does not come to this {}", program.rank,
                      name);
      return joint;
    }
    joint.ops.push_back(queues.ops[member][place]);
    const Kind kind = program.ops[joint.ops.back()].kind;
    if (kind == model.ops[op].kind) continue;
    diagnostics.add(program.rank, joint.ops.back(), "match", "is {}, but rank {} comes to {}",
                    (*program.words)[kind].name, model.rank, name);
    return joint;
  }
  return joint;
}

}  // namespace

std::vector<JointAction> match_joint(const World& world, Diagnostics& diagnostics) {
  std::vector<JointAction> joints;
  for (const auto& [key, queues] : joint_queues(world)) {
    std::size_t count = 0;
    for (const std::vector<int>& of_member : queues.ops) {
      count = std::max(count, of_member.size());
    }
    for (std::size_t place = 0; place < count; ++place) {
      joints.push_back(joint_action(world, queues, place, diagnostics));
      if (!diagnostics.empty()) return {};
    }
  }
  return joints;
}

}  // namespace armillary::plan
