// resumable.h: the keys of a recipe that a resumed run may change, in one place.
#pragma once

#include <string>

#include "armillary/train/recipe.h"

namespace armillary::train {

/// Whether a run that resumes may have another value of this key, such as "training.steps", than
/// the run that wrote the checkpoint. All others must be equal.
bool may_change(const std::string& key);

/// @throws InvalidArgument that names the first key that differs and may not, with the value that
/// is `given` and the one that is required, that of `saved`.
void check_resumable(const Recipe& given, const Recipe& saved);

}  // namespace armillary::train
