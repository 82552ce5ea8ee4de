// Texts about one rank, for the line of the cause and for the line of each rank: what it does,
// since when, and for whom it waits.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "armillary/core/count_text.h"
#include "armillary/host/recorder/diagnosis.h"

namespace armillary::recorder {
namespace {

/// Whether a message is one of the call that the rank waits in, if it waits in one.
bool is_waited_for(const Flight& flight, const RecordedOp& message) {
  return flight.wait != Wait::Messages || flight.wait_call == 0 || message.call == flight.wait_call;
}

/// The strategy of the call of an op; that of the last call if the status of its own is not kept.
const std::string& strategy_of(const Flight& flight, const RecordedOp& op) {
  for (auto work = flight.earlier_work.rbegin(); work != flight.earlier_work.rend(); ++work) {
    if (work->step == op.step && work->call == op.call) return work->strategy;
  }
  return flight.work.strategy;
}

/// The op that the rank is in: the compute op that has not ended, or else, if the rank waits for
/// messages, the oldest receive under way, or the oldest send. Null if it is in none.
const RecordedOp* current_op(const Flight& flight) {
  const RecordedOp* receive = nullptr;
  const RecordedOp* send = nullptr;
  for (const RecordedOp& op : flight.ops) {
    if (op.complete) continue;
    if (!op.is_message()) return &op;
    if (!is_waited_for(flight, op)) continue;
    const RecordedOp*& oldest = op.is_send() ? send : receive;
    if (oldest == nullptr) oldest = &op;
  }
  if (flight.wait != Wait::Messages) return nullptr;
  return receive != nullptr ? receive : send;
}

}  // namespace

std::string_view to_string(Wait wait) {
  constexpr std::array<std::string_view, 5> kNames{"", "messages", "its device",
                                                   "all ranks to make the same call",
                                                   "all ranks to prove the plan"};
  return kNames[static_cast<std::size_t>(wait)];
}

std::string wait_text(const Flight& flight) {
  std::string text(to_string(flight.wait));
  constexpr std::string_view kAll = "all ranks";
  const std::vector<int>* const ranks = flight.ranks_of(flight.wait_group);
  if (ranks == nullptr || !text.starts_with(kAll)) return text;
  return fmt::format("all {} ranks of its group{}", ranks->size(), text.substr(kAll.size()));
}

std::string_view to_string(ProcessState state) {
  constexpr std::array<std::string_view, 4> kNames{"alive", "stopped", "gone", "on another host"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string describe(const RecordedOp& op) {
  std::string text = fmt::format("{} (op {})", op.kind, op.op.index);
  if (!op.is_message()) return text;
  return fmt::format("{} of {} {} rank {} on lane {}", text, count_of(op.op.bytes, "byte"),
                     op.is_send() ? "to" : "from", op.op.peer, op.op.lane);
}

std::vector<RecordedOp> messages_of(const Flight& flight) {
  std::vector<RecordedOp> messages;
  std::ranges::copy_if(flight.ops, std::back_inserter(messages), [&](const RecordedOp& op) {
    return op.is_message() && !op.complete && is_waited_for(flight, op);
  });
  return messages;
}

// Inside of attention: the op, or the wait. Outside: the activity, with the call that began last.
std::string place_of(const Flight& flight) {
  std::string text = flight.work.step > 0 ? fmt::format("step {}, ", flight.work.step) : "";
  if (const RecordedOp* op = current_op(flight)) {
    return text + fmt::format("{} {} of call {}, plan step {}, {}", strategy_of(flight, *op),
                              op->pass, op->call, op->op.plan_step, describe(*op));
  }
  if (flight.wait != Wait::None && flight.work.call > 0) {
    return text + fmt::format("{} {} of call {}, waiting for {}", flight.work.strategy,
                              flight.work.pass, flight.work.call, wait_text(flight));
  }
  if (flight.work.activity.empty()) text += "before the first step";
  text += flight.work.activity;
  if (flight.work.activity_bytes > 0)
    text += fmt::format(" of {}", count_of(flight.work.activity_bytes, "byte"));
  if (flight.work.call > 0) {
    text += fmt::format(", after {} {} of call {} began", flight.work.strategy, flight.work.pass,
                        flight.work.call);
  } else if (flight.wait != Wait::None) {
    text += fmt::format(", waiting for {}", wait_text(flight));
  }
  return text;
}

}  // namespace armillary::recorder
