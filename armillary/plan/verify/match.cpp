#include <algorithm>
#include <span>
#include <tuple>
#include <vector>

#include "armillary/plan/each_rank.h"
#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {
namespace {

/// One end of the messages of a rank.
struct End {
  Rank peer = 0;
  Lane lane = 0;
  int op = 0;
  bool operator<(const End& other) const {
    return std::tie(peer, lane, op) < std::tie(other.peer, other.lane, other.op);
  }
};

/// Those of a rank, by peer, then lane, then program order.
struct Ends {
  std::vector<End> sends;
  std::vector<End> recvs;
};

Ends ends_of(const RankProgram& program) {
  Ends ends;
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[i];
    if (op.kind == OpKind::Send) ends.sends.push_back({op.peer, op.lane, i});
    if (op.kind == OpKind::Recv) ends.recvs.push_back({op.peer, op.lane, i});
  }
  std::sort(ends.sends.begin(), ends.sends.end());
  std::sort(ends.recvs.begin(), ends.recvs.end());
  return ends;
}

bool equal(const RankProgram& a, const View& left, const RankProgram& b, const View& right) {
  const Tile& l = a.tiles[left.tile];
  const Tile& r = b.tiles[right.tile];
  return l.tensor == r.tensor && l.partial == r.partial && l.narrow == r.narrow &&
         left.heads == right.heads && left.blocks == right.blocks;
}

/// Ends of one rank with one peer, by lane, or those in one lane.
using Channel = std::span<const End>;

Channel with_peer(const std::vector<End>& ends, Rank peer) {
  return {std::lower_bound(ends.begin(), ends.end(), End{.peer = peer}),
          std::lower_bound(ends.begin(), ends.end(), End{.peer = peer + 1})};
}

/// Takes those of the lane away from the front.
Channel take_lane(Channel& ends, Lane lane) {
  std::size_t count = 0;
  while (count < ends.size() && ends[count].lane == lane) ++count;
  const Channel taken = ends.first(count);
  ends = ends.subspan(count);
  return taken;
}

/// What one rank sends.
struct Sent {
  std::vector<Message> messages;
  Report report;
};

/// Messages of one lane from one rank to another, in program order of both.
void match_lane(const Plan& plan, Rank from, Rank to, Channel sends, Channel recvs, Sent& sent) {
  const RankProgram& sender = plan.ranks[from];
  const RankProgram& receiver = plan.ranks[to];
  const std::size_t both = std::min(sends.size(), recvs.size());
  for (std::size_t m = 0; m < both; ++m) {
    const Message message{from, sends[m].op, to, recvs[m].op};
    const View& source = sender.ops[message.send].views[0];
    const View& target = receiver.ops[message.recv].views[0];
    if (!equal(sender, source, receiver, target)) {
      sent.report.add(to, message.recv, "match", "expects {} but rank {} sends {}",
                      describe(receiver, target), from, describe(sender, source));
      return;
    }
    sent.messages.push_back(message);
  }
  if (recvs.size() > both) {
    const int op = recvs[both].op;
    sent.report.add(to, op, "match", "{} has no matching send on rank {}",
                    describe(receiver, receiver.ops[op].views[0]), from);
  } else if (sends.size() > both) {
    const int op = sends[both].op;
    sent.report.add(from, op, "match", "{} has no matching receive on rank {}",
                    describe(sender, sender.ops[op].views[0]), to);
  }
}

}  // namespace

std::vector<Message> match_messages(const Plan& plan, Report& report) {
  const int world = static_cast<int>(plan.ranks.size());
  std::vector<Ends> ends(world);
  for_each_rank(world, [&](Rank rank) { ends[rank] = ends_of(plan.ranks[rank]); });
  std::vector<Sent> sent(world, {.messages = {}, .report = Report(report.limit())});
  for_each_rank(world, [&](Rank from) {
    sent[from].messages.reserve(ends[from].sends.size());
    for (Rank to = 0; to < world; ++to) {
      Channel sends = with_peer(ends[from].sends, to);
      Channel recvs = with_peer(ends[to].recvs, from);
      while (!sends.empty() || !recvs.empty()) {
        const Lane lane = recvs.empty() || (!sends.empty() && sends[0].lane < recvs[0].lane)
                              ? sends[0].lane
                              : recvs[0].lane;
        match_lane(plan, from, to, take_lane(sends, lane), take_lane(recvs, lane), sent[from]);
      }
    }
  });
  std::vector<Message> messages;
  for (const Sent& of_rank : sent) {
    messages.insert(messages.end(), of_rank.messages.begin(), of_rank.messages.end());
    report.add(of_rank.report);
  }
  return messages;
}

}  // namespace armillary::plan::verifier
