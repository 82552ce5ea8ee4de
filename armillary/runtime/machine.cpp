// Starts the ops of one rank in the order of the plan and collects those that are done.
//
// The file reads from the outside in: (1) life of a run, (2) memory, (3) calls of the caller,
// (4) results. The loop is finish(): advance_all() as far as possible, then wait_for_any().
// machine_wait.cpp has the rest: which batch may start, its start, and its end.
#include "armillary/runtime/machine.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "armillary/core/count_text.h"
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

/// Checks that the program belongs to this rank, and that the communicator has enough lanes.
void check_run(const MachineProgram& compiled, const comm::Communicator& comm) {
  if (comm.rank() != compiled.program.rank || comm.world() != compiled.world) {
    fail<InvalidArgument>(
        "executor: the program is rank {} of {}, the communicator rank {} of {}; they must agree",
        compiled.program.rank, compiled.world, comm.rank(), comm.world());
  }
  if (std::ssize(compiled.lanes) >= comm.lanes()) {
    fail<InvalidArgument>(
        "executor: a plan of {}, a communicator of {}; at least {} are required, for ranks "
        "agree on the last",
        count_of(compiled.lanes.size(), "lane"), comm.lanes(), compiled.lanes.size() + 1);
  }
}

RunOptions with_device(RunOptions options) {
  if (options.device == nullptr) options.device = &cpu_device();
  return options;
}

}  // namespace

// 1. Life of a run: construct, restart, release; failure.

Machine::Machine(std::shared_ptr<const MachineProgram> compiled, comm::Communicator& comm,
                 const RunOptions& options, const at::Tensor& slots)
    : compiled_(std::move(compiled)),
      comm_(&comm),
      options_(with_device(options)),
      tiles_(compiled_->program.tiles.size()),
      bound_tensors_(*compiled_, device().place()),
      inputs_(compiled_->program.tiles.size(), InputState::There),
      complete_(compiled_->program.ops.size(), false),
      next_(compiled_->lanes.size(), 0),
      zero_copy_(*compiled_, device().place()) {
  place_slots(slots);
  restart(comm, options);
}

void Machine::drain() noexcept {
  if (compiled_ != nullptr) device().drain(*this);  // unless it was moved from
}

