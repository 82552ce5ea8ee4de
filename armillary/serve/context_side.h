// context_side.h: the side that travels when new tokens attend to cached ones over ranks: K, V of
// the cached tokens, or the queries of the new ones with their partial results.
//
//   bytes a rank receives, P ranks      K, V:  (1 - 1/P) cached G (D + E) e
//                                       Q:     (1 - 1/P) new H (D e + (E + 1) a)
//
// With e = a and D = E the two are equal where new / cached is about G / H: results come back,
// which doubles the bytes of Q. The rule of Meta (arXiv:2411.01783), new / all = 2 G / H, counts Q
// alone.
#pragma once

#include <cstdint>
#include <string_view>

namespace armillary::serve {

enum class ContextSide : std::uint8_t { KeysAndValues, Queries };
/// The names are `kv`, `q`.
std::string_view to_string(ContextSide side);

struct ContextShape {
  std::int64_t new_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t value_dim = 1;
  std::int64_t element_bytes = 4;      ///< An element of Q, K or V.
  std::int64_t accumulator_bytes = 4;  ///< An element of partial results.
};

/// Bytes that all ranks receive together if this side travels, over 1 - 1/P.
std::int64_t bytes_of_side(const ContextShape& shape, ContextSide side);
/// The side with fewer bytes; K and V if both are equal.
ContextSide cheaper_side(const ContextShape& shape);

}  // namespace armillary::serve
