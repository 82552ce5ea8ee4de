// not_finite.h: where a number that is not finite was first, in a run that ends by it.
//
//   values of parameters --> activations --> gradients --> loss
//
// Behind a collective such a number is on all of its ranks. So ranks look in front of each, count
// their looks, and the first look that finds one names the rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/model/model.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// The first such number on this rank.
struct NotFinite {
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t place = kNone;  ///< Comparable between ranks; kNone: there is none.
  std::string what = {};       ///< A noun, such as "an activation of unit head".
};

/// That of the rank with the smallest place, the first of these, on every rank. Collective.
struct FirstNotFinite {
  int rank = -1;  ///< -1: no rank has one.
  NotFinite number = {};
};
FirstNotFinite first_of(comm::Communicator& world, const NotFinite& mine);

/// The least place of a value that is Inf: of NaN it is below. An update of finite numbers may make
/// a value Inf, but no NaN.
inline constexpr std::int64_t kInfPlace = 2;
/// A value that this rank holds between two steps: one of its own before those that it was given.
NotFinite value_not_finite(const Store& store);

/// The looks of a rank in one pass over the units (step_runner.h). All ranks have as many. Threads:
/// that of the rank.
class FiniteWatch {
 public:
  /// Names of the units.
  explicit FiniteWatch(std::vector<std::string> units) : units_(std::move(units)) {}
  FiniteWatch(const FiniteWatch&) = delete;
  FiniteWatch& operator=(const FiniteWatch&) = delete;

  /// The same inputs, but attention and the ranks along tp and ep look at what forward gives them.
  /// They must not outlive this object.
  model::ModelInputs watched(model::ModelInputs inputs);

  /// Around the forward of a unit. Its output is looked at, but not the loss.
  void begin_forward(int unit);
  void end_forward(const at::Tensor& out);
  /// After the backward of a unit: the first parameter with such a gradient; empty: none.
  void see_gradients(const std::string& parameter);
  /// At the end.
  void see_loss(double loss);
  /// An activation that is about to leave the rank; nothing outside of forward.
  void see(const at::Tensor& activation);
  /// Likewise; -Inf is legal, that of no values.
  void see_largest(const at::Tensor& values);

  const NotFinite& first() const { return first_; }

 private:
  void look(bool is_finite, const std::string& what);
  void look_at_activation(bool is_finite);

  const std::vector<std::string> units_;
  int unit_ = -1;           ///< The one that runs forward; -1: none.
  std::int64_t looks_ = 0;  ///< So far.
  NotFinite first_;
};

}  // namespace armillary::train
