// Starts the ops of one rank in the order of the plan and collects those that are done.
//
// The file reads from the outside in: (1) life of a run, (2) memory, (3) calls of the caller,
// (4) results. The loop is finish(): advance_all() as far as possible, then wait_for_any().
// executor_wait.cpp has the machine: which batch may start, its start, and its end.
// executor_compute.cpp has the ops of the compute lane.
#include "armillary/runtime/executor.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/runtime/dtypes.h"
#include "armillary/runtime/or_abort.h"

namespace armillary::runtime {
namespace {

std::string text_of(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Whether the heads and dims of each token are contiguous, and tokens do not overlap. Then a token
/// is one row for messages and kernels, and the tensor needs no copy.
bool has_token_rows(const at::Tensor& x) {
  std::int64_t stride = 1;
  for (std::int64_t i = x.dim() - 1; i >= 2; --i) {
    if (x.size(i) > 1 && x.stride(i) != stride) return false;
    stride *= x.size(i);
  }
  return x.size(1) <= 1 || x.stride(1) >= stride;
}

/// Checks that the program belongs to this rank, that the communicator has enough lanes, and that
/// the sinks fit the problem.
void check_run(const CompiledProgram& compiled, const comm::Communicator& comm,
               const ExecutionOptions& options) {
  if (comm.rank() != compiled.program.rank || comm.world() != compiled.problem.world) {
    fail<InvalidArgument>(
        "executor: the program is rank {} of {}, the communicator rank {} of {}; they must agree",
        compiled.program.rank, compiled.problem.world, comm.rank(), comm.world());
  }
  if (std::ssize(compiled.lanes) >= comm.lanes()) {
    fail<InvalidArgument>(
        "executor: a plan of {} lanes, a communicator of {}; at least {} are required, for ranks "
        "agree on the last",
        compiled.lanes.size(), comm.lanes(), compiled.lanes.size() + 1);
  }
  const std::int64_t heads = compiled.problem.heads;
  const at::ScalarType acc = scalar_type(accumulator(compiled.problem.dtype));
  if (options.sinks_H.defined() &&
      (options.sinks_H.sizes() != at::IntArrayRef{heads} || options.sinks_H.scalar_type() != acc)) {
    fail<InvalidArgument>("executor: sinks_H is {} {}; {} [{}] is required",
                          at::toString(options.sinks_H.scalar_type()),
                          text_of(options.sinks_H.sizes()), at::toString(acc), heads);
  }
}

ExecutionOptions with_device(ExecutionOptions options) {
  if (options.device == nullptr) options.device = &cpu_device();
  return options;
}

/// The first op that attends; as many as there are ops if none does.
int first_attend(const plan::RankProgram& program) {
  const auto attends = [](const plan::Op& op) { return op.attends() || op.attends_grad(); };
  return static_cast<int>(std::ranges::find_if(program.ops, attends) - program.ops.begin());
}

}  // namespace

// 1. Life of a run: construct, restart, release; failure.

Execution::Execution(std::shared_ptr<const CompiledProgram> compiled, comm::Communicator& comm,
                     ExecutionOptions options, const at::Tensor& slots)
    : compiled_(std::move(compiled)),
      comm_(&comm),
      options_(with_device(std::move(options))),
      tiles_(compiled_->program.tiles.size()),
      bound_tensors_(*compiled_, device().place()),
      inputs_(compiled_->program.tiles.size(), Input::There),
      complete_(compiled_->program.ops.size(), false),
      next_(compiled_->lanes.size(), 0),
      zero_copy_(*compiled_, device().place()),
      first_attend_(first_attend(compiled_->program)) {
  place_slots(slots);
  restart(comm, std::move(options_));
}

Execution::~Execution() {
  if (compiled_ != nullptr) device().drain(*this);  // unless it was moved from
}

void Execution::check_not_failed() const {
  if (!failed_) return;
  comm_->throw_if_failed();
  fail<InvalidArgument>("executor: this run of rank {} has failed; another execution is required",
                        comm_->rank());
}

/// Runs the body of one call of the caller. If it throws, the run has failed: the group is aborted,
/// then the device is drained, so that nothing writes to memory that the caller may free while the
/// exception unwinds. A failed peer or a deadline is told with the message that this rank waits
/// for.
template <class Step>
void Execution::attempt(const Step& step) {
  check_not_failed();
  try {
    or_abort(*comm_, [&] {
      try {
        step();
      } catch (const CommError& error) {
        if (in_flight_.empty()) throw;
        fail<CommError>("attention: {}: {}", describe(*compiled_, first_in_flight()), error.what());
      }
    });
  } catch (...) {
    failed_ = true;
    device().drain(*this);
    running_.clear();
    arriving_.clear();
    throw;
  }
}

void Execution::restart(comm::Communicator& comm, ExecutionOptions options,
                        const at::Tensor& slots) {
  // Checks. Peers that wait for this rank are told if it cannot begin.
  check_not_failed();
  options = with_device(std::move(options));
  or_abort(comm, [&] {
    check_run(*compiled_, comm, options);
    if (options.device->place() != device().place()) {
      fail<InvalidArgument>("executor: a run on {} starts again on {}; the same is required",
                            device().place().str(), options.device->place().str());
    }
  });
  // Memory: slots may be other memory than before, with the same offsets.
  release_tiles();
  take_slots(slots);
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    if (in_slot(t)) bound_tensors_.move(static_cast<int>(t), slots_.storage());
  }
  // Accumulators of what the options ask for: the gradient of the sinks, the largest logits.
  comm_ = &comm;
  options_ = std::move(options);
  moved_ = {};
  recorded_.begin(options_.recorder, *compiled_);
  const std::int64_t heads = compiled_->problem.heads;
  const at::TensorOptions there = at::TensorOptions(at::kDouble).device(device().place());
  dsinks_H_ = options_.sinks_H.defined() ? at::zeros({heads}, there) : at::Tensor();
  max_logit_H_ = at::Tensor();
  if (options_.max_logit) {
    const at::ScalarType acc = scalar_type(accumulator(compiled_->problem.dtype));
    max_logit_H_ = at::full({heads}, -std::numeric_limits<double>::infinity(), there.dtype(acc));
  }
  // State of the machine: nothing has started, and inputs are awaited. Only backward, which has
  // dOut as an input, also awaits what forward saved; in the other passes saved tiles are results.
  std::fill(complete_.begin(), complete_.end(), false);
  std::fill(next_.begin(), next_.end(), 0);
  const plan::RankProgram& program = compiled_->program;
  std::fill(inputs_.begin(), inputs_.end(), Input::There);
  for (const int tile : program.inputs) inputs_[tile] = Input::Awaited;
  if (tile_of(program.inputs, plan::Tensor::DOut) < 0) return;
  for (const int tile : program.saved) inputs_[tile] = Input::Awaited;
}

/// Lets ops wait for the work that the caller has queued: those that read the tile, or all.
void Execution::take_caller_event(int tile) {
  EventHandle event = device().caller_event();
  const bool there = event == nullptr;
  if (tile == kBegin) {
    may_begin_ = there;
  } else {
    inputs_[tile] = there ? Input::There : Input::Arriving;
  }
  if (!there) arriving_.push_back({tile, std::move(event)});
}

void Execution::release_tiles() {
  ARMILLARY_CHECK(in_flight_.empty() && running_.empty());
  arriving_.clear();
  placed_ = false;
  zero_copy_.release();
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    if (!tiles_[t].defined()) continue;
    tiles_[t] = at::Tensor();
    bound_tensors_.drop(static_cast<int>(t));
  }
}

