#include "armillary/attention/attention_shape.h"

#include <fmt/ranges.h>

#include <string>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::attention {

AttentionShape attention_shape_of(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                  const at::Tensor& v_BLGE) {
  for (const auto& [name, tensor] :
       {std::pair("q", &q_BLHD), std::pair("k", &k_BLGD), std::pair("v", &v_BLGE)}) {
    if (tensor->dim() != 4) {
      fail<InvalidArgument>("attention: {} has {} dims; [batch, tokens, heads, dim] is required",
                            name, tensor->dim());
    }
    if (tensor->scalar_type() != q_BLHD.scalar_type() || !tensor->device().is_cpu()) {
      fail<InvalidArgument>("attention: {} is {} on {}, q is {}; all must be alike, on the CPU",
                            name, at::toString(tensor->scalar_type()), tensor->device().str(),
                            at::toString(q_BLHD.scalar_type()));
    }
  }
  const bool alike = k_BLGD.size(0) == q_BLHD.size(0) && v_BLGE.size(0) == q_BLHD.size(0) &&
                     k_BLGD.size(1) == v_BLGE.size(1) && k_BLGD.size(2) == v_BLGE.size(2) &&
                     k_BLGD.size(3) == q_BLHD.size(3);
  if (!alike) {
    const auto shape = [](const at::Tensor& t) {
      return fmt::format("[{}]", fmt::join(t.sizes(), ", "));
    };
    fail<InvalidArgument>(
        "attention: q {}, k {}, v {}; batches, k and v tokens and heads, q and k dims must agree",
        shape(q_BLHD), shape(k_BLGD), shape(v_BLGE));
  }
  return {.batch = q_BLHD.size(0),
          .q_tokens = q_BLHD.size(1),
          .kv_tokens = k_BLGD.size(1),
          .heads = q_BLHD.size(2),
          .kv_heads = k_BLGD.size(2),
          .head_dim = q_BLHD.size(3),
          .value_dim = v_BLGE.size(3),
          .dtype = q_BLHD.scalar_type()};
}

}  // namespace armillary::attention
