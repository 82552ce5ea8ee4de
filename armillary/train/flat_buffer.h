// flat_buffer.h: the memory of all parameters of a unit, or of their gradients, as one flat tensor
// whose views stay valid while the memory itself comes and goes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace armillary::train {

/// Threads: that of the rank.
class FlatBuffer {
 public:
  /// With memory.
  FlatBuffer(std::int64_t count, at::ScalarType dtype);

  /// Gives it memory, of any values, unless it has some.
  void take();
  /// Gives the memory back. Reading a view throws until the next take(). Autograd does not take
  /// notice: a view that it has saved is valid again if the values are those of before.
  void drop();
  bool has_memory() const;

  std::int64_t count() const { return all_.numel(); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(all_.nbytes()); }
  /// All elements. Autograd takes no notice of what is written to them either. Requires memory.
  at::Tensor all() const;
  /// Writes zeros. Requires memory.
  void clear();
  /// A view of elements [begin, begin + size of the shape), for autograd. Requires memory.
  at::Tensor view(std::int64_t begin, at::IntArrayRef shape) const;

 private:
  at::Tensor all_;
};

}  // namespace armillary::train
