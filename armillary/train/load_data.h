// load_data.h: the data of a recipe, whichever kind its dataset_path is.
#pragma once

#include <memory>

#include "armillary/text/corpus/index.h"
#include "armillary/train/data.h"
#include "armillary/train/training_options.h"

namespace armillary::train {

/// The part of a folder of `armillary data prepare` that training.dataset_path names, in the order
/// of training.seed, or text as load_text(), which has no parts. @throws as TokenData, or
/// InvalidArgument if seq_len is not that of the folder; as load_text().
std::unique_ptr<Data> load_data(const TrainingOptions& training,
                                corpus::CorpusPart part = corpus::CorpusPart::Train);

}  // namespace armillary::train
