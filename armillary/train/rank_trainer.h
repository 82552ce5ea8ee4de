// rank_trainer.h: one rank's part of the model, and of every step of a run. For trainer.h, which
// decides how many steps there are, where the state comes from and where it goes.
//
//   begin_after(s) --> step(s + 1) --> step(s + 2) --> ..      between two steps: progress, state,
//                                                              validation_loss
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/comm/mesh.h"
#include "armillary/model/model.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/train/checkpoint/manifest.h"
#include "armillary/train/checkpoint/restore.h"
#include "armillary/train/data.h"
#include "armillary/train/microbatch.h"
#include "armillary/train/optimizer.h"
#include "armillary/train/recording.h"
#include "armillary/train/replica_groups.h"
#include "armillary/train/spike_guard.h"
#include "armillary/train/step_proof.h"
#include "armillary/train/step_runner.h"
#include "armillary/train/store.h"
#include "armillary/train/trainer.h"

namespace armillary::train {

/// Numbers that ranks sum in each step beside the loss.
struct Beside {
  double stops = 0;  ///< Ranks that are told to stop.
  double busy = 0;   ///< CheckpointSaver::busy().
};

/// Numbers of a step that are summed over the ranks.
struct StepSums {
  double loss = 0;
  double visible_pairs = 0;
};

/// The caller's parts of a run.
struct RankInputs {
  const Data& data;
  const Recipe& recipe;
  const Recording& recording;
};

/// One per rank; all ranks make the same calls. Its arguments must outlive it. Threads: that of the
/// rank.
class RankTrainer {
 public:
  /// Measures the peak of the rank. `step` is that of the model on this mesh (step_shape.h).
  /// Collective.
  RankTrainer(const comm::Mesh& mesh, model::Model& model, ProvedStep step,
              const RankInputs& inputs);

  /// The tensors that this rank restores, and those that it saves: one rank saves each.
  std::vector<StateTensor> state() const { return state_of(store_.pieces()); }
  std::vector<SavedTensor> saved() const;
  /// Refuses a checkpoint with tensors that are none of the model. @throws as check_no_other.
  void check_tensors(const std::string& path, const Restored& restored) const;
  /// Puts the parameters of a model folder into the store. @throws as load_parameters.
  void load_parameters_of(const std::string& folder);

  /// To be called once, before the first step(), with the progress of the steps that were taken
  /// before. Collective. @throws on every rank InvalidArgument as expect_equal_start or
  /// checked_parts, or what the model throws for a shard without tokens.
  void begin_after(const RunProgress& progress);

  /// Takes a step, from 1 on. `beside` is asked when its numbers are summed over the ranks, with
  /// the loss. Collective.
  /// @throws on every rank Error if loss or norm is not finite or a spike, unless training.
  /// spike_guard asks for a rollback; InvalidArgument as checked_parts for the sequences of the
  /// next step, or if ranks hold different sequences.
  StepMetrics step(std::int64_t step, const std::function<Beside()>& beside);
  /// The reason why the last step asks for a rollback; empty if it does not. Its update was not
  /// taken, and no other step follows. Equal on all ranks.
  const std::string& spike() const { return spike_; }
  /// The sums of the last step; equal on all ranks.
  const Beside& beside() const { return beside_; }

  /// The loss on training.validation_sequences of these data. Collective. @throws as forward_loss.
  double validation_loss(const Data& data);

  /// The progress of the run after `step`, the last one so far.
  RunProgress progress(std::int64_t step) const;

 private:
  /// The microbatches of a step that this rank reads.
  std::vector<Microbatch> read_batch(std::int64_t step) const;
  /// Throws on every rank along tp if they read different sequences. Collective.
  void expect_same_batch() const;
  void read_ahead(std::int64_t step);
  void rehearse(const Microbatch& task);
  /// Whether this rank counts the sequences that it reads; others share them.
  bool counts() const { return comm_.rank() == 0 && mesh_.index(MeshAxis::Tp) == 0; }
  /// This rank's share of the targets of a batch.
  double targets_of(const std::vector<Microbatch>& batch) const;
  model::ModelInputs inputs_of(const Microbatch& task) const;
  /// The objects on which the ops of a step act.
  StepParts parts() { return {model_, store_, optimizer_, world_, recording_}; }
  /// Says what is wrong with a step, the same on all ranks; empty if nothing is. Collective.
  std::string fault_of(std::int64_t step, double loss, double grad_norm);
  /// Says where a number that is not finite was first, and advice, the same on all ranks.
  /// Collective.
  std::string first_not_finite();
  StepSums sum_over(comm::Communicator& ranks, StepSums mine,
                    const std::function<Beside()>& beside);
  /// Throws on every rank the error with which a rank has read ahead, if one has.
  void refuse_broken_batch() const;
  StepMetrics measure(StepMetrics metrics, double visible_pairs, double seconds);

  const comm::Mesh& mesh_;
  comm::Communicator& world_;
  comm::Communicator& comm_;  ///< The ranks that share each sequence.
  const Recording& recording_;
  const Recipe& recipe_;
  const Data& data_;
  std::vector<Microbatch> batch_;       ///< The training batch of this step, or of the last one.
  std::vector<Microbatch> next_batch_;  ///< Read ahead.
  double targets_ = 0;                  ///< Targets of this step on all ranks; 1 at least.
  double next_targets_ = 0;
  std::exception_ptr broken_;     ///< Why it could not be read on this rank.
  double ranks_with_broken_ = 0;  ///< Ranks with such an error.
  model::Model& model_;
  cost::ModelCost cost_;
  cost::ModelAttention attention_;  ///< With the heads of this rank along tp.
  plan::Strategy strategy_;
  const ProvedStep step_;
  ReplicaGroups groups_;
  std::shared_ptr<model::TensorParallel> tensor_parallel_;  ///< Null: tp is 1.
  std::shared_ptr<model::ExpertParallel> expert_parallel_;  ///< Null: no experts.
  double peak_flops_;  ///< Highest measured peak of one rank, before tensors of the run are there.
  Store store_;
  Optimizer optimizer_;
  LearningRates rates_;
  Beside beside_;
  BatchOrder order_;
  std::optional<SpikeGuard> guard_;  ///< From begin_after() on.
  std::string spike_;
  bool peak_is_low_ = false;     ///< The last step was faster than that.
  double ranks_above_peak_ = 0;  ///< Ranks that said so in this step.
  double waited_s_ = 0;          ///< Store::waited_s, mean over the ranks, without the next.
  double validation_waited_s_ = 0;
  double exposed_s_ = 0;       ///< That of this step.
  int measurements_left_ = 5;  ///< Products may be slower here than the steps that use others.
};

}  // namespace armillary::train
