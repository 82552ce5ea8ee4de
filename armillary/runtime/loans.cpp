#include "armillary/runtime/loans.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "armillary/runtime/dtypes.h"

namespace armillary::runtime {
namespace {

/// By tile: the ops that use it.
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

Loans::Loans(const CompiledProgram& compiled, at::Device place)
    : compiled_(compiled), tiles_(compiled.program.tiles.size()) {
  std::vector<std::vector<int>> uses = uses_of(compiled.program);
  std::size_t borrowers = 0;
  for (int i = 0; i < static_cast<int>(compiled.program.ops.size()); ++i) {
    const plan::Op& op = compiled.program.ops[i];
    if (!op.loan) continue;
    const int number = op.views[0].tile;
    Tile& tile = tiles_[number];
    if (op.kind == plan::OpKind::Send) {
      tile.owner = std::make_shared<at::Tensor>();
      continue;
    }
    tile.readers = std::move(uses[number]);
    std::erase(tile.readers, i);
    ++borrowers;
    const plan::Dtype dtype = dtype_of(compiled.problem, compiled.program.tiles[number]);
    tile.shown = at::empty({0}, at::TensorOptions(scalar_type(dtype)).device(place));
    tile.memory = tile.shown.storage();
  }
  borrowed_.reserve(borrowers);
}

void Loans::allow(int op, const at::Tensor& memory, comm::Message& message) {
  Tile& tile = tiles_[compiled_.ops[op].views[0].tile];
  message.loan = compiled_.ops[op].op->loan && !tile.borrowed;
  if (!message.loan || message.direction == comm::Direction::Receive) return;
  *tile.owner = memory;
  message.owner = tile.owner;
}

void Loans::show(int tile, const c10::Storage& memory, at::IntArrayRef strides, std::int64_t begin,
                 Operands& operands) {
  const at::Tensor& shown = tiles_[tile].shown;
  shown.unsafeGetTensorImpl()->set_storage_keep_dtype(memory);
  shown.unsafeGetTensorImpl()->set_sizes_and_strides(compiled_.shapes[tile], strides, begin);
  operands.point(tile, shown);
}

std::int64_t Loans::borrow(int op, const comm::Request& request, Operands& operands) {
  const std::span<const comm::Strided> parts = request->borrowed();
  if (parts.empty()) return 0;
  const int number = compiled_.ops[op].views[0].tile;
  Tile& tile = tiles_[number];
  const std::vector<std::int64_t>& shape = compiled_.shapes[number];
  const std::int64_t element = tile.shown.element_size();
  // A part is a batch entry; its tokens are one row if they touch.
  const std::int64_t width = c10::multiply_integers(shape.begin() + 2, shape.end());
  const std::int64_t token = parts[0].rows == 1 ? width : parts[0].stride_bytes / element;
  const std::int64_t batch =
      parts.size() == 1 ? shape[1] * token : (parts[1].data - parts[0].data) / element;
  c10::SmallVector<std::int64_t, 4> strides{batch, token};
  if (shape.size() == 4) strides.push_back(shape[3]);
  strides.push_back(1);
  tile.memory.set_nbytes(static_cast<std::size_t>(
      ((shape[0] - 1) * batch + (shape[1] - 1) * token + width) * element));
  tile.memory.set_data_ptr_noswap(at::DataPtr(parts[0].data, tile.memory.device()));
  tile.borrowed = true;
  const at::Tensor& own = operands.at(op, 0, 0);
  borrowed_.push_back({op, request, own.storage(), own.storage_offset()});
  show(number, tile.memory, strides, 0, operands);
  return request->bytes();
}

void Loans::give_back_read(const std::vector<bool>& complete, comm::Communicator& comm,
                           Operands& operands) {
  const auto is_read = [&](const Borrowed& loan) {
    return std::ranges::all_of(tiles_[compiled_.ops[loan.op].views[0].tile].readers,
                               [&](int op) { return complete[op]; });
  };
  for (std::size_t i = 0; i < borrowed_.size();) {
    if (!is_read(borrowed_[i])) {
      ++i;
      continue;
    }
    const Borrowed loan = std::move(borrowed_[i]);
    borrowed_.erase(borrowed_.begin() + static_cast<std::ptrdiff_t>(i));
    const int number = compiled_.ops[loan.op].views[0].tile;
    Tile& tile = tiles_[number];
    const std::vector<std::int64_t>& shape = compiled_.shapes[number];
    c10::SmallVector<std::int64_t, 4> strides(shape.size(), 1);
    for (std::size_t d = shape.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * shape[d + 1];
    show(number, loan.own, strides, loan.own_begin, operands);
    tile.shown.unsafeGetTensorImpl()->set_storage_keep_dtype(tile.memory);
    tile.memory.set_data_ptr_noswap(at::DataPtr(nullptr, tile.memory.device()));
    tile.borrowed = false;
    comm.give_back(loan.request);
  }
}

void Loans::release() {
  for (Tile& tile : tiles_) {
    if (tile.owner) *tile.owner = at::Tensor();
  }
}

}  // namespace armillary::runtime
