// forward_rank.h: one rank's model, parameters and attention for passes forward alone: evaluation
// and sampling.
//
//   checkpoint or model folder --load--> store --use--> units --forward--> output of the last unit
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "armillary/comm/mesh.h"
#include "armillary/model/model.h"
#include "armillary/train/data.h"
#include "armillary/train/forward_loss.h"
#include "armillary/train/forward_pass.h"
#include "armillary/train/microbatch.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/replica_groups.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// One per rank; all ranks make the same calls, each collective. Its arguments must outlive it.
/// Threads: that of the rank.
class ForwardRank {
 public:
  /// Parameters are drawn from training.seed.
  ForwardRank(const comm::Mesh& mesh, model::Model& model, const Recipe& recipe);

  /// Puts the parameters of a checkpoint or a model folder in their place, if one is named, and
  /// compares them over the ranks. @throws on every rank IoError as Checkpoint; InvalidArgument as
  /// load_parameters and expect_equal_start.
  void load(const std::string& checkpoint, const std::string& init_from);

  /// As read_pass and forward_pass (forward_pass.h).
  Microbatch read(const Data& data, std::int64_t first) { return read_pass(parts(), data, first); }
  at::Tensor forward(const Microbatch& pass, const model::Fields& batch) {
    return forward_pass(parts(), pass, batch);
  }
  /// As forward_loss.
  EvalResult loss(const Data& data, std::int64_t sequences) {
    return forward_loss(parts(), data, sequences);
  }

 private:
  /// Each rank checks its share of the file, and reads its ranges.
  void load_checkpoint(const std::string& path);
  ForwardParts parts();

  const comm::Mesh& mesh_;
  comm::Communicator& world_;
  model::Model& model_;
  const Recipe& recipe_;
  const cost::ModelAttention attention_;  ///< With the heads of this rank along tp.
  const std::string strategy_;
  ReplicaGroups groups_;
  std::shared_ptr<model::TensorParallel> tensor_parallel_;  ///< Null: tp is 1.
  std::shared_ptr<model::ExpertParallel> expert_parallel_;  ///< Null: no experts.
  Store store_;
};

}  // namespace armillary::train
