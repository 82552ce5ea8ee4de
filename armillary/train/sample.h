// sample.h: pictures out of noise by a trained DiT, over the ranks of a mesh: the same on any mesh
// up to rounding. It trains nothing and writes nothing.
//
//   noise of (seed, picture) --> x --forward--> prediction --denoised--> x --> .. --> pictures
//                                 '<------ steps of time from 1 to 0 ------'
//
// All ranks have x of the pictures of a pass whole, and put together what each predicts for its
// tokens. Ranks along dp take passes in turn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/comm/mesh.h"
#include "armillary/model/model.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/trainer.h"

namespace armillary::train {

struct SampleOptions {
  /// Folder of a checkpoint. Not together with `init_from`.
  std::string checkpoint = {};
  /// Model folder (checkpoint/model_folder.h). Without both, parameters are drawn from
  /// training.seed.
  std::string init_from = {};
  /// Class of each picture, below n_classes, or n_classes: none.
  std::vector<std::int64_t> classes = {};
  /// The words of all pictures, as many as the model's text_tokens.
  std::vector<std::int64_t> words = {};
  std::int64_t steps = 50;
  /// prediction = none + guidance (told - none), told its class and words or none (classifier-free
  /// guidance, arXiv:2207.12598). 1: the prediction that is told alone, in half of the time.
  double guidance = 1;
  /// Predictions for the class and for none are two passes instead of one of twice the sequences.
  bool two_passes = false;
  std::int64_t seed = 0;              ///< Picture i has the same noise beside any others.
  std::int64_t pictures_a_pass = 16;  ///< At most.
};

/// The recipe of a sampling on the mesh of `recipe`, a dit: so many sequences in a pass, nothing
/// computed again, no learning rate.
Recipe sample_recipe(Recipe recipe, const SampleOptions& options);

/// Pictures [n, height, width, channels] as the data have them, fp64, mostly from -1 to 1; equal on
/// all ranks. Collective over the mesh. @throws on every rank InvalidArgument if recipes of two
/// ranks differ, for a model that is no dit, classes or words that it has not, or as
/// ForwardRank::load; IoError as Checkpoint; CommError as the communicator.
at::Tensor sample(const comm::Mesh& mesh, model::Model& model, const Recipe& recipe,
                  const SampleOptions& options);

/// Runs the recipe's model on the ranks of its mesh, as train() does. The result is that of rank 0;
/// a process of another rank has an undefined tensor.
at::Tensor sample(const Recipe& recipe, const SampleOptions& options,
                  const RunRanks& run_ranks = {});

}  // namespace armillary::train
