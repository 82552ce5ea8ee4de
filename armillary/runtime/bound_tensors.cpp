// Creates one tensor per op, operand and segment, and sets storage, offset and strides of these
// tensors in place. Users of a tile are listed by tile, so binding touches no other operand.
#include "armillary/runtime/bound_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "armillary/runtime/dtypes.h"

namespace armillary::runtime {

// Sets the fields of the tensor in place, because narrow() would create a new one.
void show(const at::Tensor& tensor, const c10::Storage& storage, at::IntArrayRef sizes,
          at::IntArrayRef strides, std::int64_t offset) {
  c10::TensorImpl* const fields = tensor.unsafeGetTensorImpl();
  fields->set_storage_keep_dtype(storage);
  if (fields->sizes() == sizes && fields->strides() == strides) {
    fields->set_storage_offset(offset);
  } else {
    fields->set_sizes_and_strides(sizes, strides, offset);
  }
}

BoundTensors::BoundTensors(const MachineProgram& compiled, at::Device place)
    : nothing_(at::empty({0}, at::TensorOptions(at::kByte).device(place))),
      of_tile_(compiled.program.tiles.size()) {
  for (const CompiledOp& op : compiled.ops) {
    std::vector<std::vector<BoundPart>>& operands = parts_.emplace_back();
    for (const plan::LocatedView& view : op.views) {
      const at::ScalarType dtype = scalar_type(compiled.dtypes[view.tile]);
      std::vector<BoundPart>& parts = operands.emplace_back();
      parts.reserve(view.segments.size());  // must not move: of_tile_ points to its elements
      for (const plan::Segment& segment : view.segments) {
        parts.push_back({at::empty({0}, nothing_.options().dtype(dtype)), &view, &segment});
        of_tile_[view.tile].push_back(&parts.back());
      }
    }
  }
}

void BoundTensors::point(int tile, const at::Tensor& memory) {
  c10::SmallVector<std::int64_t, 4> sizes(memory.sizes());
  for (BoundPart* part : of_tile_[tile]) {
    sizes[1] = part->segment->count;
    sizes[2] = part->view->heads;
    const std::int64_t first =
        part->segment->begin * memory.stride(1) + part->view->first_head * memory.stride(2);
    show(part->tensor, memory.storage(), sizes, memory.strides(), memory.storage_offset() + first);
  }
}

void BoundTensors::drop(int tile) {
  move(tile, nothing_.storage());
}

void BoundTensors::move(int tile, const c10::Storage& memory) {
  for (BoundPart* part : of_tile_[tile]) {
    part->tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(memory);
  }
}

}  // namespace armillary::runtime
