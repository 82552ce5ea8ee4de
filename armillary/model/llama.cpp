#include "armillary/model/llama.h"

#include <limits>

#include "armillary/core/error.h"
#include "armillary/model/gpt.h"

namespace armillary::model {
namespace {

/// Width of the MLP, given or by Llama's rule.
std::int64_t llama_hidden_dim(const ModelOptions& model) {
  if (model.hidden_dim != 0) return model.hidden_dim;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  // 8/3 dim and the product are both cut to integers, as in Llama's sources: the sizes of the
  // published weights depend on it.
  const std::int64_t uncut = 8 * model.dim / 3;
  const double width = model.ffn_dim_multiplier * static_cast<double>(uncut);
  // Round up to a multiple, if the result fits an int32.
  if (width <= static_cast<double>(kMost)) {
    const std::int64_t steps =
        (static_cast<std::int64_t>(width) + model.multiple_of - 1) / model.multiple_of;
    if (steps > 0 && steps <= kMost / model.multiple_of) return steps * model.multiple_of;
  }
  fail<InvalidArgument>(
      "recipe: model.dim {} with model.ffn_dim_multiplier {} and model.multiple_of {}; a "
      "feed-forward of width 1 to {} is required; nearest: model.hidden_dim {}",
      model.dim, model.ffn_dim_multiplier, model.multiple_of, kMost,
      width < 1 ? model.multiple_of : kMost);
}

}  // namespace

DecoderOptions llama_options(const ModelOptions& model) {
  return gpt_options(model)
      .head_dim(model.head_dim)
      .hidden_dim(llama_hidden_dim(model))
      .feed_forward(FeedForwardKind::SwiGlu)
      .qkv_bias(model.qkv_bias)
      .qk_norm(model.qk_norm)
      .rope_scaling(parse_rope_scaling(model.rope_scaling));
}

}  // namespace armillary::model
