#include "armillary/attention/executor.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::attention {
namespace {

at::ScalarType scalar_type(plan::Dtype dtype) {
  switch (dtype) {
    case plan::Dtype::F64:
      return at::kDouble;
    case plan::Dtype::F32:
      return at::kFloat;
    case plan::Dtype::Bf16:
      return at::kBFloat16;
    case plan::Dtype::F16:
      return at::kHalf;
  }
  fail<InternalError>("executor: dtype {}", static_cast<int>(dtype));
}

std::string text_of(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Runs `action`; if it throws, the group is aborted with its reason before the error goes on.
template <class Action>
void or_abort(comm::Communicator& comm, const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    comm.abort(error.what());
    throw;
  }
}

}  // namespace

Execution::Execution(std::shared_ptr<const CompiledProgram> compiled, comm::Communicator& comm,
                     ExecutionOptions options)
    : compiled_(std::move(compiled)),
      comm_(comm),
      options_(std::move(options)),
      tiles_(compiled_->program.tiles.size()),
      awaited_(compiled_->program.tiles.size(), false),
      complete_(compiled_->program.ops.size(), false),
      next_(compiled_->lanes.size(), 0) {
  if (comm.rank() != compiled_->program.rank || comm.world() != compiled_->problem.world) {
    fail<InvalidArgument>(
        "executor: the program is rank {} of {}, the communicator rank {} of {}; they must agree",
        compiled_->program.rank, compiled_->problem.world, comm.rank(), comm.world());
  }
  const std::int64_t heads = compiled_->problem.heads;
  const at::ScalarType acc = scalar_type(accumulator(compiled_->problem.dtype));
  if (options_.sinks_H.defined()) {
    if (options_.sinks_H.sizes() != at::IntArrayRef{heads} ||
        options_.sinks_H.scalar_type() != acc) {
      fail<InvalidArgument>("executor: sinks_H is {} {}; {} [{}] is required",
                            at::toString(options_.sinks_H.scalar_type()),
                            text_of(options_.sinks_H.sizes()), at::toString(acc), heads);
    }
    dsinks_H_ = at::zeros({heads}, at::kDouble);
  }
  if (options_.max_logit) {
    max_logit_H_ = at::full({heads}, -std::numeric_limits<double>::infinity(), acc);
  }
  allocate();
}

/// One buffer per slot; external slots hold one tile each, which is a tensor of its own.
void Execution::allocate() {
  const plan::RankProgram& program = compiled_->program;
  const bool backward = tile_of(program.inputs, plan::Tensor::DOut) >= 0;
  for (const int tile : program.inputs) awaited_[tile] = true;
  for (const int tile : program.saved) awaited_[tile] = awaited_[tile] || backward;
  std::vector<at::Tensor> slots(program.slots.size());
  for (std::size_t t = 0; t < program.tiles.size(); ++t) {
    const plan::Tile& tile = program.tiles[t];
    const plan::Dtype dtype = dtype_of(compiled_->problem, tile);
    const std::vector<std::int64_t>& shape = compiled_->shapes[t];
    if (program.slots[tile.slot].external) {
      if (!awaited_[t]) tiles_[t] = at::empty(shape, scalar_type(dtype));
      continue;
    }
    at::Tensor& slot = slots[tile.slot];
    if (!slot.defined()) slot = at::empty({program.slots[tile.slot].bytes}, at::kByte);
    const std::int64_t bytes = c10::multiply_integers(shape) * plan::bytes_of(dtype);
    tiles_[t] = slot.narrow(0, 0, bytes).view(scalar_type(dtype)).view(shape);
  }
}

int Execution::tile_of(const std::vector<int>& role, plan::Tensor tensor) const {
  for (const int tile : role) {
    if (compiled_->program.tiles[tile].tensor == tensor) return tile;
  }
  return -1;
}

void Execution::feed(plan::Tensor tensor, const at::Tensor& value) {
  or_abort(comm_, [&] {
    int tile = tile_of(compiled_->program.inputs, tensor);
    if (tile < 0) tile = tile_of(compiled_->program.saved, tensor);
    if (tile < 0 || !awaited_[tile]) {
      fail<InvalidArgument>("executor: {} was fed; this pass does not wait for it",
                            to_string(tensor));
    }
    const at::ScalarType dtype =
        scalar_type(dtype_of(compiled_->problem, compiled_->program.tiles[tile]));
    if (value.sizes() != at::IntArrayRef(compiled_->shapes[tile]) || value.scalar_type() != dtype) {
      fail<InvalidArgument>("executor: {} is {} of {}; rank {} needs {} of {}", to_string(tensor),
                            at::toString(value.scalar_type()), text_of(value.sizes()), comm_.rank(),
                            at::toString(dtype), text_of(compiled_->shapes[tile]));
    }
    tiles_[tile] = value.detach().contiguous();
    awaited_[tile] = false;
  });
  advance();
}

