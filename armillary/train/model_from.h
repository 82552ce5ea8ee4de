// model_from.h: a recipe for a model that is there: `--set model.from=PATH` of a folder or a GGUF
// file, with which `--init-from PATH` begins (checkpoint/model_source.h). And the window of such a
// model, which the mask of a recipe must have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "armillary/train/recipe.h"

namespace armillary::train {

/// Gives [model] the keys of the model, all of them. If it has a window, a mask that is causal
/// without one gets it. The result is a recipe like any other: printed and saved with these keys.
/// @throws as open_model_source().
void take_model(Recipe& recipe, const std::string& path);

/// The mask with a window of so many tokens, each itself included: of `documents`,
/// `documents:within=window,left=4095,right=0`; of another text `window:left=4095,right=0`.
std::string mask_with_window(std::string_view mask, std::int64_t tokens);

/// @throws InvalidArgument unless the mask shows each token the keys of the model's window, if it
/// has one.
void check_window(const Recipe& recipe);

}  // namespace armillary::train
