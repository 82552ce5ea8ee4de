// rope_scaling.h: rotary frequencies for sequences longer than those of the first training, as
// transformers computes them (modeling_rope_utils.py).
//
//   none
//   linear:factor=F                           all divided by F
//   dynamic:factor=F,original=S               a larger theta for sequences above S tokens (NTK)
//   llama3:factor=F,low=A,high=B,original=S   periods above S / A divided by F, below S / B kept
//   yarn:factor=F,original=S[,attention=M][,beta_fast=32][,beta_slow=1][,truncate=true]
//                                             arXiv:2309.00071; M is 0.1 ln F + 1 if left out
//   longrope:original=S,short=R;R;..,long=R;R;..[,factor=1][,attention=M]
//                                             arXiv:2402.13753; a divisor for each pair of dims: of
//                                             `long` for sequences above S tokens; M is
//                                             sqrt(1 + ln F / ln S) if left out
//
// Frequencies depend on the length of the whole sequence, which is the same on all ranks. No
// tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace armillary::model {

enum class RopeKind : std::uint8_t { None, Linear, Dynamic, Llama3, Yarn, LongRope };

struct RopeScaling {
  RopeKind kind = RopeKind::None;
  double factor = 1;
  std::int64_t original = 0;  ///< S: tokens of the sequences of the first training.
  double low = 0, high = 0;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention = {};  ///< M: factor of cos and sin.
  std::vector<double> short_factors = {}, long_factors = {};

  bool operator==(const RopeScaling&) const = default;
};

/// @throws InvalidArgument that begins with `recipe: model.rope_scaling`, for a text of no such
/// form and for numbers without a meaning, such as a factor below 1.
RopeScaling parse_rope_scaling(std::string_view text);

/// The text that parse_rope_scaling() reads; keys with their defaults are left out.
std::string to_string(const RopeScaling& scaling);

/// The words of the kinds, in the order of the enumerators.
const std::vector<std::string>& rope_kinds();

/// Sizes on which frequencies depend.
struct RotaryShape {
  std::int64_t head_dim = 0;  ///< D, even.
  double theta = 10000;       ///< Base of the periods.
  std::int64_t seq_len = 0;   ///< Tokens of the whole sequence; 0: few.
};

/// @throws InvalidArgument if the scaling has not D / 2 divisors, or needs a larger theta or D.
void check_rotary_shape(const RopeScaling& scaling, const RotaryShape& shape);

struct RotaryFrequencies {
  std::vector<double> of_pair;  ///< D / 2: the angle of a pair of dims is its frequency x position.
  double scale = 1;             ///< M.
};

/// theta^(-2 i / D) for pair i (RoFormer, arXiv:2104.09864), scaled. Cost: O(D).
/// @throws as check_rotary_shape().
RotaryFrequencies rotary_frequencies(const RopeScaling& scaling, const RotaryShape& shape);

}  // namespace armillary::model