void Execution::advance() {
  or_abort(comm_, [&] {
    while (start_ready() || collect_done()) {
    }
  });
}

void Execution::finish() {
  advance();
  or_abort(comm_, [&] {
    while (!finished()) {
      wait_for_any();
      while (start_ready() || collect_done()) {
      }
    }
  });
}

bool Execution::finished() const {
  for (std::size_t lane = 0; lane < next_.size(); ++lane) {
    if (next_[lane] < compiled_->lanes[lane].size()) return false;
  }
  return flying_.empty();
}

bool Execution::ready(const Batch& batch) const {
  return std::all_of(batch.waits.begin(), batch.waits.end(),
                     [&](int op) { return complete_[op]; }) &&
         std::none_of(batch.inputs.begin(), batch.inputs.end(),
                      [&](int tile) { return awaited_[tile]; });
}

/// Starts the next batch of every lane that can start; comm lanes first, so that messages fly while
/// the compute lane works.
bool Execution::start_ready() {
  bool started = false;
  for (std::size_t l = next_.size(); l-- > 0;) {
    const std::vector<Batch>& lane = compiled_->lanes[l];
    while (next_[l] < lane.size() && ready(lane[next_[l]])) {
      start(lane[next_[l]++]);
      started = true;
      if (l == plan::kCompute) return true;  // what it completed may let messages start
    }
  }
  return started;
}

void Execution::start(const Batch& batch) {
  if (batch.lane != plan::kCompute) return start_messages(batch);
  compute(batch.ops[0]);
  complete_[batch.ops[0]] = true;
}

void Execution::start_messages(const Batch& batch) {
  std::vector<std::vector<comm::Strided>> parts;
  std::vector<comm::Message> messages;
  parts.reserve(batch.messages.size());
  for (const std::vector<int>& ops : batch.messages) {
    const plan::Op& action = compiled_->program.ops[ops[0]];
    const bool sends = action.kind == plan::OpKind::Send;
    std::vector<comm::Strided>& all = parts.emplace_back();
    for (const int op : ops) {
      const std::vector<comm::Strided> one = strided(op);
      all.insert(all.end(), one.begin(), one.end());
    }
    messages.push_back({.direction = sends ? comm::Direction::Send : comm::Direction::Receive,
                        .peer = action.peer,
                        .lane = action.lane,
                        .parts = all});
    (sends ? moved_.sent_bytes : moved_.received_bytes) += comm::total_bytes(all);
    (sends ? moved_.sent_messages : moved_.received_messages) += 1;
  }
  for (comm::Request& request : comm_.start(messages)) requests_.push_back(std::move(request));
  for (const std::vector<int>& ops : batch.messages) flying_.push_back(&ops);
}

bool Execution::collect_done() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < flying_.size(); ++i) {
    if (comm_.done(requests_[i])) {
      for (const int op : *flying_[i]) complete_[op] = true;
      continue;
    }
    std::swap(flying_[kept], flying_[i]);
    std::swap(requests_[kept], requests_[i]);
    ++kept;
  }
  const bool any = kept < flying_.size();
  flying_.resize(kept);
  requests_.resize(kept);
  return any;
}

void Execution::wait_for_any() {
  if (!flying_.empty()) {
    comm_.wait_any(requests_, options_.timeout_s);
    return;
  }
  for (std::size_t tile = 0; tile < awaited_.size(); ++tile) {
    if (awaited_[tile]) {
      fail<InvalidArgument>("executor: finish() before {} was fed; feed every input first",
                            to_string(compiled_->program.tiles[tile].tensor));
    }
  }
  fail<PlanError>("executor: rank {} waits for nothing that can happen; verify() the plan",
                  comm_.rank());
}

at::Tensor Execution::part(int op, std::size_t operand, std::size_t segment) const {
  const LocatedView& view = compiled_->views[op][operand];
  const Segment& rows = view.segments[segment];
  return tiles_[view.tile].narrow(1, rows.begin, rows.count).narrow(2, view.first_head, view.heads);
}

