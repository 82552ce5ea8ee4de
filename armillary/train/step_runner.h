// step_runner.h: runs the program of a rank's training step (plan/step) op by op: nothing about the
// order of a step is decided here.
//
//   gather, release            Store: starts; waits before the unit runs
//   forward, loss, backward    Model, a graph for each unit
//   sums of gradients          Store: start, but for those along tp and over copies
//   norm, update               Optimizer
//   move                       Store: starts; an update waits for the fetch of its state
//   sum of the loss            left to the caller, who sums other numbers with it
//
// A joint op goes over the group that it names, rank by rank that of the proof. It is refused
// before anything moves if that is not a group over which its values are spread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/model/model.h"
#include "armillary/train/not_finite.h"
#include "armillary/train/optimizer.h"
#include "armillary/train/recording.h"
#include "armillary/train/step_proof.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// The objects on which the ops of a rank act.
struct StepParts {
  model::Model& model;
  Store& store;
  Optimizer& optimizer;
  comm::Communicator& world;  ///< The ranks of the mesh.
  const Recording& recording;
};

/// The caller's numbers of one step.
struct StepTask {
  std::function<model::ModelInputs(int microbatch)> inputs;
  double targets = 1;            ///< The loss is divided by it.
  double lr = 0;                 ///< Learning rate of the update.
  FiniteWatch* watch = nullptr;  ///< Not null: looks at what each unit makes.
};

/// Runs a step once, part by part. Its arguments must outlive it. Threads: that of the rank.
class StepRunner {
 public:
  /// @throws InternalError if an op names a group that is not the store's for it.
  StepRunner(const StepParts& parts, const ProvedStep& step, StepTask task);

  /// All that comes before the sum of the loss. Returns this rank's share of the loss. Collective.
  double run_gradients();
  /// The group over which the program then sums the loss: all ranks.
  comm::Communicator& loss_group() const { return *loss_group_; }
  /// The squares of all gradients. Collective.
  void run_norm();
  /// To be called when the optimizer has clipped. Collective.
  void run_update();

 private:
  using Op = plan::Op;

  /// A unit that has run forward: its input as a leaf, and its output with a graph.
  struct UnitPass {
    at::Tensor in, out;
  };

  void run_ops(std::size_t begin, std::size_t end);
  void run_op(const Op& op);
  plan::TensorId tensor_of(const Op& op) const;
  int owner_of(const Op& op) const;
  comm::Communicator* group_with(const std::vector<plan::Rank>& ranks) const;
  bool goes_over_its_group(const Op& op) const;
  bool sums_over_its_group(const Op& op) const;
  bool is_along_tp(const Op& op) const;
  comm::Communicator& group_of(const Op& op) const;
  recorder::Activity sum_of_gradients() const;
  void run_forward(const plan::View& x);
  void run_loss();
  void run_backward(const plan::View& x);
  void run_release(const Op& op);
  void run_all_reduce(const Op& op);
  void run_update_of(const Op& op);
  void run_move(const Op& op);
  const plan::Tile& tile_of(const plan::View& view) const;
  int buffer_of(const plan::View& view) const;

  const StepParts parts_;
  const ProvedStep& step_;
  const StepTask task_;
  std::size_t norm_ = 0;                     ///< The first op behind the sums of gradients.
  std::size_t update_ = 0;                   ///< The first update.
  std::vector<int> buffers_;                 ///< Slots of the store's buffers.
  std::vector<comm::Communicator*> groups_;  ///< Those of the program; null: not the store's.
  comm::Communicator* loss_group_ = nullptr;
  std::optional<model::ModelInputs> inputs_;  ///< Those of the microbatch that runs.
  std::vector<UnitPass> passes_;
  at::Tensor grad_;  ///< That of the output of the unit that runs backward next.
  double loss_ = 0;
};

}  // namespace armillary::train
