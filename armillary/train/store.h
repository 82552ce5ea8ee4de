// store.h: the parameters of a model on one rank, their gradients and the optimizer's state, unit
// by unit, each unit's in flat fp32 buffers of its own. A sum of a unit's gradients over ranks is
// then one collective.
//
//   use(unit) --> Weights --> forward and backward --> reduce(unit)
//   pieces()  --> optimizer, norm, checkpoint: they see no units and no model
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/model/model.h"

namespace armillary::train {

/// The part of a parameter that a rank holds, with all that belongs to it: contiguous fp32 tensors
/// of the shape range.size.
struct Piece {
  std::string name;
  model::GlobalRange range;
  at::Tensor value;  ///< A leaf; its .grad is `gradient`.
  at::Tensor gradient;
  at::Tensor mean, square;  ///< AdamW's state.
};

/// One per rank. Its tensors are views into it and valid as long as it lives. Threads: that of the
/// rank.
class Store {
 public:
  /// Draws the initial values from `seed` (model/initial_values.h). Memory: 16 bytes per
  /// parameter.
  /// @throws InvalidArgument as check_parameters.
  Store(const model::Model& model, std::int64_t seed);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  int units() const { return static_cast<int>(units_.size()); }

  /// The weights of a unit. Moves nothing: every rank holds all parameters.
  model::Weights use(int unit) const;

  /// Sums the gradients of the parameters that a unit owns over the ranks of `replicas`, in place.
  /// Collective.
  void reduce(int unit, comm::Communicator& replicas);
  std::int64_t gradient_bytes() const;

  void zero_gradients();

  /// All parameters of this rank, in the order in which the model declares them, unit by unit.
  const std::vector<Piece>& pieces() const { return pieces_; }

  /// @throws InvalidArgument if a gradient no longer lies in this store's memory, as after
  /// `zero_grad(set_to_none)` in a model: it would be lost.
  void check_views() const;

 private:
  struct Unit {
    std::string name;
    std::vector<std::size_t> used;  ///< Numbers of the pieces that it uses.
    at::Tensor gradients;           ///< Flat, of those that it owns.
  };

  std::vector<Unit> units_;
  std::vector<Piece> pieces_;
};

}  // namespace armillary::train
