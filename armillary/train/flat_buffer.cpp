// flat_buffer.cpp: views share the storage of the whole tensor, which is given another piece of
// memory. That is no write in autograd's sense, so versions of views stay.
#include "armillary/train/flat_buffer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

#include <cstring>
#include <functional>
#include <numeric>

#include "armillary/core/error.h"

namespace armillary::train {

FlatBuffer::FlatBuffer(std::int64_t count, at::ScalarType dtype)
    : all_(at::empty({count}, dtype)) {}

void FlatBuffer::take() {
  if (has_memory()) return;
  c10::StorageImpl& storage = *all_.storage().unsafeGetStorageImpl();
  const std::size_t bytes = all_.nbytes();
  storage.clear_data_ptr_access_error_msg_();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
}

void FlatBuffer::drop() {
  if (count() == 0 || !has_memory()) return;
  c10::StorageImpl& storage = *all_.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
  storage.set_nbytes(std::size_t{0});
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "store: a weight or gradient was read whose memory had been given back");
}

bool FlatBuffer::has_memory() const {
  return count() == 0 || all_.storage().nbytes() > 0;
}

// A tensor that shares the storage and not the version of the views.
at::Tensor FlatBuffer::all() const {
  ARMILLARY_CHECK(has_memory());
  return all_.variable_data();
}

void FlatBuffer::clear() {
  ARMILLARY_CHECK(has_memory());
  if (count() > 0) std::memset(all_.data_ptr(), 0, all_.nbytes());
}

at::Tensor FlatBuffer::view(std::int64_t begin, at::IntArrayRef shape) const {
  const std::int64_t size =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  return all_.narrow(0, begin, size).view(shape);
}

}  // namespace armillary::train
