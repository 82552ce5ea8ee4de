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

}  // namespace armillary::train