/// A view's memory, in an order that both ends of a message share however their tiles are laid out:
/// batch entry, block, token. A row per token, or one per segment if all heads are shown.
std::vector<comm::Strided> Execution::strided(int op) const {
  std::vector<comm::Strided> parts;
  for (std::int64_t b = 0; b < compiled_->problem.batch; ++b) {
    for (std::size_t s = 0; s < compiled_->views[op][0].segments.size(); ++s) {
      const at::Tensor shown = part(op, 0, s).select(0, b);
      const std::int64_t size = shown.element_size();
      const std::int64_t token_bytes = shown.stride(0) * size;
      const std::int64_t row_bytes = shown.size(1) * (shown.dim() == 3 ? shown.size(2) : 1) * size;
      auto* data = static_cast<std::byte*>(shown.data_ptr());
      if (row_bytes == token_bytes) {
        parts.push_back({data, 1, shown.size(0) * row_bytes, shown.size(0) * row_bytes});
      } else {
        parts.push_back({data, shown.size(0), row_bytes, token_bytes});
      }
    }
  }
  return parts;
}

void Execution::compute(int op) {
  const plan::Op& action = compiled_->program.ops[op];
  if (action.kind == plan::OpKind::Attend) return attend(op);
  if (action.kind == plan::OpKind::AttendGrad) return attend_grad(op);
  for (std::size_t s = 0; s < compiled_->views[op][0].segments.size(); ++s) {
    const auto operand = [&](std::size_t v) { return part(op, v, s); };
    switch (action.kind) {
      case plan::OpKind::Merge: {
        kernel::Partial into{operand(0), operand(1)};
        // A part that travelled in the input dtype is summed in the accumulator's.
        kernel::merge(into, {operand(2).to(into.out_BLHE.scalar_type()), operand(3)});
        break;
      }
      case plan::OpKind::Add:
        operand(0).add_(operand(1));
        break;
      case plan::OpKind::Copy:
        operand(0).copy_(operand(1));
        break;
      case plan::OpKind::Clear: {
        const bool lse = compiled_->program.tiles[action.views[0].tile].tensor == plan::Tensor::Lse;
        operand(0).fill_(lse ? -std::numeric_limits<double>::infinity() : 0.0);
        break;
      }
      case plan::OpKind::Delta:
        delta(op, s);
        break;
      case plan::OpKind::Finish:
        finish_rows(op, s);
        break;
      default:
        fail<InternalError>("executor: {} on the compute lane", to_string(action.kind));
    }
  }
}

/// What a view's heads have of a tensor with an element for every query head.
at::Tensor Execution::heads_of(const at::Tensor& x_H, const LocatedView& view) const {
  return x_H.defined() ? x_H.narrow(0, view.first_global_head, view.heads) : at::Tensor();
}

void Execution::delta(int op, std::size_t segment) {
  at::Tensor delta_BLH = part(op, 0, segment);
  kernel::delta(part(op, 1, segment), part(op, 2, segment), delta_BLH);
  if (!options_.sinks_H.defined()) return;
  const LocatedView& rows = compiled_->views[op][0];
  at::Tensor dsinks = heads_of(dsinks_H_, rows);
  kernel::sinks_grad(heads_of(options_.sinks_H, rows), part(op, 3, segment), delta_BLH, dsinks);
}

void Execution::finish_rows(int op, std::size_t segment) {
  at::Tensor out = part(op, 0, segment);
  at::Tensor lse = part(op, 1, segment);
  kernel::finish({part(op, 2, segment), part(op, 3, segment)}, out, lse,
                 heads_of(options_.sinks_H, compiled_->views[op][0]));
}

void Execution::attend(int op) {
  const LocatedView& queries = compiled_->views[op][0];
  for (const auto& [i, j, pairs] : compiled_->calls[op]) {
    kernel::Partial carry{part(op, 3, i), part(op, 4, i), heads_of(max_logit_H_, queries)};
    compiled_->kernel->attend(
        pairs, {part(op, 0, i), part(op, 1, j), part(op, 2, j), options_.score}, carry);
  }
}

void Execution::attend_grad(int op) {
  for (const auto& [i, j, pairs] : compiled_->calls[op]) {
    kernel::InputGrads grads{part(op, 6, i), part(op, 7, j), part(op, 8, j)};
    compiled_->kernel->attend_grad(pairs,
                                   {part(op, 0, i), part(op, 1, j), part(op, 2, j), options_.score},
                                   {part(op, 3, i), part(op, 4, i), part(op, 5, i)}, grads);
  }
}

at::Tensor Execution::output(plan::Tensor tensor) const {
  const int tile = tile_of(compiled_->program.outputs, tensor);
  if (tile < 0) fail<InvalidArgument>("executor: {} is no output of this pass", to_string(tensor));
  return tiles_[tile];
}

at::Tensor Execution::saved(plan::Tensor tensor) const {
  const int tile = tile_of(compiled_->program.saved, tensor);
  if (tile < 0) fail<InvalidArgument>("executor: {} is not saved by this pass", to_string(tensor));
  return tiles_[tile];
}

}  // namespace armillary::attention
