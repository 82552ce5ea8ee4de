// gpt.h: the decoder (decoder.h) with GELU: a GPT with rotary positions, RMSNorm and no biases.
#pragma once

#include "armillary/train/models/decoder_options.h"
#include "armillary/train/models/model_options.h"

namespace armillary::train {

/// Options of the decoder for a [model] section. hidden_dim 0 becomes 4 dim. The vocabulary is the
/// bytes and the separator of packed_text.h. Requires check_model of registry.h.
DecoderOptions gpt_options(const ModelOptions& model);

}  // namespace armillary::train
