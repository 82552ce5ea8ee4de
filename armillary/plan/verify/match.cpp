#include <map>
#include <tuple>

#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {
namespace {

/// Messages of one lane from one rank to another: ops in program order.
struct Channel {
  std::vector<int> sends;
  std::vector<int> recvs;
};
using Channels = std::map<std::tuple<Rank, Rank, Lane>, Channel>;

Channels channels_of(const Plan& plan) {
  Channels channels;
  for (const RankProgram& program : plan.ranks) {
    for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
      const Op& op = program.ops[i];
      if (op.kind == OpKind::Send) {
        channels[{program.rank, op.peer, op.lane}].sends.push_back(i);
      } else if (op.kind == OpKind::Recv) {
        channels[{op.peer, program.rank, op.lane}].recvs.push_back(i);
      }
    }
  }
  return channels;
}

bool equal(const RankProgram& a, const View& left, const RankProgram& b, const View& right) {
  const Tile& l = a.tiles[left.tile];
  const Tile& r = b.tiles[right.tile];
  return l.tensor == r.tensor && l.partial == r.partial && l.narrow == r.narrow &&
         left.heads == right.heads && left.blocks == right.blocks;
}

}  // namespace

std::vector<Message> match_messages(const Plan& plan, Report& report) {
  std::vector<Message> messages;
  for (const auto& [ends, channel] : channels_of(plan)) {
    const auto [from, to, lane] = ends;
    const std::size_t both = std::min(channel.sends.size(), channel.recvs.size());
    std::size_t m = 0;
    for (; m < both; ++m) {
      const Message message{from, channel.sends[m], to, channel.recvs[m]};
      const View& sent = plan.ranks[from].ops[message.send].views[0];
      const View& received = plan.ranks[to].ops[message.recv].views[0];
      if (!equal(plan.ranks[from], sent, plan.ranks[to], received)) {
        report.add(to, message.recv, "match", "expects {} but rank {} sends {}",
                   describe(plan.ranks[to], received), from, describe(plan.ranks[from], sent));
        break;
      }
      messages.push_back(message);
    }
    if (m < both) continue;
    if (channel.recvs.size() > both) {
      const int op = channel.recvs[both];
      report.add(to, op, "match", "{} has no matching send on rank {}",
                 describe(plan.ranks[to], plan.ranks[to].ops[op].views[0]), from);
    } else if (channel.sends.size() > both) {
      const int op = channel.sends[both];
      report.add(from, op, "match", "{} has no matching receive on rank {}",
                 describe(plan.ranks[from], plan.ranks[from].ops[op].views[0]), to);
    }
  }
  return messages;
}

}  // namespace armillary::plan::verifier
