// cases.h: the grid of problems that every strategy must solve exactly, and how a case is run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/plan/strategy.h"

namespace armillary::equivalence {

struct Case {
  std::string strategy;
  std::string layout;
  std::string mask;
  int world = 1;
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  int heads = 4;
  int kv_heads = 4;
  at::ScalarType dtype = at::kDouble;
};
std::string to_string(const Case& c);

/// Everything of issue-sized grids: strategies x layouts x masks x worlds x lengths x heads x
/// dtypes. Illegal combinations (usp whose u does not divide, more head groups than heads) are left
/// out.
std::vector<Case> all_cases();

/// Largest relative max-norm errors against one-device attention.
struct Errors {
  double out = 0, lse = 0, dq = 0, dk = 0, dv = 0;
  double worst() const;
};

/// Runs the case on threads as ranks, forward and backward, through autograd.
/// Throws if bytes moved by an execution differ from those of its plan.
Errors run(const Case& c, std::uint64_t seed);

}  // namespace armillary::equivalence
