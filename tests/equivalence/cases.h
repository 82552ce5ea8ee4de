// cases.h: the grid of problems that every strategy must solve exactly, and how a case is run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/kernel/testing/feature_sets.h"
#include "armillary/kernel/testing/naive_attention.h"
#include "armillary/plan/strategies/strategy.h"

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
  unsigned features = 0;  ///< A set of kernel/feature_sets.h.
};
std::string to_string(const Case& c);

/// Strategies x layouts x masks x lengths x heads x dtypes on `world` ranks. Illegal combinations
/// (usp whose u does not divide, more head groups than heads) are left out.
std::vector<Case> grid_cases(int world);

/// Every set of features (each alone, each pair, all) x strategies x contiguous and zigzag x MHA,
/// GQA and MQA x dtypes x a few masks, self-attention and cross-attention.
std::vector<Case> feature_cases(int world);

/// `count` cases of both grids on these worlds, in an order that the seed draws; at least one of
/// each strategy, which come first.
std::vector<Case> drawn_cases(const std::vector<int>& worlds, std::uint64_t seed,
                              std::size_t count);

/// Largest relative max-norm errors against one-device attention. Sinks: the sum of all ranks'
/// shares. The largest logit: NaN if ranks differ in a bit.
struct LargestErrors {
  double out = 0, lse = 0, dq = 0, dk = 0, dv = 0, dsinks = 0, max_logit = 0;
  double worst() const;
};
std::string to_string(const LargestErrors& errors);

/// A case's inputs and features, drawn from a seed.
struct Drawn {
  plan::Mask mask;
  kernel::Sequences whole;
  kernel::Features features;
};
Drawn draw(const Case& c, std::uint64_t seed);

/// Forward and backward of one rank, through autograd, on the device of its context: results for
/// its own rows, in the order of its shards, on the CPU. `dsinks_H` is its share of the sum.
kernel::Results on_rank(const Case& c, const Drawn& drawn, comm::Communicator& comm);

/// A function that each rank calls before its attention.
using Prepare = std::function<void(comm::Communicator&)>;

/// Results of all ranks put together, forward and backward, through autograd, on threads as ranks.
kernel::Results spread(
    const Case& c, const Drawn& drawn, const comm::LocalOptions& options = {},
    const Prepare& prepare = [](comm::Communicator&) {});

/// Errors of spread().
LargestErrors run(const Case& c, std::uint64_t seed);

}  // namespace armillary::equivalence
