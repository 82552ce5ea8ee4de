// Rule `match` for the representatives of a fold: the n-th send of a queue meets the n-th receive,
// in the receiver's numbers.
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {

std::vector<MatchedMessage> match_folded(const Plan& plan, const Fold& fold,
                                         Diagnostics& diagnostics) {
  // Ends of messages by (receiving class, sender as its representative sees it, lane), in program
  // order. A send of one representative is in one of these queues, and so is a receive.
  struct Folded {
    std::vector<std::pair<int, int>> sends;  // Class and op of the sender.
    std::vector<int> recvs;
  };
  std::map<std::tuple<int, Rank, Lane>, Folded> queues;
  for (int c = 0; c < fold.classes(); ++c) {
    const RankProgram& program = plan.ranks[c];
    for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
      const Op& op = program.ops[i];
      if (op.kind == OpKind::Recv) queues[{c, op.peer, op.lane}].recvs.push_back(i);
      if (op.kind != OpKind::Send) continue;
      const Rank sender = fold.rotated(program.rank, fold.inverse(fold.rotation_to(op.peer)));
      queues[{fold.class_of(op.peer), sender, op.lane}].sends.emplace_back(c, i);
    }
  }
  // The n-th send of a queue meets the n-th receive, in the receiver's numbers.
  std::vector<MatchedMessage> messages;
  for (const auto& [queue, ends] : queues) {
    const auto [to, sender, lane] = queue;
    const RankProgram& receiver = plan.ranks[to];
    const std::size_t both = std::min(ends.sends.size(), ends.recvs.size());
    for (std::size_t m = 0; m < both; ++m) {
      const auto [from, send] = ends.sends[m];
      Op op = plan.ranks[from].ops[send];
      const Fold::Rotation back = fold.inverse(fold.rotation_to(op.peer));
      for (View& view : op.views) {
        view.blocks = fold.rotated(plan.ranks[from].tiles[view.tile].tensor, view.blocks, back);
      }
      if (!equal_messages(plan.ranks[from], op, receiver, receiver.ops[ends.recvs[m]])) {
        diagnostics.add(receiver.rank, ends.recvs[m], "match", "expects {} but rank {} sends {}",
                        describe(receiver, receiver.ops[ends.recvs[m]]), sender,
                        describe(plan.ranks[from], op));
        break;
      }
      const Collective expected = receiver.ops[ends.recvs[m]].collective;
      if (op.collective != expected) {
        diagnostics.add(receiver.rank, ends.recvs[m], "match",
                        "is of the collective {}, but rank {} sends it in {}", to_string(expected),
                        sender, to_string(op.collective));
        break;
      }
      messages.push_back({from, send, to, ends.recvs[m]});
    }
    if (ends.recvs.size() > both) {
      diagnostics.add(receiver.rank, ends.recvs[both], "match",
                      "{} has no matching send on rank {}",
                      describe(receiver, receiver.ops[ends.recvs[both]]), sender);
    } else if (ends.sends.size() > both) {
      const auto [from, send] = ends.sends[both];
      const RankProgram& program = plan.ranks[from];
      diagnostics.add(program.rank, send, "match", "{} has no matching receive on rank {}",
                      describe(program, program.ops[send]), program.ops[send].peer);
    }
  }
  return messages;
}

}  // namespace armillary::plan::verifier
