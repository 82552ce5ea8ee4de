#include "armillary/model/dit_options.h"

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/model/dit_cost.h"

namespace armillary::model {
namespace {

/// Refuses a side of a picture that patches do not fill.
void check_side(const char* key, std::int64_t side, std::int64_t patch) {
  if (side % patch == 0) return;
  fail<InvalidArgument>(
      "recipe: model.{} {} with model.patch_size {}; a multiple of patch_size is required; "
      "nearest: {}",
      key, side, patch, (side + patch - 1) / patch * patch);
}

}  // namespace

DitOptions dit_options(const ModelOptions& model) {
  DitOptions options;
  options.layers = DecoderOptions()
                       .dim(model.dim)
                       .n_layers(model.n_layers)
                       .n_heads(model.n_heads)
                       .n_kv_heads(model.n_heads)
                       .hidden_dim(model.hidden_dim == 0 ? 4 * model.dim : model.hidden_dim)
                       .norm_eps(model.norm_eps)
                       .bias(true);
  options.picture = {.height = model.image_height,
                     .width = model.image_width,
                     .channels = model.channels,
                     .patch = model.patch_size};
  options.n_classes = model.n_classes;
  options.text_tokens = model.text_tokens;
  if (model.text_tokens > 0) options.vocab_size = model.vocab_size;
  options.words = words_kind(model.words);
  options.modulation = modulation_kind(model.modulation);
  options.objective = parse_objective(model.objective);
  return options;
}

void check_dit(const ModelOptions& model) {
  if (model.dim % 4 != 0) {
    fail<InvalidArgument>(
        "recipe: model.dim {}; a multiple of 4 is required (sin and cos of rows and columns); "
        "nearest: {}",
        model.dim, (model.dim + 3) / 4 * 4);
  }
  if (model.dim % model.n_heads != 0) {
    fail<InvalidArgument>(
        "recipe: model.n_heads {} with model.dim {}; n_heads must divide dim; nearest: n_heads {}",
        model.n_heads, model.dim, nearest_divisor(model.dim, model.n_heads));
  }
  if (model.text_tokens == 0 && words_kind(model.words) == WordsKind::Cross) {
    fail<InvalidArgument>(
        "recipe: model.words cross with model.text_tokens 0, where there are no words; at least 1 "
        "is required; nearest: model.words = joint");
  }
  check_side("image_height", model.image_height, model.patch_size);
  check_side("image_width", model.image_width, model.patch_size);
  dit_cost(dit_options(model));  // too many parameters to count
}

}  // namespace armillary::model
