// Rule `match`. Each rank sorts its sends and its receives by peer and lane. Then, for every
// ordered pair of ranks, the sends of one and the receives of the other are matched lane by lane,
// in program order: the n-th send meets the n-th receive, and both must show equal views.
#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/program/check.h"
#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::plan {
namespace {

/// One end of a message.
struct MessageEnd {
  Lane lane = 0;
  int op = 0;
};

/// Ends at one rank of its messages with one peer, sorted by lane; or a part of them in one lane.
using EndSpan = std::span<const MessageEnd>;

/// All sends or all receives of a rank, sorted by peer, then lane, then program order.
class Ends {
 public:
  Ends(const RankProgram& program, Kind kind, int world) : begins_(world + 1) {
    // A counting sort by peer: counts, their prefix sums, then the ops placed from the last one on.
    for (const Op& op : program.ops) {
      if (op.kind == kind) ++begins_[op.peer];
    }
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    ends_.resize(begins_.back());
    for (int i = static_cast<int>(program.ops.size()) - 1; i >= 0; --i) {
      const Op& op = program.ops[i];
      if (op.kind == kind) ends_[--begins_[op.peer]] = {op.lane, i};
    }
    const auto by_lane = [](const MessageEnd& a, const MessageEnd& b) { return a.lane < b.lane; };
    for (int peer = 0; peer < world; ++peer) {
      const std::span<MessageEnd> ends(ends_.begin() + begins_[peer],
                                       ends_.begin() + begins_[peer + 1]);
      if (!std::ranges::is_sorted(ends, by_lane)) std::ranges::stable_sort(ends, by_lane);
    }
  }
  std::size_t size() const { return ends_.size(); }
  /// The ends of messages with one peer.
  EndSpan with(Rank peer) const {
    return EndSpan(ends_).subspan(begins_[peer], begins_[peer + 1] - begins_[peer]);
  }

 private:
  std::vector<int> begins_;  ///< Index of the first end of each peer.
  std::vector<MessageEnd> ends_;
};

/// True if two views of two ranks show the same part of the same tensor.
bool equal_views(const RankProgram& a, const View& left, const RankProgram& b, const View& right) {
  const Tile& l = a.tiles[left.tile];
  const Tile& r = b.tiles[right.tile];
  return l.tensor == r.tensor && l.partial == r.partial && l.narrow == r.narrow &&
         left.heads == right.heads && left.blocks == right.blocks;
}

/// Removes the ends of `lane` from the front of `ends` and returns them; possibly none.
EndSpan take_lane(EndSpan& ends, Lane lane) {
  std::size_t count = 0;
  while (count < ends.size() && ends[count].lane == lane) ++count;
  const EndSpan taken = ends.first(count);
  ends = ends.subspan(count);
  return taken;
}

/// The result for one sender: its messages, or the diagnostics.
struct SenderMatch {
  std::vector<MatchedMessage> messages;
  Diagnostics diagnostics;
};

/// Matches the messages from one rank to another.
class MessageMatcher {
 public:
  MessageMatcher(const RankProgram& sender, const RankProgram& receiver, SenderMatch& match)
      : sender_(sender), receiver_(receiver), sent_(match) {}

  /// All messages: the lanes one after the other.
  void match(EndSpan sends, EndSpan recvs) {
    while (!sends.empty() || !recvs.empty()) {
      const bool send_first = recvs.empty() || (!sends.empty() && sends[0].lane < recvs[0].lane);
      const Lane lane = send_first ? sends[0].lane : recvs[0].lane;
      match_lane(take_lane(sends, lane), take_lane(recvs, lane));
    }
  }

 private:
  /// The messages of one lane, in program order of both ranks.
  void match_lane(EndSpan sends, EndSpan recvs) {
    const std::size_t both = std::min(sends.size(), recvs.size());
    for (std::size_t m = 0; m < both; ++m) {
      const Op& send = sender_.ops[sends[m].op];
      const Op& recv = receiver_.ops[recvs[m].op];
      if (!equal_messages(sender_, send, receiver_, recv)) {
        sent_.diagnostics.add(receiver_.rank, recvs[m].op, "match",
                              "expects {} but rank {} sends {}", describe(receiver_, recv),
                              sender_.rank, describe(sender_, send));
        return;
      }
      if (send.collective != recv.collective) {
        sent_.diagnostics.add(receiver_.rank, recvs[m].op, "match",
                              "is of the collective {}, but rank {} sends it in {}",
                              to_string(recv.collective), sender_.rank, to_string(send.collective));
        return;
      }
      sent_.messages.push_back({sender_.rank, sends[m].op, receiver_.rank, recvs[m].op});
    }
    // The first message that is left over on either side has no other end.
    if (recvs.size() > both) {
      const int op = recvs[both].op;
      sent_.diagnostics.add(receiver_.rank, op, "match", "{} has no matching send on rank {}",
                            describe(receiver_, receiver_.ops[op]), sender_.rank);
    } else if (sends.size() > both) {
      const int op = sends[both].op;
      sent_.diagnostics.add(sender_.rank, op, "match", "{} has no matching receive on rank {}",
                            describe(sender_, sender_.ops[op]), receiver_.rank);
    }
  }

  const RankProgram& sender_;
  const RankProgram& receiver_;
  SenderMatch& sent_;
};

}  // namespace

bool equal_messages(const RankProgram& a, const Op& left, const RankProgram& b, const Op& right) {
  return std::equal(left.views.begin(), left.views.end(), right.views.begin(), right.views.end(),
                    [&](const View& l, const View& r) { return equal_views(a, l, b, r); });
}

std::vector<MatchedMessage> match_messages(const World& all, Diagnostics& diagnostics) {
  // The ends of every rank.
  const int world = static_cast<int>(all.ranks.size());
  std::vector<std::optional<Ends>> sends(world);
  std::vector<std::optional<Ends>> recvs(world);
  parallel_for_ranks(world, [&](Rank rank) {
    sends[rank].emplace(all.ranks[rank], kSend, world);
    recvs[rank].emplace(all.ranks[rank], kRecv, world);
  });
  // Each sender with all receivers.
  std::vector<SenderMatch> by_sender(
      world, {.messages = {}, .diagnostics = Diagnostics(diagnostics.limit())});
  parallel_for_ranks(world, [&](Rank from) {
    by_sender[from].messages.reserve(sends[from]->size());
    for (Rank to = 0; to < world; ++to) {
      MessageMatcher(all.ranks[from], all.ranks[to], by_sender[from])
          .match(sends[from]->with(to), recvs[to]->with(from));
    }
  });
  std::vector<MatchedMessage> messages;
  for (const SenderMatch& of_rank : by_sender) {
    messages.insert(messages.end(), of_rank.messages.begin(), of_rank.messages.end());
    diagnostics.add(of_rank.diagnostics);
  }
  return messages;
}

}  // namespace armillary::plan
