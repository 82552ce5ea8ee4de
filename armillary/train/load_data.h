// load_data.h: the data of a recipe, whichever kind its dataset_path is.
#pragma once

#include <memory>

#include "armillary/text/corpus/index.h"
#include "armillary/train/data.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// Text of training.dataset_path in the order of training.seed: the part of a folder of `armillary
/// data prepare`, or text as load_text(), which has no parts. @throws as TokenData, or
/// InvalidArgument if seq_len is not that of the folder; as load_text().
std::unique_ptr<Data> load_data(const TrainingOptions& training,
                                corpus::CorpusPart part = corpus::CorpusPart::Train);

/// The data that the recipe's model reads: text, or the file of pictures (picture_data.h) of a dit,
/// which has no parts. @throws as above; as PictureData.
std::unique_ptr<Data> load_data(const Recipe& recipe,
                                corpus::CorpusPart part = corpus::CorpusPart::Train);

/// The data of the validation loss: those of training.validation_path, of prepared ones their
/// validation part, or the validation part of training.dataset_path. Null if
/// training.validation_interval is 0. @throws as load_data, or InvalidArgument if dataset_path is
/// text or pictures, which have no parts, and validation_path is empty.
std::unique_ptr<Data> load_validation_data(const Recipe& recipe);

}  // namespace armillary::train
