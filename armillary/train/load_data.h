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

/// The data of the validation loss: those of training.validation_path, of prepared ones their
/// validation part, or the validation part of training.dataset_path. Null if
/// training.validation_interval is 0. @throws as load_data, or InvalidArgument if dataset_path is
/// text, which has no parts, and validation_path is empty.
std::unique_ptr<Data> load_validation_data(const TrainingOptions& training);

}  // namespace armillary::train
