// gpt_size.h: how big a GPT is, without making one.
#pragma once

#include <cstdint>

#include "armillary/train/recipe.h"

namespace armillary::train {

struct GptSize {
  std::int64_t parameters = 0;
  /// Those that multiply every token: all but the embedding table and the norms. A tied output
  /// counts. Forward takes 2 flops per token and such parameter, backward 4.
  std::int64_t matmul_parameters = 0;
};

/// @throws InvalidArgument if the layers have 2^62 parameters or more.
GptSize gpt_size(const Recipe::Model& model);

}  // namespace armillary::train
