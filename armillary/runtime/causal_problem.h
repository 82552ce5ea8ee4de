// causal_problem.h: a small problem for the tests of this folder.
#pragma once

#include "armillary/plan/problem.h"

namespace armillary::runtime {

inline plan::Problem causal_problem(int world, std::int64_t tokens) {
  return {.world = world,
          .batch = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 8,
          .value_dim = 8,
          .dtype = plan::Dtype::F32,
          .mask = plan::parse_mask("causal", {tokens, tokens}),
          .layout = plan::parse_layout("zigzag")};
}

}  // namespace armillary::runtime
