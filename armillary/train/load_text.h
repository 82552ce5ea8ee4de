// load_text.h: the training data of a recipe, from the files of its dataset_path.
#pragma once

#include "armillary/train/packed_text.h"
#include "armillary/train/training_options.h"

namespace armillary::train {

/// Reads the files with one of dataset_extensions, each a document, and packs them by seq_len and
/// seed. @throws IoError as io::read_text; InvalidArgument if dataset_path is empty or the text is
/// shorter than a sequence.
PackedText load_text(const TrainingOptions& training);

}  // namespace armillary::train
