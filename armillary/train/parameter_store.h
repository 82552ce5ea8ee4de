// parameter_store.h: parameters of a replica, their gradients and the optimizer's state, each in
// one flat fp32 buffer. A sum of gradients over ranks is then one collective, and a norm one pass.
//
//   gather() --> forward and backward of the model --> release()     every rank holds all of it
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace armillary::train {

/// One per rank. Its tensors are views into it and valid as long as it lives. It cannot be copied:
/// `.grad` of the parameters are such views. Threads: that of the rank.
class ParameterStore {
 public:
  /// Copies the values of `parameters`, fp32 leaves on the CPU, and makes each parameter a view of
  /// its copy. Memory: 16 bytes per parameter, of which 4 replace the parameter's own.
  /// @throws InvalidArgument for a parameter of another dtype or device.
  explicit ParameterStore(std::vector<at::Tensor> parameters);
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Views by parameter, in the order in which the parameters were given.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& gradients() const { return gradients_; }
  const std::vector<at::Tensor>& means() const { return means_; }      ///< AdamW's state.
  const std::vector<at::Tensor>& squares() const { return squares_; }  ///< Likewise.

  /// All gradients, one parameter after the other.
  std::span<float> flat_gradients();
  /// Set or multiply all gradients in place; views stay valid.
  void zero_gradients();
  void scale_gradients(double factor);

  /// Called before a model reads its parameters, and after its backward pass. Both do nothing,
  /// since every rank holds all parameters; a store of sharded parameters would bring and drop
  /// shards here.
  void gather() {}
  void release() {}

  /// Gathers while it lives, and releases at its end, also if the model throws.
  class Gathered {
   public:
    explicit Gathered(ParameterStore& store) : store_(store) { store_.gather(); }
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;
    ~Gathered() { store_.release(); }

   private:
    ParameterStore& store_;
  };

  /// @throws InvalidArgument if a parameter no longer uses this store's memory for itself or its
  /// gradient, as after `zero_grad(set_to_none)` in a model: its gradient would be lost.
  void check_views() const;

 private:
  at::Tensor flat_gradients_;
  std::vector<at::Tensor> parameters_, gradients_, means_, squares_;
};

}  // namespace armillary::train
