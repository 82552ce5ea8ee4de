// dit_options.h: options of a DiT (dit.h).
#pragma once

#include "armillary/model/decoder_options.h"
#include "armillary/model/dit_kinds.h"
#include "armillary/model/model_options.h"
#include "armillary/model/objective.h"
#include "armillary/model/picture.h"

namespace armillary::model {

struct DitOptions {
  /// The branches of a layer, and the way in which they are computed: MHA, GELU, biases, no
  /// positions.
  DecoderOptions layers;
  PictureShape picture;
  std::int64_t n_classes = 1;
  std::int64_t text_tokens = 0;  ///< Words of a picture.
  std::int64_t vocab_size = 0;   ///< Words that there are.
  WordsKind words = WordsKind::Joint;
  ModulationKind modulation = ModulationKind::Zero;
  Objective objective = Objective::RectifiedFlow;

  bool has_cross_attention() const { return words == WordsKind::Cross && text_tokens > 0; }
  /// Words in front of the patches.
  std::int64_t words_in_front() const { return words == WordsKind::Joint ? text_tokens : 0; }
  /// Tokens of a sequence.
  std::int64_t tokens() const { return words_in_front() + picture.tokens(); }
};

/// Options for a [model] section. hidden_dim 0 becomes 4 dim. Requires check_model of registry.h.
DitOptions dit_options(const ModelOptions& model);

/// Checks a [model] section of a DiT. @throws InvalidArgument with the nearest legal value.
void check_dit(const ModelOptions& model);

}  // namespace armillary::model
