// scale.h: a recipe of any size as one that trains here in seconds.
#pragma once

#include "armillary/train/recipe.h"

namespace armillary::train {

/// Shrinks a recipe; what is small already stays.
///
///   [model]        2 layers; at most 4 KV heads, each for as many query heads as before, of 16
///                  dims; the MLP as many times as wide as dim; the words of text; no longrope;
///                  pictures of 16 x 16 patches and 16 words
///   [training]     256 tokens a sequence at most, 2 sequences a rank along dp, 10 steps
///   [parallelism]  2 ranks along each axis that had more, or 4 along the only one, but 2 along
///                  pp; one thread a rank; the strategy if it is legal there, else with 2 in the
///                  place of larger numbers, else without its keys, else `ring`
///
/// The result is a recipe like any other: printed and saved with these numbers, so that its
/// checkpoints resume without the word. scale_tiny() of it changes nothing.
/// @throws InvalidArgument as model::check_model.
void scale_tiny(Recipe& recipe);

}  // namespace armillary::train
