// restore.h: the state of a run, as it is saved, found again and put back.
//
//   model, store --state_of--> tensors by name --(saver.h)--> checkpoint
//   run folder --choose_checkpoint--> its newest --restore--> the values of the tensors
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/io/safetensors.h"
#include "armillary/train/checkpoint/manifest.h"
#include "armillary/train/data.h"
#include "armillary/train/models/model.h"
#include "armillary/train/parameter_store.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// A tensor of the state of a run under its name in checkpoints: a view, fp32 and contiguous.
struct StateTensor {
  std::string name;
  at::Tensor tensor;

  io::TensorInfo info() const;    ///< Name, F32 and shape.
  io::TensorBytes bytes() const;  ///< In the memory of the tensor.
};

/// All tensors that a run needs to go on: "parameters/NAME" of each parameter, then "means/NAME",
/// then "squares/NAME". @throws InvalidArgument if the model has not a name for each parameter.
std::vector<StateTensor> state_of(const Model& model, const ParameterStore& store);

/// The checkpoint from which a run begins: the newest whole one if it is to resume, else none, an
/// empty path. `on_notice` is given a line for each folder that is passed over, on rank 0.
/// Collective; all ranks take that of rank 0.
/// @throws InvalidArgument on every rank if the run is to resume and there is none, or is not and
/// there are some; IoError if the folder cannot be read.
std::string choose_checkpoint(comm::Communicator& comm, const Recipe& recipe, bool resume,
                              const std::function<void(const std::string&)>& on_notice);

/// A checkpoint that was restored.
struct Restored {
  Progress progress;
  Recipe recipe;  ///< With which it was written.
};

/// Puts a checkpoint's values into the state. Ranks share the work of checking them. Collective.
/// @throws InvalidArgument on every rank if the run cannot go on from it: another recipe
/// (resumable.h), vocabulary or data, fewer steps; IoError as Checkpoint, also for another tensor.
Restored restore(comm::Communicator& comm, const std::string& path, const Recipe& recipe,
                 const Data& data, const std::vector<StateTensor>& state);

}  // namespace armillary::train
