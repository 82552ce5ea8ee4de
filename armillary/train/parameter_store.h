// parameter_store.h: a replica's parameters, their gradients and the optimizer's state, each as one
// flat fp32 buffer, so that a sum over ranks is one collective and a norm one pass.
//
//   forward of layer i:  gather(i) .. release(i)      today every rank holds all: nothing moves
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace armillary::train {

/// One per rank. What it gives is valid as long as it is. Not copied: `.grad` of the parameters are
/// views into it.
class ParameterStore {
 public:
  /// Takes the values of `parameters`, fp32 leaves on the CPU, over: from then on each is a view
  /// into the store. Memory: 16 bytes each, 4 of them instead of the parameter's own.
  explicit ParameterStore(std::vector<at::Tensor> parameters);
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Views by parameter, in the order given.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& gradients() const { return gradients_; }
  const std::vector<at::Tensor>& means() const { return means_; }      ///< Of AdamW.
  const std::vector<at::Tensor>& squares() const { return squares_; }  ///< Of AdamW.

  /// All gradients, in the order of the parameters.
  std::span<float> flat_gradients();
  void zero_gradients();
  void scale_gradients(double factor);

  /// Before a model reads its parameters, and after it has. They are whole on every rank, so both
  /// do nothing; with shards, `gather` brings the others' and `release` drops them.
  void gather() {}
  void release() {}

 private:
  at::Tensor flat_gradients_;
  std::vector<at::Tensor> parameters_, gradients_, means_, squares_;
};

}  // namespace armillary::train
