// restore.h: the state of a run, as it is saved, found again and put back.
//
//   pieces --state_of--> tensors by name --(saver.h)--> checkpoint
//   run folder --choose_checkpoint--> its newest --restore--> the values of the tensors
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/train/checkpoint/manifest.h"
#include "armillary/train/checkpoint/saved_tensor.h"
#include "armillary/train/data.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// A tensor of the state of a run under its name in checkpoints: a view, fp32 or fp64, contiguous.
struct StateTensor {
  std::string name;
  at::Tensor tensor;
  model::GlobalRange range;  ///< The part of the whole tensor that it is.

  io::TensorDtype dtype() const;
  SavedTensor saved() const;  ///< In the memory of the tensor.
};

/// All tensors that a run needs to go on: "parameters/NAME" of each parameter, then "means/NAME",
/// then "squares/NAME".
std::vector<StateTensor> state_of(const std::vector<Piece>& pieces);

/// The checkpoint from which a run begins: the newest whole one of `folder` if it is to resume,
/// else none, an empty path. `on_notice` is given a line for each folder that is passed over, on
/// rank 0. Collective; all ranks take that of rank 0.
/// @throws InvalidArgument on every rank if the run is to resume and there is none, or is not and
/// there are some; IoError if the folder cannot be read.
std::string choose_checkpoint(comm::Communicator& comm, const std::string& folder, bool resume,
                              const std::function<void(const std::string&)>& on_notice);

/// A checkpoint that was restored.
struct Restored {
  RunProgress progress;
  std::string recipe;                ///< Text of the recipe with which it was written.
  std::vector<std::string> tensors;  ///< Names of its tensors.
};

/// Whether a run can go on from a checkpoint: throws if not. Called on every rank, before values
/// are read; it must not communicate.
using CheckResumable = std::function<void(const Restored& restored)>;

/// Refuses a checkpoint with tensors of other parameters than these: their values would be lost.
/// @throws IoError that names the checkpoint and the first such tensor.
void check_no_other(const std::string& path, const std::vector<std::string>& tensors,
                    const std::vector<model::Parameter>& parameters);

/// Puts a checkpoint's values into the state. Ranks share the work of checking them. Collective.
/// @throws on every rank what `check` throws; InvalidArgument for another vocabulary or data;
/// IoError as Checkpoint, also for another tensor.
Restored restore(comm::Communicator& comm, const std::string& path, const CheckResumable& check,
                 const Data& data, const std::vector<StateTensor>& state);

}  // namespace armillary::train
