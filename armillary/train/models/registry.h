// registry.h: the models that a recipe can name.
//
//   ModelOptions --check_model--> legal --model_cost--> ModelCost
//                                       '--make_model--> Model
//
// A model that no recipe can name needs no entry here: pass it to train() of trainer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/train/models/decoder_options.h"
#include "armillary/train/models/model.h"
#include "armillary/train/models/model_options.h"
#include "armillary/train/models/recompute.h"

namespace armillary::train {

/// Legal values of model.name: "gpt", "llama".
const std::vector<std::string>& model_names();

/// Checks the options against each other. @throws InvalidArgument with the nearest legal value.
void check_model(const ModelOptions& options);

/// Choices of a run that are the same for every model.
struct ModelRun {
  at::ScalarType dtype = at::kFloat;  ///< Dtype of activations and products: kFloat or kBFloat16.
  Recompute recompute = Recompute::None;
  std::int64_t loss_chunk_tokens = 1024;  ///< Tokens whose logits exist at the same time.
};

/// Cost of the named model; makes no tensors. Requires check_model, as all below.
ModelCost model_cost(const ModelOptions& options, const ModelRun& run);

/// The named model with parameters drawn from `seed`, equal on all ranks.
std::unique_ptr<Model> make_model(const ModelOptions& options, const ModelRun& run,
                                  std::int64_t seed);

/// The decoder of the named model with these sizes. dtype, recomputation and chunks of the loss
/// keep their defaults.
DecoderOptions decoder_options(const ModelOptions& options);

}  // namespace armillary::train
