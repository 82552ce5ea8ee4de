// known_models.h: models by name, or by a shape that a text spells out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "armillary/predict/cost/step.h"

namespace armillary::cost {

/// The shape of a known model (`llama3-8b`), or
/// `layers=L,hidden=E,heads=H,kv_heads=G,head_dim=D,ffn=F,vocab=V` with `,gated=false` for two
/// matrices; `kv_heads` and `head_dim` may be left out.
/// @throws InvalidArgument with the nearest name, or for a number that is missing.
ModelShape parse_shape(std::string_view text);

/// The cost of a shape as parse_shape() has it. For a denoising step it is a DiT of that shape,
/// with cross-attention to `text_tokens` if there are any. Logits exist for 1,024 tokens at once,
/// and the input of the loss is kept beside those of layers; cost_of() has all logits, and layers
/// alone.
/// @throws InvalidArgument as parse_shape() and cost_of().
ModelCost parse_model(std::string_view text, StepKind kind = StepKind::Train, int text_tokens = 0);
std::vector<std::string> model_names();

}  // namespace armillary::cost
