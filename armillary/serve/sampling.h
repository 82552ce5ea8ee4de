// sampling.h: the next token from its logits: the most likely one, or one that is drawn.
//
//   logits --temperature--> probabilities --top_k--> --top_p--> drawn by (seed, sequence, position)
//
// A drawn token is a function of the logits and three numbers, so it does not depend on the tokens
// drawn before, on other sequences, or on ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace armillary::serve {

struct Sampling {
  double temperature = 0;  ///< 0: the most likely token; of equal ones that of the lowest number.
  std::int64_t top_k = 0;  ///< Draws among the k most likely tokens; 0: all.
  /// Draws among the most likely tokens whose probabilities first add up to it; 1: all. Taken of
  /// those that top_k leaves.
  double top_p = 1;
  std::uint64_t seed = 0;
};

/// @throws InvalidArgument for values that cannot be.
void check_sampling(const Sampling& sampling);

/// The number of a draw.
struct DrawPlace {
  std::uint64_t sequence = 0;
  std::int64_t position = 0;  ///< The place of the token that is drawn.
};

/// The next token. `logits_V` are finite or -inf, of any floating dtype on the CPU. Requires a
/// legal sampling. @throws InvalidArgument if no logit is a number above -inf, or one is NaN.
std::int64_t next_token(const at::Tensor& logits_V, const Sampling& sampling, DrawPlace place);

}  // namespace armillary::serve
