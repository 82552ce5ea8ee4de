// resumable.h: the keys of a recipe that a resumed run may change, in one place.
#pragma once

#include <string>
#include <vector>

namespace armillary::train {

/// Whether a run that resumes may have another value of this key, such as "training.steps", than
/// the run that wrote the checkpoint. All others must be equal.
bool may_change(const std::string& key);

/// Compares the settings() of two recipes. @throws InvalidArgument that names the first key that
/// differs and may not, with its value in `settings` and the one that is required, that of
/// `saved`.
void check_resumable(const std::vector<std::string>& settings,
                     const std::vector<std::string>& saved);

}  // namespace armillary::train
