#include <algorithm>
#include <span>
#include <tuple>
#include <vector>

#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {
namespace {

/// One end of a message whose sender is known.
struct End {
  Rank to = 0;
  Lane lane = 0;
  int op = 0;  ///< Of the sender, or of the receiver.
  bool operator<(const End& other) const {
    return std::tie(to, lane, op) < std::tie(other.to, other.lane, other.op);
  }
};

/// By sender; of each the ends by receiver, then lane, then program order.
struct Ends {
  explicit Ends(const Plan& plan) : sends(plan.ranks.size()), recvs(plan.ranks.size()) {
    for (const RankProgram& program : plan.ranks) {
      for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
        const Op& op = program.ops[i];
        if (op.kind == OpKind::Send) sends[program.rank].push_back({op.peer, op.lane, i});
        if (op.kind == OpKind::Recv) recvs[op.peer].push_back({program.rank, op.lane, i});
      }
    }
    for (auto* side : {&sends, &recvs}) {
      for (std::vector<End>& ends : *side) std::sort(ends.begin(), ends.end());
    }
  }
  std::vector<std::vector<End>> sends;
  std::vector<std::vector<End>> recvs;
};

bool equal(const RankProgram& a, const View& left, const RankProgram& b, const View& right) {
  const Tile& l = a.tiles[left.tile];
  const Tile& r = b.tiles[right.tile];
  return l.tensor == r.tensor && l.partial == r.partial && l.narrow == r.narrow &&
         left.heads == right.heads && left.blocks == right.blocks;
}

/// Those of `ends` from `begin` on that have the receiver and the lane of the first.
using Channel = std::span<const End>;
Channel channel_at(const std::vector<End>& ends, std::size_t begin, Rank to, Lane lane) {
  std::size_t end = begin;
  while (end < ends.size() && ends[end].to == to && ends[end].lane == lane) ++end;
  return Channel(ends).subspan(begin, end - begin);
}

/// Messages of one lane from one rank to another, in program order of both.
void match_channel(const Plan& plan, Rank from, Channel sends, Channel recvs,
                   std::vector<Message>& messages, Report& report) {
  const std::size_t both = std::min(sends.size(), recvs.size());
  for (std::size_t m = 0; m < both; ++m) {
    const Message message{from, sends[m].op, recvs[m].to, recvs[m].op};
    const View& sent = plan.ranks[from].ops[message.send].views[0];
    const View& received = plan.ranks[message.to].ops[message.recv].views[0];
    if (!equal(plan.ranks[from], sent, plan.ranks[message.to], received)) {
      report.add(message.to, message.recv, "match", "expects {} but rank {} sends {}",
                 describe(plan.ranks[message.to], received), from,
                 describe(plan.ranks[from], sent));
      return;
    }
    messages.push_back(message);
  }
  if (recvs.size() > both) {
    const auto [to, lane, op] = recvs[both];
    report.add(to, op, "match", "{} has no matching send on rank {}",
               describe(plan.ranks[to], plan.ranks[to].ops[op].views[0]), from);
  } else if (sends.size() > both) {
    const auto [to, lane, op] = sends[both];
    report.add(from, op, "match", "{} has no matching receive on rank {}",
               describe(plan.ranks[from], plan.ranks[from].ops[op].views[0]), to);
  }
}

}  // namespace

std::vector<Message> match_messages(const Plan& plan, Report& report) {
  const Ends ends(plan);
  std::vector<Message> messages;
  for (Rank from = 0; from < static_cast<Rank>(plan.ranks.size()); ++from) {
    const std::vector<End>& sends = ends.sends[from];
    const std::vector<End>& recvs = ends.recvs[from];
    std::size_t s = 0;
    std::size_t r = 0;
    while (s < sends.size() || r < recvs.size()) {
      const bool sent =
          s < sends.size() && (r == recvs.size() || std::tie(sends[s].to, sends[s].lane) <=
                                                        std::tie(recvs[r].to, recvs[r].lane));
      const auto [to, lane, op] = sent ? sends[s] : recvs[r];
      const Channel of_sends = channel_at(sends, s, to, lane);
      const Channel of_recvs = channel_at(recvs, r, to, lane);
      match_channel(plan, from, of_sends, of_recvs, messages, report);
      s += of_sends.size();
      r += of_recvs.size();
    }
  }
  return messages;
}

}  // namespace armillary::plan::verifier
