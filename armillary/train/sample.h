// sample.h: pictures out of noise by a trained DiT, over the ranks of a mesh: the same on any mesh
// up to rounding. It trains nothing and writes nothing.
//
//   noise of (seed, picture) --> x --forward--> prediction --denoised--> x --> .. --> pictures
//                                 '<------ steps of time from 1 to 0 ------'
//
// All ranks have x of the pictures of a pass whole, and put together what each predicts for its
// tokens. Ranks along dp take passes in turn. With guidance by ranks the two halves of dp take the
// same pictures, one told and one not:
//
//   rank i          told --.                          .--> the same x
//   rank i + dp/2   none --'-- exchange, then led ----'--> the same x
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/comm/mesh.h"
#include "armillary/model/model.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/trainer.h"

namespace armillary::train {

/// How a picture's two predictions are computed.
enum class GuidanceBy : std::uint8_t {
  Batch,   ///< One pass of twice the sequences.
  Passes,  ///< Two passes: less memory.
  /// One pass on each half of the ranks along dp. The twins, rank i of one half and rank i of the
  /// other, have the same tokens, and each sends the other its prediction for them in every step.
  Ranks,
};
inline constexpr std::array<std::string_view, 3> kGuidanceWays{"batch", "passes", "ranks"};

inline std::string_view to_string(GuidanceBy way) {
  return kGuidanceWays[static_cast<std::size_t>(way)];
}

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
  GuidanceBy guidance_by = GuidanceBy::Batch;  ///< Any other needs a guidance that is not 1.
  std::int64_t seed = 0;                       ///< Picture i has the same noise beside any others.
  std::int64_t pictures_a_pass = 16;           ///< At most.
};

/// The recipe of a sampling on the mesh of `recipe`, a dit: so many sequences in a pass, nothing
/// computed again, no learning rate.
Recipe sample_recipe(Recipe recipe, const SampleOptions& options);

/// Pictures [n, height, width, channels] as the data have them, fp64, mostly from -1 to 1; equal on
/// all ranks. Collective over the mesh. @throws on every rank InvalidArgument if recipes of two
/// ranks differ, for a model that is no dit, classes or words that it has not, a guidance that is
/// not finite, guidance by ranks where ranks along dp have no halves, or as ForwardRank::load;
/// IoError as Checkpoint; CommError as the communicator.
at::Tensor sample(const comm::Mesh& mesh, model::Model& model, const Recipe& recipe,
                  const SampleOptions& options);

/// Runs the recipe's model on the ranks of its mesh, as train() does. The result is that of rank 0;
/// a process of another rank has an undefined tensor.
at::Tensor sample(const Recipe& recipe, const SampleOptions& options,
                  const RunRanks& run_ranks = {});

}  // namespace armillary::train
