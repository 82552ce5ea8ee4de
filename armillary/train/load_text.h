// load_text.h: the data of a recipe: the text of its dataset_path.
#pragma once

#include "armillary/train/packed_text.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// Reads and packs the recipe's dataset. @throws IoError, InvalidArgument (dataset_path is empty,
/// or the text is shorter than a sequence).
PackedText load_text(const Recipe::Training& training);

}  // namespace armillary::train
