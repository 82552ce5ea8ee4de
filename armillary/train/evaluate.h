// evaluate.h: the loss of a model on data, over the ranks of a mesh. It trains nothing and writes
// nothing: it reads parameters, and runs the units of the model forward.
//
//   checkpoint or model folder --> store --forward_loss--> sum of losses / sum of targets
//
// The mesh is that of the recipe it is given, whichever trained the parameters.
#pragma once

#include <cstdint>
#include <string>

#include "armillary/comm/mesh.h"
#include "armillary/model/model.h"
#include "armillary/train/data.h"
#include "armillary/train/forward_loss.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/trainer.h"

namespace armillary::train {

/// Parameters and sequences of an evaluation.
struct EvalOptions {
  /// Folder of a checkpoint. Not together with `init_from`.
  std::string checkpoint = {};
  /// Model folder (checkpoint/model_folder.h). Without both, parameters are drawn from
  /// training.seed.
  std::string init_from = {};
  std::int64_t sequences = 0;  ///< From number 0 on; 0: those of an epoch.
};

/// The recipe of an evaluation on the mesh of `recipe`: one sequence in a pass, nothing computed
/// again, no learning rate.
Recipe eval_recipe(Recipe recipe);

/// One rank's part; equal on all ranks, and up to rounding on every mesh. It reads of `recipe` what
/// train() reads of it. Collective over the mesh.
/// @throws on every rank InvalidArgument if recipes or data of two ranks differ, as checked_parts,
/// for a number of sequences that the data have not, for a larger vocabulary than the model's, or
/// as load_parameters; IoError as Checkpoint; CommError as the communicator.
EvalResult evaluate(const comm::Mesh& mesh, model::Model& model, const Data& data,
                    const Recipe& recipe, const EvalOptions& options);

/// Runs the recipe's model on the ranks of its mesh, as train() does. The result is that of rank 0;
/// a process of another rank has none.
EvalResult evaluate(const Recipe& recipe, const Data& data, const EvalOptions& options,
                    const RunRanks& run_ranks = {});

}  // namespace armillary::train
