// registry.cpp: models by name. Both are the same decoder with other options.
#include "armillary/train/models/registry.h"

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/train/models/decoder.h"
#include "armillary/train/models/decoder_cost.h"
#include "armillary/train/models/gpt.h"
#include "armillary/train/models/llama.h"

namespace armillary::train {
namespace {

/// A decoder behind the trainer's interface of models.
class DecoderModel : public Model {
 public:
  DecoderModel(const DecoderOptions& options, std::int64_t seed)
      : options_(options), decoder_(options) {
    decoder_->initialize(seed);
  }

  std::vector<at::Tensor> parameters() const override { return decoder_->parameters(); }
  std::vector<std::string> parameter_names() const override {
    return decoder_->named_parameters().keys();
  }

  at::Tensor loss(const TrainingBatch& batch, const Attends& attends,
                  const at::Tensor& positions_L) override {
    return decoder_->loss(batch.tokens_BL, positions_L, batch.labels_BL, attends,
                          options_.loss_chunk_tokens());
  }

  ModelCost cost() const override { return decoder_cost(options_); }
  std::int64_t vocab_size() const override { return options_.vocab_size(); }

 private:
  DecoderOptions options_;
  Decoder decoder_;
};

DecoderOptions decoder_options(const ModelOptions& options, const ModelRun& run) {
  return train::decoder_options(options)
      .dtype(run.dtype)
      .recompute(run.recompute)
      .loss_chunk_tokens(run.loss_chunk_tokens);
}

}  // namespace

// decoder_options, below, takes one of these.
const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"gpt", "llama"};
  return names;
}

void check_model(const ModelOptions& model) {
  // Head dims are even: rotary positions rotate pairs of dims.
  if (model.dim % 2 != 0) {
    fail<InvalidArgument>(
        "recipe: model.dim {}; an even number is required (rotary positions rotate pairs); "
        "nearest: {}",
        model.dim, model.dim + 1);
  }
  if (model.dim / 2 % model.n_heads != 0) {
    fail<InvalidArgument>(
        "recipe: model.n_heads {} with model.dim {}; 2 n_heads must divide dim (rotary positions "
        "rotate pairs); nearest: n_heads {}",
        model.n_heads, model.dim, nearest_divisor(model.dim / 2, model.n_heads));
  }
  // Every KV head serves as many query heads.
  if (model.n_heads % model.kv_heads() != 0) {
    fail<InvalidArgument>(
        "recipe: model.n_kv_heads {} with model.n_heads {}; n_kv_heads must divide n_heads; "
        "nearest: {}",
        model.kv_heads(), model.n_heads, nearest_divisor(model.n_heads, model.kv_heads()));
  }
  // Refuses a model with too many parameters to count.
  decoder_cost(decoder_options(model));
}

DecoderOptions decoder_options(const ModelOptions& options) {
  return options.name == "llama" ? llama_options(options) : gpt_options(options);
}

ModelCost model_cost(const ModelOptions& options, const ModelRun& run) {
  return decoder_cost(decoder_options(options, run));
}

std::unique_ptr<Model> make_model(const ModelOptions& options, const ModelRun& run,
                                  std::int64_t seed) {
  return std::make_unique<DecoderModel>(decoder_options(options, run), seed);
}

}  // namespace armillary::train
