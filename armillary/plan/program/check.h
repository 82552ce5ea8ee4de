// check.h: proves that the programs of a world fit each other, whatever their ops mean: every op is
// well formed, every message meets its other end, and no order of events is a deadlock. Rules, by
// name:
//
//   well_formed  every view lies in its tile, operands of an op agree in shape, tiles fit their
//                slots
//   zero_copy    nothing is written over the view of a send without a copy; a receive without a
//                copy writes a whole tile that nothing else writes, and that is not the caller's
//   match        every send meets one receive of an equal view, in order per lane and pair of
//                ranks; every rank of a group comes to each of its joint ops, in order per lane
//   order        steps of a lane, also of the compute lane, do not decrease; no op of a batch
//                conflicts with another of it; there is no cycle of waits, so there is no deadlock
//                even without any buffering
//
// The meaning of the ops is proved by the vocabulary on top of this, in the order of events that
// is found here: attention by verify.h.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "armillary/plan/program/diagnostics.h"
#include "armillary/plan/program/measures.h"

namespace armillary::plan {

/// Further demands of a vocabulary on one op, such as the heads of keys that its queries read. It
/// is asked about ops that are well formed otherwise, by several threads.
using OpRule = std::function<void(const RankProgram& program, int op, Diagnostics& diagnostics)>;

/// One action of a run: a compute op of a rank, a message (both ends at once), or the part of one
/// rank in a joint op.
struct Action {
  Rank rank = 0;   ///< The rank whose slots it writes: that of the compute op or of the receive.
  int op = 0;      ///< The compute op, or the receive.
  Rank from = -1;  ///< The sender; -1: a compute op.
  int send = -1;   ///< The send; -1: a compute op.
  int wave = 0;    ///< All actions that it waits for are in lower waves.
  int joint = -1;  ///< Actions with one number follow each other: they are one joint op.
  bool is_message() const { return from >= 0; }
};

/// All rules, first causes first. Returns the actions in an order that respects every wait, on
/// which the meaning of the ops can be proved; nothing if a rule is broken. Any programs may be
/// given that have a vocabulary.
std::optional<std::vector<Action>> check(const World& world, Diagnostics& diagnostics,
                                         const OpRule& rule = {});

// The rules one by one, for proofs that do more in between. Each requires that those before it
// found nothing.

/// Rule `well_formed`, all ranks on all cores. After it, every index in a program may be used
/// without a check. `places` are the ranks of the programs; empty: each is at its own place.
void check_well_formed(const World& world, Diagnostics& diagnostics, const OpRule& rule = {},
                       std::span<const Rank> places = {});

/// Rule `zero_copy`, all ranks on all cores.
void check_zero_copy(const World& world, Diagnostics& diagnostics);

/// A message: op `send` of rank `from` meets op `recv` of rank `to`.
struct MatchedMessage {
  Rank from = 0;
  int send = 0;
  Rank to = 0;
  int recv = 0;
};

/// Rule `match`. Returns the messages of programs that obey it, by sender, then receiver, then
/// lane, in program order.
std::vector<MatchedMessage> match_messages(const World& world, Diagnostics& diagnostics);

/// A joint op: op `ops[i]` of rank `group[i]`. Refers to a program.
struct JointAction {
  std::span<const Rank> group;
  std::vector<int> ops;
};

/// Rule `match` of joint ops: the n-th of a lane and a group is of one kind on all its ranks. The
/// joint ops of programs that obey it, by lane, group and order.
std::vector<JointAction> match_joint(const World& world, Diagnostics& diagnostics);

/// True if two messages show equal parts of the same tensors, in the same order.
bool equal_messages(const RankProgram& a, const Op& left, const RankProgram& b, const Op& right);

/// True if the steps of the ops show that the programs obey the rule `order`: each batch waits only
/// for what can be done before any message of its step, and both ends of each message are in one
/// step. Then no waits form a cycle, on the strictest machine. False proves nothing:
/// order_actions() decides. All ranks on all cores. Requires programs without joint ops.
bool waits_follow_steps(const World& world, const std::vector<MatchedMessage>& messages);

/// Rule `order`: all actions in an order that respects every wait, for the strictest machine: no
/// buffering, and a batch of a lane starts after the batch before is complete. Adds a diagnostic
/// and returns nothing if ops of a batch conflict, steps of a lane decrease, or waits form a cycle;
/// then every op of the cycle is named.
std::vector<Action> order_actions(const World& world, const std::vector<MatchedMessage>& messages,
                                  Diagnostics& diagnostics,
                                  const std::vector<JointAction>& joints = {});

}  // namespace armillary::plan
