// Borrows tiles: binds their operands to the memory of the sender, and back to their own.
//
// Each tile that a receive may borrow has one tensor (`shown`) and one storage, made ahead. To
// borrow, the storage gets the sender's pointer and the tensor the sender's strides; then the
// operands of the tile are bound to it. Giving back reverses this.
#include "armillary/runtime/zero_copy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "armillary/runtime/dtypes.h"

namespace armillary::runtime {
namespace {

/// Ops that use each tile, ascending.
std::vector<std::vector<int>> uses_of(const plan::RankProgram& program) {
  std::vector<std::vector<int>> uses(program.tiles.size());
  for (int op = 0; op < static_cast<int>(program.ops.size()); ++op) {
    for (const plan::View& view : program.ops[op].views) {
      std::vector<int>& of = uses[view.tile];
      if (of.empty() || of.back() != op) of.push_back(op);
    }
  }
  return uses;
}

}  // namespace

ZeroCopy::ZeroCopy(const MachineProgram& compiled, at::Device place)
    : compiled_(compiled), tiles_(compiled.program.tiles.size()) {
  std::vector<std::vector<int>> uses = uses_of(compiled.program);
  std::size_t borrowers = 0;
  for (int i = 0; i < static_cast<int>(compiled.program.ops.size()); ++i) {
    const plan::Op& op = compiled.program.ops[i];
    if (!op.zero_copy) continue;
    const int number = op.views[0].tile;
    BorrowedTile& tile = tiles_[number];
    if (op.kind == plan::kSend) {
      tile.owner = std::make_shared<at::Tensor>();
      continue;
    }
    // A receive: all other ops of its tile only read it.
    tile.readers = std::move(uses[number]);
    std::erase(tile.readers, i);
    ++borrowers;
    const plan::Dtype dtype = compiled.dtypes[number];
    tile.shown = at::empty({0}, at::TensorOptions(scalar_type(dtype)).device(place));
    tile.memory = tile.shown.storage();
  }
  borrowed_.reserve(borrowers);
}

void ZeroCopy::allow(int op, const at::Tensor& memory, comm::Message& message) {
  BorrowedTile& tile = tiles_[compiled_.ops[op].views[0].tile];
  message.zero_copy = compiled_.ops[op].op->zero_copy && !tile.borrowed;
  if (!message.zero_copy || message.direction == comm::Direction::Receive) return;
  *tile.owner = memory;
  message.owner = tile.owner;
}

void ZeroCopy::bind(int tile, const c10::Storage& memory, at::IntArrayRef strides,
                    std::int64_t begin, BoundTensors& bound_tensors) {
  show(tiles_[tile].shown, memory, compiled_.shapes[tile], strides, begin);
  bound_tensors.point(tile, tiles_[tile].shown);
}

std::int64_t ZeroCopy::borrow(int op, const comm::Request& request, BoundTensors& bound_tensors) {
  const std::span<const comm::Strided> parts = request->borrowed();
  if (parts.empty()) return 0;
  const int number = compiled_.ops[op].views[0].tile;
  BorrowedTile& tile = tiles_[number];
  const std::vector<std::int64_t>& shape = compiled_.shapes[number];
  const std::int64_t element = tile.shown.element_size();
  // Strides of the sender. A part is one batch entry; its tokens are a single row if they are
  // contiguous, else one row each. Heads and dims of a token are always contiguous.
  const std::int64_t width = c10::multiply_integers(shape.begin() + 2, shape.end());
  const std::int64_t token = parts[0].rows == 1 ? width : parts[0].stride_bytes / element;
  const std::int64_t batch =
      parts.size() == 1 ? shape[1] * token : (parts[1].data - parts[0].data) / element;
  c10::SmallVector<std::int64_t, 4> strides{batch, token};
  if (shape.size() == 4) strides.push_back(shape[3]);
  strides.push_back(1);
  // Storage over the sender's bytes, from the first part to the end of the last.
  tile.memory.set_nbytes(static_cast<std::size_t>(
      ((shape[0] - 1) * batch + (shape[1] - 1) * token + width) * element));
  tile.memory.set_data_ptr_noswap(at::DataPtr(parts[0].data, tile.memory.device()));
  tile.borrowed = true;
  // The tile's own memory is remembered, then replaced.
  const at::Tensor& own = bound_tensors.at(op, 0, 0);
  borrowed_.push_back({op, request, own.storage(), own.storage_offset()});
  bind(number, tile.memory, strides, 0, bound_tensors);
  return request->bytes();
}

void ZeroCopy::give_back_read(const std::vector<bool>& complete, comm::Communicator& comm,
                              BoundTensors& bound_tensors) {
  const auto is_read = [&](const Borrowed& borrowed) {
    return std::ranges::all_of(tiles_[compiled_.ops[borrowed.op].views[0].tile].readers,
                               [&](int op) { return complete[op]; });
  };
  for (std::size_t i = 0; i < borrowed_.size();) {
    if (!is_read(borrowed_[i])) {
      ++i;
      continue;
    }
    // Operands return to the tile's own memory, which is contiguous, before the sender may write.
    const Borrowed borrowed = std::move(borrowed_[i]);
    borrowed_.erase(borrowed_.begin() + static_cast<std::ptrdiff_t>(i));
    const int number = compiled_.ops[borrowed.op].views[0].tile;
    BorrowedTile& tile = tiles_[number];
    const std::vector<std::int64_t>& shape = compiled_.shapes[number];
    c10::SmallVector<std::int64_t, 4> strides(shape.size(), 1);
    for (std::size_t d = shape.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * shape[d + 1];
    bind(number, borrowed.own, strides, borrowed.own_begin, bound_tensors);
    tile.shown.unsafeGetTensorImpl()->set_storage_keep_dtype(tile.memory);
    tile.memory.set_data_ptr_noswap(at::DataPtr(nullptr, tile.memory.device()));
    tile.borrowed = false;
    comm.give_back(borrowed.request);
  }
}

void ZeroCopy::release() {
  for (BorrowedTile& tile : tiles_) {
    if (tile.owner) *tile.owner = at::Tensor();
  }
}

}  // namespace armillary::runtime
