// step_rank.h: a rank that takes steps of a model by their program, for tests, with the bytes that
// it sends.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/mesh.h"
#include "armillary/comm/strided.h"
#include "armillary/comm/watched_communicator.h"
#include "armillary/core/mesh_shape.h"
#include "armillary/train/expert_parallel_over_ranks.h"
#include "armillary/train/replica_groups.h"
#include "armillary/train/step_runner.h"
#include "armillary/train/step_shape.h"

namespace armillary::train {

/// A run of one step.
struct StepCase {
  MeshShape mesh = {};
  int copies = 1;
  int zero = 0;
  int passes = 1;
  bool reshard = true;
  bool on_host = false;  ///< State of the optimizer.
  bool bf16 = false;     ///< Parameters.
  bool bf16_sums = false;
  int ep = 1;  ///< Ranks that share experts, of a model that has them.
};

/// All of a rank that a step needs. The model, which has no use for tokens, must outlive it.
class StepRank {
 public:
  StepRank(comm::Communicator& comm, model::Model& model, const StepCase& of)
      : comm_(comm,
              [this](const comm::Message& message) {
                if (message.direction != comm::Direction::Send) return;
                sent_bytes_ += comm::total_bytes(message.parts);
              }),
        model_(model),
        mesh_(comm_, of.mesh),
        parallelism_(options(of)),
        groups_(mesh_, parallelism_, has_experts(model)),
        store_(model, 7, groups_.replicas(), dtypes_of(training(of)), {.on_host = of.on_host}),
        optimizer_(store_.pieces(), {}),
        recording_(comm_, ""),
        step_(proved_step(comm_, shape(of))) {}

  /// Gradients, loss, norm and update; returns the norm.
  double take() {
    sent_bytes_ = 0;
    StepRunner runner = runner_of(step_);
    double loss = runner.run_gradients();
    comm::all_reduce_sum(runner.loss_group(), std::span(&loss, 1));
    gradients_.clear();
    for (const Piece& piece : store_.pieces()) gradients_.push_back(piece.gradient.clone());
    runner.run_norm();
    const double norm = optimizer_.clip(INFINITY);
    runner.run_update();
    return norm;
  }
  /// A runner of this rank with any program.
  StepRunner runner_of(const ProvedStep& step) {
    const auto inputs = [](int) {
      return model::ModelInputs{
          {}, {}, [](const at::Tensor& q, const at::Tensor&, const at::Tensor&) { return q; }};
    };
    return StepRunner({model_, store_, optimizer_, comm_, recording_}, step,
                      {.inputs = inputs, .targets = 2, .lr = 0.01});
  }

  const ProvedStep& step() const { return step_; }
  const Store& store() const { return store_; }
  const std::vector<at::Tensor>& gradients() const { return gradients_; }
  /// Bytes that this rank sent in the last step.
  std::int64_t sent_bytes() const { return sent_bytes_; }

 private:
  static ParallelismOptions options(const StepCase& of) {
    ParallelismOptions parallelism;
    parallelism.data_parallel_replicate_degree = of.copies;
    parallelism.expert_parallel_degree = of.ep;
    parallelism.zero = of.zero;
    parallelism.reshard_after_forward = of.reshard;
    return parallelism;
  }
  static TrainingOptions training(const StepCase& of) {
    TrainingOptions training;
    training.global_batch_size = static_cast<std::int64_t>(of.mesh.dp) * of.passes;
    training.local_batch_size = 1;
    if (of.bf16) training.mixed_precision_param = "bfloat16";
    if (of.bf16_sums) training.mixed_precision_reduce = "bfloat16";
    return training;
  }
  plan::step::StepShape shape(const StepCase& of) const {
    OptimizerOptions optimizer;
    if (of.on_host) optimizer.state_device = "host";
    return step_shape_of(model_, mesh_.shape(), parallelism_, training(of), optimizer);
  }

  std::int64_t sent_bytes_ = 0;
  comm::WatchedCommunicator comm_;
  model::Model& model_;
  comm::Mesh mesh_;
  ParallelismOptions parallelism_;
  ReplicaGroups groups_;
  Store store_;
  Optimizer optimizer_;
  Recording recording_;
  ProvedStep step_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace armillary::train
