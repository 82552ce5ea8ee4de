// gpt.h: the decoder (decoder.h) with GELU: a GPT with rotary positions, RMSNorm and no biases.
#pragma once

#include "armillary/train/models/decoder_options.h"
#include "armillary/train/models/model_options.h"

namespace armillary::train {

/// hidden_dim 0: 4 dim. Vocabulary: that of packed_text.h.
DecoderOptions gpt_options(const ModelOptions& model);

}  // namespace armillary::train
