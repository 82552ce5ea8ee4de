#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "armillary/plan/each_rank.h"
#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {
namespace {

/// One end of a message.
struct End {
  Lane lane = 0;
  int op = 0;
};

/// Ends of one rank with one peer, by lane, or those in one lane.
using Channel = std::span<const End>;

/// The sends or the receives of a rank: by peer, then lane, then program order.
class Ends {
 public:
  Ends(const RankProgram& program, OpKind kind, int world) : begins_(world + 1) {
    for (const Op& op : program.ops) {
      if (op.kind == kind) ++begins_[op.peer];
    }
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    ends_.resize(begins_.back());
    for (int i = static_cast<int>(program.ops.size()) - 1; i >= 0; --i) {
      const Op& op = program.ops[i];
      if (op.kind == kind) ends_[--begins_[op.peer]] = {op.lane, i};
    }
    for (int peer = 0; peer < world; ++peer) {
      std::stable_sort(ends_.begin() + begins_[peer], ends_.begin() + begins_[peer + 1],
                       [](const End& a, const End& b) { return a.lane < b.lane; });
    }
  }
  std::size_t size() const { return ends_.size(); }
  Channel with(Rank peer) const {
    return Channel(ends_).subspan(begins_[peer], begins_[peer + 1] - begins_[peer]);
  }

 private:
  std::vector<int> begins_;  ///< Of each peer.
  std::vector<End> ends_;
};

bool equal_views(const RankProgram& a, const View& left, const RankProgram& b, const View& right) {
  const Tile& l = a.tiles[left.tile];
  const Tile& r = b.tiles[right.tile];
  // Both are as narrow as the problem's wire: `form` has seen to that.
  return l.tensor == r.tensor && l.partial == r.partial && left.heads == right.heads &&
         left.blocks == right.blocks;
}

/// The same views, in the same order.
bool equal(const RankProgram& a, const Op& left, const RankProgram& b, const Op& right) {
  return std::equal(left.views.begin(), left.views.end(), right.views.begin(), right.views.end(),
                    [&](const View& l, const View& r) { return equal_views(a, l, b, r); });
}

std::string describe_all(const RankProgram& program, const Op& message) {
  std::string text;
  for (const View& view : message.views) {
    if (!text.empty()) text += " with ";
    text += describe(program, view);
  }
  return text;
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
    const Op& send = sender.ops[message.send];
    const Op& recv = receiver.ops[message.recv];
    if (!equal(sender, send, receiver, recv)) {
      sent.report.add(to, message.recv, "match", "expects {} but rank {} sends {}",
                      describe_all(receiver, recv), from, describe_all(sender, send));
      return;
    }
    sent.messages.push_back(message);
  }
  if (recvs.size() > both) {
    const int op = recvs[both].op;
    sent.report.add(to, op, "match", "{} has no matching send on rank {}",
                    describe_all(receiver, receiver.ops[op]), from);
  } else if (sends.size() > both) {
    const int op = sends[both].op;
    sent.report.add(from, op, "match", "{} has no matching receive on rank {}",
                    describe_all(sender, sender.ops[op]), to);
  }
}

}  // namespace

std::vector<Message> match_messages(const Plan& plan, Report& report) {
  const int world = static_cast<int>(plan.ranks.size());
  std::vector<std::optional<Ends>> sends(world);
  std::vector<std::optional<Ends>> recvs(world);
  for_each_rank(world, [&](Rank rank) {
    sends[rank].emplace(plan.ranks[rank], OpKind::Send, world);
    recvs[rank].emplace(plan.ranks[rank], OpKind::Recv, world);
  });
  std::vector<Sent> sent(world, {.messages = {}, .report = Report(report.limit())});
  for_each_rank(world, [&](Rank from) {
    sent[from].messages.reserve(sends[from]->size());
    for (Rank to = 0; to < world; ++to) {
      Channel out = sends[from]->with(to);
      Channel in = recvs[to]->with(from);
      while (!out.empty() || !in.empty()) {
        const Lane lane =
            in.empty() || (!out.empty() && out[0].lane < in[0].lane) ? out[0].lane : in[0].lane;
        match_lane(plan, from, to, take_lane(out, lane), take_lane(in, lane), sent[from]);
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
