// causal_problem.h: a small causal problem with grouped KV heads, in fp32, for tests.
#pragma once

#include "armillary/plan/problem.h"

namespace armillary::plan {

inline Problem causal_problem(int world, std::int64_t tokens) {
  return {.world = world,
          .batch = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 8,
          .value_dim = 8,
          .dtype = Dtype::F32,
          .mask = parse_mask("causal", {tokens, tokens}),
          .layout = parse_layout("zigzag")};
}

}  // namespace armillary::plan
