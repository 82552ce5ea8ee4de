// load_data.h: the data of a recipe, whichever kind its dataset_path is.
#pragma once

#include <memory>

#include "armillary/train/data.h"
#include "armillary/train/training_options.h"

namespace armillary::train {

/// The folder of `armillary data prepare` that training.dataset_path names, in the order of
/// training.seed, or text as load_text(). @throws as TokenData, or InvalidArgument if seq_len is
/// not that of the folder; as load_text().
std::unique_ptr<Data> load_data(const TrainingOptions& training);

}  // namespace armillary::train