at::Tensor Execution::release() {
  release_tiles();
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    if (in_slot(t)) bound_tensors_.drop(static_cast<int>(t));
  }
  options_.sinks_H = at::Tensor();
  options_.score.alibi_slopes_H = at::Tensor();
  dsinks_H_ = at::Tensor();
  max_logit_H_ = at::Tensor();
  return std::exchange(slots_, at::Tensor());
}

// 2. Memory: slots, outputs and saved tensors.

/// Lays out the slots one after the other in one allocation, and binds their tiles. A slot has the
/// size of its largest tile. Tiles with the memory of a caller's tile (alias_of) need no slot.
void Execution::place_slots(const at::Tensor& given) {
  const plan::RankProgram& program = compiled_->program;
  constexpr std::int64_t kAlignment = 64;
  const auto bytes_of_tile = [&](std::size_t t) {
    const plan::Dtype dtype = dtype_of(compiled_->problem, program.tiles[t]);
    return c10::multiply_integers(compiled_->shapes[t]) * plan::bytes_of(dtype);
  };
  std::vector<std::int64_t> bytes(program.slots.size(), 0);
  for (std::size_t t = 0; t < program.tiles.size(); ++t) {
    if (!in_slot(t)) continue;
    std::int64_t& slot = bytes[program.tiles[t].slot];
    slot = std::max(slot, (bytes_of_tile(t) + kAlignment - 1) / kAlignment * kAlignment);
  }
  // Offsets, and the memory itself.
  std::vector<std::int64_t> begins(bytes.size());
  std::exclusive_scan(bytes.begin(), bytes.end(), begins.begin(), std::int64_t{0});
  slot_bytes_ = std::reduce(bytes.begin(), bytes.end());
  take_slots(given);
  // Each tile is the beginning of its slot, in its own dtype and shape.
  for (std::size_t t = 0; t < program.tiles.size(); ++t) {
    if (!in_slot(t)) continue;
    const plan::Tile& tile = program.tiles[t];
    bound_tensors_.point(static_cast<int>(t),
                         slots_.narrow(0, begins[tile.slot], bytes_of_tile(t))
                             .view(scalar_type(dtype_of(compiled_->problem, tile)))
                             .view(compiled_->shapes[t]));
  }
}

/// Uses the given slots if they are large enough, else the present ones, else new ones.
void Execution::take_slots(const at::Tensor& given) {
  if (given.defined() && given.numel() >= slot_bytes_) {
    slots_ = given;
  } else if (!slots_.defined()) {
    slots_ = device().allocate(slot_bytes_);
  }
}

