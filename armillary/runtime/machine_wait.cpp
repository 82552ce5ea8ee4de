// The machine at work: (1) which batch of a lane may start, (2) starting it, (3) the memory
// of its messages as pieces, (4) collecting what is done, and waiting for what can end next.
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/runtime/machine.h"

namespace armillary::runtime {

// 1. Readiness: which batch may start.

/// An open gate is forgotten: it never closes again.
bool Machine::gate_is_open() {
  if (options_.gate != nullptr && options_.gate->is_open()) options_.gate = nullptr;
  return options_.gate == nullptr;
}

bool Machine::finished() const {
  if (options_.gate != nullptr) return false;
  for (std::size_t lane = 0; lane < next_.size(); ++lane) {
    if (next_[lane] < compiled_->lanes[lane].size()) return false;
  }
  return in_flight_.empty() && running_.empty() && arriving_.empty();
}

/// Whether a batch of `lane` may rely on `op`. A compute batch may rely on an op that the device
/// has only started, because the device keeps the order of a lane; a message may not.
bool Machine::is_over(int op, plan::Lane lane) const {
  if (complete_[op]) return true;
  return lane == plan::kCompute && compiled_->ops[op].op->lane == lane && !running_.empty() &&
         op >= running_.front().op && op <= running_.back().op;
}

/// Whether every op that the batch waits for is over, and every input that it reads is there.
bool Machine::ready(const MachineBatch& batch) const {
  return may_begin_ &&
         std::all_of(batch.waits.begin(), batch.waits.end(),
                     [&](int op) { return is_over(op, batch.lane); }) &&
         std::none_of(batch.inputs.begin(), batch.inputs.end(),
                      [&](int tile) { return inputs_[tile] != InputState::There; });
}

/// Starts all batches of the communication lanes that are ready, and then at most one of the
/// compute lane, so that messages are in flight while the compute lane works. Returns whether any
/// batch was started.
bool Machine::start_ready() {
  bool started = false;
  const bool may_send = gate_is_open();
  for (std::size_t l = next_.size(); l-- > 0;) {
    if (l != plan::kCompute && !may_send) continue;
    const std::vector<MachineBatch>& lane = compiled_->lanes[l];
    while (next_[l] < lane.size() && ready(lane[next_[l]])) {
      start(lane[next_[l]++]);
      started = true;
      if (l == plan::kCompute) return true;  // messages may now be ready: look at them first
    }
  }
  return started;
}

// 2. Starting a batch.

/// Starts one op on the device, or the messages of a batch. A null event is an op that has run.
void Machine::start(const MachineBatch& batch) {
  if (batch.lane != plan::kCompute) return start_messages(batch);
  const int op = batch.ops[0];
  recorded_.started(op);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = op == timed_op_ ? Clock::now() : Clock::time_point();
  EventHandle event = device().start(batch.lane, *this, op);
  if (op == timed_op_) {
    timed_s_ = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  recorded_.time_passed();
  if (event == nullptr) {
    complete_[op] = true;
    recorded_.finish(op);
  } else {
    running_.push_back({op, std::move(event)});
  }
}

/// Describes the messages of a batch by pieces of memory, and starts them in one call.
void Machine::start_messages(const MachineBatch& batch) {
  // All pieces first: messages refer to them by spans, so the vector must not grow afterwards.
  parts_.clear();
  messages_.clear();
  for (const int op : batch.ops) add_parts(op);
  // One message per op, with its pieces. Its bytes are counted in moved_.
  std::span<const comm::Strided> parts = parts_;
  for (const int op : batch.ops) {
    const plan::Op& action = *compiled_->ops[op].op;
    const bool sends = action.kind == plan::kSend;
    const std::size_t count = parts_of(compiled_->ops[op]);
    messages_.push_back({.direction = sends ? comm::Direction::Send : comm::Direction::Receive,
                         .peer = action.peer,
                         .lane = action.lane,
                         .parts = parts.first(count)});
    const int tile = action.views[0].tile;
    zero_copy_.allow(op, in_slot(tile) ? slots_ : tiles_[tile], messages_.back());
    parts = parts.subspan(count);
    (sends ? moved_.sent_bytes : moved_.received_bytes) +=
        comm::total_bytes(messages_.back().parts);
    (sends ? moved_.sent_messages : moved_.received_messages) += 1;
    in_flight_.push_back(op);
    recorded_.started(op);
  }
  // requests_[i] belongs to in_flight_[i].
  requests_.resize(in_flight_.size());
  comm_->start(messages_, std::span(requests_).last(messages_.size()));
  recorded_.time_passed();
  messages_.clear();  // they own tiles that peers borrow
}

// 3. The memory of a message as pieces.

/// Number of pieces of a message: one for each batch entry and segment of its views.
std::size_t Machine::parts_of(const CompiledOp& message) const {
  std::size_t segments = 0;
  for (const plan::LocatedView& view : message.views) segments += view.segments.size();
  return static_cast<std::size_t>(compiled_->batch) * segments;
}

/// Appends the pieces of a message, view by view. Both ends use the same order, and the bytes of
/// each segment are in order of blocks and tokens, however the tiles are laid out.
void Machine::add_parts(int op) {
  for (std::size_t v = 0; v < compiled_->ops[op].views.size(); ++v) add_parts(op, v);
}

/// Appends the pieces of one view, by batch entry, then segment. A piece has one row per token, or
/// a single row if its tokens are contiguous, as in a view of all heads of a contiguous tile.
void Machine::add_parts(int op, std::size_t view) {
  const at::Device place = this->device().place();
  const int device = place.is_cpu() ? comm::kHost : place.index();
  for (std::int64_t b = 0; b < compiled_->batch; ++b) {
    for (std::size_t s = 0; s < compiled_->ops[op].views[view].segments.size(); ++s) {
      const at::Tensor& shown = bound_tensors_.at(op, view, s);
      const std::int64_t size = shown.element_size();
      const std::int64_t rows = shown.size(1);
      const std::int64_t token_bytes = shown.stride(1) * size;
      const std::int64_t row_bytes = shown.size(2) * (shown.dim() == 4 ? shown.size(3) : 1) * size;
      auto* const data = static_cast<std::byte*>(shown.data_ptr()) + b * shown.stride(0) * size;
      if (row_bytes == token_bytes) {
        parts_.push_back({data, 1, rows * row_bytes, rows * row_bytes, device});
      } else {
        parts_.push_back({data, rows, row_bytes, token_bytes, device});
      }
    }
  }
}

// 4. Collecting what is done, and waiting.

/// Marks inputs as there, and ops as complete, whose event or request is done. Returns whether
/// there was any.
bool Machine::collect_done() {
  // Work of the caller, and ops on the device, end in the order in which they were started.
  bool any = false;
  while (!arriving_.empty() && device().is_complete(arriving_.front().event)) {
    const int tile = arriving_.front().tile;
    if (tile == kBegin) {
      may_begin_ = true;
    } else {
      inputs_[tile] = InputState::There;
    }
    arriving_.pop_front();
    any = true;
  }
  while (!running_.empty() && device().is_complete(running_.front().event)) {
    complete_[running_.front().op] = true;
    recorded_.finish(running_.front().op);
    running_.pop_front();
    any = true;
  }
  // Messages end in any order; those that are not done move to the front.
  std::size_t pending = 0;
  for (std::size_t i = 0; i < in_flight_.size(); ++i) {
    if (comm_->is_complete(requests_[i])) {
      complete_[in_flight_[i]] = true;
      recorded_.finish(in_flight_[i]);
      moved_.borrowed_bytes += zero_copy_.borrow(in_flight_[i], requests_[i], bound_tensors_);
      continue;
    }
    std::swap(in_flight_[pending], in_flight_[i]);
    std::swap(requests_[pending], requests_[i]);
    ++pending;
  }
  any = any || pending < in_flight_.size();
  in_flight_.resize(pending);
  requests_.resize(pending);
  return any;
}

/// Waits for something that can end: an op on the device, work of the caller, the gate, or a
/// message. If there is nothing to wait for, an input was not fed or the plan is wrong, and it
/// throws.
void Machine::wait_for_any() {
  using recorder::Wait;
  const auto wait = [&](Wait why, const auto& action) {
    recorder::while_waiting(options_.recorder, why, action,
                            {.call = recorded_.call(), .group = options_.recorded_group});
  };
  if (!running_.empty()) {
    return wait(Wait::Device, [&] { wait_for_device(running_.front().event); });
  }
  if (!arriving_.empty()) {
    return wait(Wait::Device, [&] { wait_for_device(arriving_.front().event); });
  }
  if (options_.gate != nullptr) {
    return wait(Wait::Agreement, [&] { options_.gate->wait(); });
  }
  if (!in_flight_.empty()) {
    return wait(Wait::Messages, [&] { comm_->wait_any(requests_, options_.timeout_s); });
  }
  for (std::size_t tile = 0; tile < inputs_.size(); ++tile) {
    if (inputs_[tile] == InputState::Awaited) {
      fail<InvalidArgument>("executor: finish() before {} was fed; feed every input first",
                            compiled_->words()[compiled_->program.tiles[tile].tensor].name);
    }
  }
  fail<PlanError>("executor: rank {} waits for nothing that can happen; verify() the plan",
                  comm_->rank());
}

/// Waits until the device has run an op, a message is done, or the gate has opened. No call can
/// wait for all of these at once, so it looks at messages and gate every 50 us.
void Machine::wait_for_device(const EventHandle& event) {
  using Clock = std::chrono::steady_clock;
  constexpr double kLook = 50e-6;  // seconds
  const double timeout_s = options_.timeout_s.value_or(comm_->timeout_s());
  const auto begin = Clock::now();
  while (!device().wait(event, kLook)) {
    comm_->throw_if_failed();
    if (options_.gate != nullptr && gate_is_open()) return;
    if (std::ranges::any_of(requests_,
                            [&](const auto& request) { return comm_->is_complete(request); })) {
      return;
    }
    if (!arriving_.empty() && device().is_complete(arriving_.front().event)) return;
    if (std::chrono::duration<double>(Clock::now() - begin).count() < timeout_s) continue;
    fail<Error>("executor: rank {} waits for {}, not done after {:.3g} s", comm_->rank(),
                waited_for(), timeout_s);
  }
}

/// The message under way that comes first in the program: a receive, or a send if there is none.
/// Requires one.
int Machine::first_in_flight() const {
  return *std::ranges::min_element(in_flight_, {}, [&](int op) {
    const bool is_send = compiled_->ops[op].op->kind == plan::kSend;
    return std::tuple(bool(complete_[op]), is_send, op);
  });
}

/// The work that wait_for_device() waits for, for errors.
std::string Machine::waited_for() const {
  if (!running_.empty()) {
    const int op = running_.front().op;
    return fmt::format("{} of op {}", compiled_->words()[compiled_->ops[op].op->kind].name, op);
  }
  const int tile = arriving_.front().tile;
  if (tile == kBegin) return "work that the caller queued before the run";
  return fmt::format("the {} that the caller computes",
                     compiled_->words()[compiled_->program.tiles[tile].tensor].name);
}

}  // namespace armillary::runtime
