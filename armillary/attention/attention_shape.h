// attention_shape.h: the shape of a call of attention on one rank, known before its tensors are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace armillary::attention {

/// q_BLHD is [batch, q_tokens, heads, head_dim], k_BLGD [batch, kv_tokens, kv_heads, head_dim],
/// v_BLGE [batch, kv_tokens, kv_heads, value_dim]; all on the CPU.
struct AttentionShape {
  std::int64_t batch = 1;
  std::int64_t q_tokens = 0;  ///< Of this rank, like kv_tokens.
  std::int64_t kv_tokens = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  at::ScalarType dtype = at::kFloat;  ///< kDouble, kFloat, kBFloat16 or kHalf.

  bool operator==(const AttentionShape&) const = default;
};

/// The shape of these three. @throws InvalidArgument if they do not fit each other.
AttentionShape attention_shape_of(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                  const at::Tensor& v_BLGE);

}  // namespace armillary::attention