void Machine::check_not_failed() const {
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
void Machine::attempt(const Step& step) {
  check_not_failed();
  try {
    or_abort(*comm_, [&] {
      try {
        step();
      } catch (const CommError& error) {
        if (in_flight_.empty()) throw;
        fail<CommError>("{}: {}: {}", compiled_->words().name,
                        describe(*compiled_, first_in_flight()), error.what());
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

void Machine::restart(comm::Communicator& comm, const RunOptions& options,
                      const at::Tensor& slots) {
  // Checks. Peers that wait for this rank are told if it cannot begin.
  check_not_failed();
  const RunOptions checked = with_device(options);
  or_abort(comm, [&] {
    check_run(*compiled_, comm);
    if (checked.device->place() != device().place()) {
      fail<InvalidArgument>("executor: a run on {} starts again on {}; the same is required",
                            device().place().str(), checked.device->place().str());
    }
  });
  // Memory: slots may be other memory than before, with the same offsets.
  release_tiles();
  take_slots(slots);
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    if (in_slot(t)) bound_tensors_.move(static_cast<int>(t), slots_.storage());
  }
  comm_ = &comm;
  options_ = checked;
  moved_ = {};
  recorded_.begin(options_.recorder, *compiled_, comm);
  // State of the machine: nothing has started, and tiles of the caller are awaited.
  std::fill(complete_.begin(), complete_.end(), false);
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(inputs_.begin(), inputs_.end(), InputState::There);
  for (const int tile : compiled_->caller_tiles) inputs_[tile] = InputState::Awaited;
}

/// Lets ops wait for the work that the caller has queued: those that read the tile, or all.
void Machine::take_caller_event(int tile) {
  EventHandle event = device().caller_event();
  const bool there = event == nullptr;
  if (tile == kBegin) {
    may_begin_ = there;
  } else {
    inputs_[tile] = there ? InputState::There : InputState::Arriving;
  }
  if (!there) arriving_.push_back({tile, std::move(event)});
}

void Machine::release_tiles() {
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

at::Tensor Machine::release() {
  release_tiles();
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    if (in_slot(t)) bound_tensors_.drop(static_cast<int>(t));
  }
  return std::exchange(slots_, at::Tensor());
}

// 2. Memory: slots, outputs and saved tensors.

/// Lays out the slots one after the other in one allocation, and binds their tiles. A slot has the
/// size of its largest tile. Tiles with the memory of a caller's tile (alias_of) need no slot.
void Machine::place_slots(const at::Tensor& memory) {
  const plan::RankProgram& program = compiled_->program;
  constexpr std::int64_t kAlignment = 64;
  const auto bytes_of_tile = [&](std::size_t t) {
    return c10::multiply_integers(compiled_->shapes[t]) * plan::bytes_of(compiled_->dtypes[t]);
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
  take_slots(memory);
  // Each tile is the beginning of its slot, in its own dtype and shape.
  for (std::size_t t = 0; t < program.tiles.size(); ++t) {
    if (!in_slot(t)) continue;
    bound_tensors_.point(static_cast<int>(t),
                         slots_.narrow(0, begins[program.tiles[t].slot], bytes_of_tile(t))
                             .view(scalar_type(compiled_->dtypes[t]))
                             .view(compiled_->shapes[t]));
  }
}

/// Uses the given slots if they are large enough, else the present ones, else new ones.
void Machine::take_slots(const at::Tensor& memory) {
  if (memory.defined() && memory.numel() >= slot_bytes_) {
    slots_ = memory;
  } else if (!slots_.defined()) {
    slots_ = device().allocate(slot_bytes_);
  }
}

void Machine::set_tile(int tile, const at::Tensor& memory) {
  tiles_[tile] = memory;
  bound_tensors_.point(tile, memory);
}

/// Allocates the results that the caller has not placed, and binds the tiles that use the memory of
/// a caller's tile. Then all memory of the run is there, so the work that may still use it is
/// known.
void Machine::place_results() {
  if (placed_) return;
  placed_ = true;
  const auto count = static_cast<int>(tiles_.size());
  for (int t = 0; t < count; ++t) {
    if (compiled_->alias_of[t] != t || inputs_[t] != InputState::There || tiles_[t].defined())
      continue;
    const plan::Dtype dtype = compiled_->dtypes[t];
    set_tile(t, at::empty(compiled_->shapes[t],
                          at::TensorOptions(scalar_type(dtype)).device(device().place())));
  }
  for (int t = 0; t < count; ++t) {
    const int alias = compiled_->alias_of[t];
    if (alias != t && alias != MachineProgram::kInSlots) set_tile(t, tiles_[alias]);
  }
  take_caller_event(kBegin);
}

/// The tile of `tensor` among inputs, outputs or saved tiles; -1 if there is none.
int Machine::tile_of(const std::vector<int>& role, plan::TensorId tensor) const {
  for (const int tile : role) {
    if (compiled_->program.tiles[tile].tensor == tensor) return tile;
  }
  return -1;
}

void Machine::check_fits(plan::TensorId tensor, int tile, const at::Tensor& value) const {
  const at::ScalarType dtype = scalar_type(compiled_->dtypes[tile]);
  if (value.sizes() != at::IntArrayRef(compiled_->shapes[tile]) || value.scalar_type() != dtype) {
    fail<InvalidArgument>("executor: {} is {} of {}; rank {} needs {} of {}",
                          compiled_->words()[tensor].name, at::toString(value.scalar_type()),
                          text_of(value.sizes()), comm_->rank(), at::toString(dtype),
                          text_of(compiled_->shapes[tile]));
  }
}

// 3. Calls of the caller: place, feed, advance, finish. All their work is done inside attempt().

void Machine::place_output(plan::TensorId tensor, const at::Tensor& memory) {
  place(compiled_->program.outputs, tensor, memory);
}

void Machine::place_saved(plan::TensorId tensor, const at::Tensor& memory) {
  place(compiled_->program.saved, tensor, memory);
}

void Machine::place(const std::vector<int>& role, plan::TensorId tensor, const at::Tensor& memory) {
  attempt([&] {
    const int tile = tile_of(role, tensor);
    if (tile < 0 || inputs_[tile] != InputState::There || placed_) {
      fail<InvalidArgument>(
          "executor: memory for {} was given; a result of this pass is required, before feed()",
          compiled_->words()[tensor].name);
    }
    check_fits(tensor, tile, memory);
    if (!memory.is_contiguous()) {
      fail<InvalidArgument>("executor: memory for {} has strides {}; contiguous is required",
                            compiled_->words()[tensor].name, text_of(memory.strides()));
    }
    set_tile(tile, memory);
  });
}

void Machine::feed(plan::TensorId tensor, const at::Tensor& value) {
  attempt([&] {
    int tile = tile_of(compiled_->program.inputs, tensor);
    if (tile < 0) tile = tile_of(compiled_->program.saved, tensor);
    if (tile < 0 || inputs_[tile] != InputState::Awaited) {
      fail<InvalidArgument>("executor: {} was fed; this pass does not wait for it",
                            compiled_->words()[tensor].name);
    }
    check_fits(tensor, tile, value);
    place_results();
    set_tile(tile, has_token_rows(value) ? value : value.contiguous());
    take_caller_event(tile);
  });
  advance();
}

void Machine::advance() {
  attempt([&] {
    place_results();
    advance_all();
  });
}

/// Starts and collects as long as one of the two makes progress, without waiting. After each step,
/// borrowed tiles that have been read are given back: the run of their sender cannot end until
/// then.
void Machine::advance_all() {
  recorded_.time_passed();  // the caller worked, or this rank waited
  while (start_ready() || collect_done())
    zero_copy_.give_back_read(complete_, *comm_, bound_tensors_);
}

void Machine::finish() {
  advance();
  attempt([&] {
    while (!finished()) {
      wait_for_any();
      advance_all();
    }
  });
}

// 4. Results.

at::Tensor Machine::output(plan::TensorId tensor) const {
  check_not_failed();
  const int tile = tile_of(compiled_->program.outputs, tensor);
  if (tile < 0)
    fail<InvalidArgument>("executor: {} is no output of this pass",
                          compiled_->words()[tensor].name);
  return tiles_[tile];
}

at::Tensor Machine::saved(plan::TensorId tensor) const {
  check_not_failed();
  const int tile = tile_of(compiled_->program.saved, tensor);
  if (tile < 0)
    fail<InvalidArgument>("executor: {} is not saved by this pass",
                          compiled_->words()[tensor].name);
  return tiles_[tile];
}

}  // namespace armillary::runtime
