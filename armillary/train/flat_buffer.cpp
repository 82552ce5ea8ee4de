// flat_buffer.cpp: views share the storage of the whole tensor, which is given another piece of
// memory. That is no write in autograd's sense, so versions of views stay.
#include "armillary/train/flat_buffer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

#include <functional>
#include <numeric>

#include "armillary/core/error.h"

namespace armillary::train {

FlatBuffer::FlatBuffer(std::int64_t count) : all_(at::empty({count}, at::kFloat)) {}

void FlatBuffer::take() {
  if (has_memory()) return;
  c10::StorageImpl& storage = *all_.storage().unsafeGetStorageImpl();
  const std::size_t bytes = static_cast<std::size_t>(count()) * sizeof(float);
  storage.clear_data_ptr_access_error_msg_();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
}

void FlatBuffer::drop() {
  if (count() == 0) return;
  c10::StorageImpl& storage = *all_.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
  storage.set_nbytes(std::size_t{0});
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "store: a weight or gradient was read whose memory had been given back");
}

bool FlatBuffer::has_memory() const {
  return count() == 0 || all_.storage().nbytes() > 0;
}

std::span<float> FlatBuffer::values() const {
  ARMILLARY_CHECK(has_memory());
  if (count() == 0) return {};
  return {all_.data_ptr<float>(), static_cast<std::size_t>(count())};
}

at::Tensor FlatBuffer::view(std::int64_t begin, at::IntArrayRef shape) const {
  const std::int64_t size =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  return all_.narrow(0, begin, size).view(shape);
}

}  // namespace armillary::train
