#include "armillary/train/load_data.h"

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/model/dit_options.h"
#include "armillary/train/load_text.h"
#include "armillary/train/picture_data.h"
#include "armillary/train/token_data.h"

namespace armillary::train {

std::unique_ptr<Data> load_data(const TrainingOptions& training, corpus::CorpusPart part) {
  const std::string& path = training.dataset_path;
  if (path.empty() || !corpus::is_corpus(path)) {
    return std::make_unique<PackedText>(load_text(training));
  }
  auto data = std::make_unique<TokenData>(path, part, training.seed);
  if (data->seq_len() != training.seq_len) {
    fail<InvalidArgument>(
        "data: training.seq_len {} for '{}', whose sequences have {} tokens; that many are "
        "required, or `armillary data prepare --seq-len {}`",
        training.seq_len, excerpt(path), data->seq_len(), training.seq_len);
  }
  return data;
}

std::unique_ptr<Data> load_data(const Recipe& recipe, corpus::CorpusPart part) {
  if (recipe.model.name != "dit") return load_data(recipe.training, part);
  if (recipe.training.dataset_path.empty()) {
    fail<InvalidArgument>(
        "recipe: training.dataset_path is empty; a .safetensors file of pictures is required, for "
        "example of tools/pictures.py");
  }
  const model::DitOptions dit = model::dit_options(recipe.model);
  return std::make_unique<PictureData>(recipe.training.dataset_path,
                                       PictureOptions{.shape = dit.picture,
                                                      .n_classes = dit.n_classes,
                                                      .text_tokens = dit.text_tokens,
                                                      .vocab_size = dit.vocab_size,
                                                      .words = dit.words,
                                                      .class_dropout = recipe.model.class_dropout,
                                                      .seed = recipe.training.seed});
}

std::unique_ptr<Data> load_validation_data(const Recipe& recipe) {
  const TrainingOptions& training = recipe.training;
  if (training.validation_interval == 0) return nullptr;
  Recipe validation = recipe;
  const bool is_pictures = recipe.model.name == "dit";
  if (!training.validation_path.empty()) {
    validation.training.dataset_path = training.validation_path;
  } else if (is_pictures || !corpus::is_corpus(training.dataset_path)) {
    fail<InvalidArgument>(
        "data: training.validation_interval = {} with training.dataset_path '{}', which is {} "
        "without a validation part; training.validation_path is required{}",
        training.validation_interval, excerpt(training.dataset_path),
        is_pictures ? "pictures" : "text",
        is_pictures ? "" : ", or data of `armillary data prepare --validation`");
  }
  return load_data(validation, corpus::CorpusPart::Validation);
}

}  // namespace armillary::train
