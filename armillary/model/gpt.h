// gpt.h: the decoder (decoder.h) with GELU: a GPT with rotary positions, RMSNorm and no biases.
#pragma once

#include "armillary/model/decoder_options.h"
#include "armillary/model/model_options.h"

namespace armillary::model {

/// Options of the decoder for a [model] section. hidden_dim 0 becomes 4 dim. Requires check_model
/// of registry.h.
DecoderOptions gpt_options(const ModelOptions& model);

}  // namespace armillary::model
