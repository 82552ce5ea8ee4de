#include "armillary/serve/context_side.h"

#include "armillary/core/checked.h"

namespace armillary::serve {

std::string_view to_string(ContextSide side) {
  return side == ContextSide::Queries ? "q" : "kv";
}

std::int64_t bytes_of_side(const ContextShape& shape, ContextSide side) {
  if (side == ContextSide::KeysAndValues) {
    return checked_product("serve: bytes of K and V",
                           {shape.cached_tokens, shape.kv_heads, shape.head_dim + shape.value_dim,
                            shape.element_bytes});
  }
  return checked_product(
      "serve: bytes of Q and partial results",
      {shape.new_tokens, shape.heads,
       shape.head_dim * shape.element_bytes + (shape.value_dim + 1) * shape.accumulator_bytes});
}

ContextSide cheaper_side(const ContextShape& shape) {
  const bool queries =
      bytes_of_side(shape, ContextSide::Queries) < bytes_of_side(shape, ContextSide::KeysAndValues);
  return queries ? ContextSide::Queries : ContextSide::KeysAndValues;
}

}  // namespace armillary::serve
