// registry.h: the models that a recipe can name.
//
//   ModelOptions --check_model--> legal --model_cost--> ModelCost
//                                       '--make_model--> Model
//
// A model that no recipe can name needs no entry here: pass it to train() of train/trainer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/core/section.h"
#include "armillary/model/decoder_options.h"
#include "armillary/model/model.h"
#include "armillary/model/model_options.h"
#include "armillary/model/recompute.h"

namespace armillary::model {

/// Legal values of model.name: "gpt", "gpt2", "llama", "moe", "dit".
const std::vector<std::string>& model_names();

/// The options with which a recipe of this model begins: those of ModelOptions, but gpt2's output
/// is tied to its embedding.
ModelOptions default_options(const std::string& name);

/// The keys of [model] that the named model has.
Section section_of(ModelOptions& model);

/// Checks the options against each other. @throws InvalidArgument with the nearest legal value.
void check_model(const ModelOptions& options);

/// Width of the MLP of the named model, given or by its own rule. Requires check_model.
std::int64_t hidden_dim_of(const ModelOptions& options);

/// Sequences of data.
struct SequenceSize {
  std::int64_t seq_len = 0;
  std::int64_t vocab_size = 0;  ///< 0: there are no words.
};
/// Checks that the named model has tables that are long enough, or that a sequence is one of its
/// pictures. @throws InvalidArgument with the nearest legal value.
void check_sequences(const ModelOptions& options, const SequenceSize& size);

/// Choices of a run that are the same for every model.
struct ModelRun {
  at::ScalarType dtype = at::kFloat;                  ///< As in DecoderOptions.
  bool native_bf16 = kernel::cpu::multiplies_bf16();  ///< Likewise.
  cost::Recompute recompute = cost::Recompute::None;
  std::int64_t loss_chunk_tokens = 1024;  ///< Tokens whose logits exist at the same time.
  bool keep_gathered_inputs = false;      ///< As in DecoderOptions.
  std::int64_t seq_len = 0;               ///< Tokens of a whole sequence; 0: not known, few.
};

/// Cost of the named model; makes no tensors. Requires check_model, as all below.
cost::ModelCost model_cost(const ModelOptions& options, const ModelRun& run);

/// The named model.
std::unique_ptr<Model> make_model(const ModelOptions& options, const ModelRun& run);

/// The decoder of the named model, which is one, with these sizes; dtype, recomputation and chunks
/// of the loss keep their defaults.
DecoderOptions decoder_options(const ModelOptions& options);

}  // namespace armillary::model