void Execution::set_tile(int tile, const at::Tensor& memory) {
  tiles_[tile] = memory;
  bound_tensors_.point(tile, memory);
}

/// Allocates the results that the caller has not placed, and binds the tiles that use the memory of
/// a caller's tile. Then all memory of the run is there, so the work that may still use it is
/// known.
void Execution::place_results() {
  if (placed_) return;
  placed_ = true;
  const auto count = static_cast<int>(tiles_.size());
  for (int t = 0; t < count; ++t) {
    if (compiled_->alias_of[t] != t || inputs_[t] != Input::There || tiles_[t].defined()) continue;
    const plan::Dtype dtype = dtype_of(compiled_->problem, compiled_->program.tiles[t]);
    set_tile(t, at::empty(compiled_->shapes[t],
                          at::TensorOptions(scalar_type(dtype)).device(device().place())));
  }
  for (int t = 0; t < count; ++t) {
    const int alias = compiled_->alias_of[t];
    if (alias != t && alias != CompiledProgram::kInSlots) set_tile(t, tiles_[alias]);
  }
  take_caller_event(kBegin);
}

/// The tile of `tensor` among inputs, outputs or saved tiles; -1 if there is none.
int Execution::tile_of(const std::vector<int>& role, plan::Tensor tensor) const {
  for (const int tile : role) {
    if (compiled_->program.tiles[tile].tensor == tensor) return tile;
  }
  return -1;
}

void Execution::check_fits(plan::Tensor tensor, int tile, const at::Tensor& given) const {
  const at::ScalarType dtype =
      scalar_type(dtype_of(compiled_->problem, compiled_->program.tiles[tile]));
  if (given.sizes() != at::IntArrayRef(compiled_->shapes[tile]) || given.scalar_type() != dtype) {
    fail<InvalidArgument>("executor: {} is {} of {}; rank {} needs {} of {}", to_string(tensor),
                          at::toString(given.scalar_type()), text_of(given.sizes()), comm_->rank(),
                          at::toString(dtype), text_of(compiled_->shapes[tile]));
  }
}

// 3. Calls of the caller: place, feed, advance, finish. All their work is done inside attempt().

void Execution::place_output(plan::Tensor tensor, const at::Tensor& memory) {
  place(compiled_->program.outputs, tensor, memory);
}

void Execution::place_saved(plan::Tensor tensor, const at::Tensor& memory) {
  place(compiled_->program.saved, tensor, memory);
}

void Execution::place(const std::vector<int>& role, plan::Tensor tensor, const at::Tensor& memory) {
  attempt([&] {
    const int tile = tile_of(role, tensor);
    if (tile < 0 || inputs_[tile] != Input::There || placed_) {
      fail<InvalidArgument>(
          "executor: memory for {} was given; a result of this pass is required, before feed()",
          to_string(tensor));
    }
    check_fits(tensor, tile, memory);
    if (!memory.is_contiguous()) {
      fail<InvalidArgument>("executor: memory for {} has strides {}; contiguous is required",
                            to_string(tensor), text_of(memory.strides()));
    }
    set_tile(tile, memory);
  });
}

void Execution::feed(plan::Tensor tensor, const at::Tensor& value) {
  attempt([&] {
    int tile = tile_of(compiled_->program.inputs, tensor);
    if (tile < 0) tile = tile_of(compiled_->program.saved, tensor);
    if (tile < 0 || inputs_[tile] != Input::Awaited) {
      fail<InvalidArgument>("executor: {} was fed; this pass does not wait for it",
                            to_string(tensor));
    }
    check_fits(tensor, tile, value);
    place_results();
    set_tile(tile, has_token_rows(value) ? value : value.contiguous());
    take_caller_event(tile);
  });
  advance();
}

void Execution::advance() {
  attempt([&] {
    place_results();
    advance_all();
  });
}

/// Starts and collects as long as one of the two makes progress, without waiting. After each step,
/// borrowed tiles that have been read are given back: the run of their sender cannot end until
/// then.
void Execution::advance_all() {
  recorded_.time_passed();  // the caller worked, or this rank waited
  while (start_ready() || collect_done())
    zero_copy_.give_back_read(complete_, *comm_, bound_tensors_);
}

void Execution::finish() {
  advance();
  attempt([&] {
    while (!finished()) {
      wait_for_any();
      advance_all();
    }
  });
}

// 4. Results.

at::Tensor Execution::output(plan::Tensor tensor) const {
  check_not_failed();
  const int tile = tile_of(compiled_->program.outputs, tensor);
  if (tile < 0) fail<InvalidArgument>("executor: {} is no output of this pass", to_string(tensor));
  return tiles_[tile];
}

at::Tensor Execution::saved(plan::Tensor tensor) const {
  check_not_failed();
  const int tile = tile_of(compiled_->program.saved, tensor);
  if (tile < 0) fail<InvalidArgument>("executor: {} is not saved by this pass", to_string(tensor));
  return tiles_[tile];
}

}  // namespace armillary::runtime
