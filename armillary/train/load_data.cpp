#include "armillary/train/load_data.h"

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/train/load_text.h"
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

std::unique_ptr<Data> load_validation_data(const TrainingOptions& training) {
  if (training.validation_interval == 0) return nullptr;
  TrainingOptions validation = training;
  if (!training.validation_path.empty()) {
    validation.dataset_path = training.validation_path;
  } else if (!corpus::is_corpus(training.dataset_path)) {
    fail<InvalidArgument>(
        "data: training.validation_interval = {} with training.dataset_path '{}', which is text "
        "without a validation part; training.validation_path is required, or data of `armillary "
        "data prepare --validation`",
        training.validation_interval, excerpt(training.dataset_path));
  }
  return load_data(validation, corpus::CorpusPart::Validation);
}

}  // namespace armillary::train
