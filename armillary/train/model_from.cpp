// model_from.cpp: masks are compared as bands over one document as long as a sequence, which
// decides for shorter documents too.
#include "armillary/train/model_from.h"

#include <fmt/format.h>

#include <memory>
#include <span>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/train/checkpoint/model_source.h"
#include "armillary/train/data.h"

namespace armillary::train {

void take_model(Recipe& recipe, const std::string& path) {
  recipe.model = open_model_source(path)->model();
  std::string& mask = recipe.parallelism.mask;
  const bool is_causal =
      mask == "documents" || mask == "documents:within=causal" || mask == "causal";
  if (recipe.model.sliding_window > 0 && is_causal) {
    mask = mask_with_window(mask, recipe.model.sliding_window);
  }
}

std::string mask_with_window(std::string_view mask, std::int64_t tokens) {
  return reads_documents(mask) ? fmt::format("documents:within=window,left={},right=0", tokens - 1)
                               : fmt::format("window:left={},right=0", tokens - 1);
}

void check_window(const Recipe& recipe) {
  const std::int64_t window = recipe.model.sliding_window;
  if (window == 0) return;
  const std::int64_t length = recipe.training.seq_len;
  const plan::Mask required =
      plan::window_mask({.q = length, .kv = length}, {.left = window - 1}, plan::Align::Start);
  const std::string& mask = recipe.parallelism.mask;
  if (sequence_mask(mask, std::span(&recipe.training.seq_len, 1)) == required) return;
  fail<InvalidArgument>(
      "recipe: parallelism.mask {} with model.sliding_window {}; a mask that shows each token "
      "itself "
      "and the {} before it is required; nearest: {}",
      excerpt(mask), window, window - 1, mask_with_window(mask, window));
}

}  // namespace armillary::train
