// small_calls.h: strategies, options and inputs of small calls of attention, shared by the tests of
// this folder.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/communicator.h"
#include "armillary/comm/local.h"

namespace armillary::attention {

/// A strategy and a number of ranks.
struct Spread {
  int world;
  const char* strategy;
};
inline constexpr Spread kSpreads[] = {{1, "ring"},          {2, "ring"},
                                      {4, "ring"},          {2, "ulysses"},
                                      {4, "ulysses"},       {4, "ulysses:qkv=packed"},
                                      {2, "usp:u=2"},       {4, "usp:u=2"},
                                      {4, "startrail:c=2"}, {4, "attention2d:rows=2"},
                                      {3, "tokenring"},     {4, "grid:u=2,rq=1,rk=2"}};
inline constexpr std::int64_t kSmallTokens = 29;

inline AttentionOptions causal_options(const char* strategy) {
  return {.mask = plan::parse_mask("causal", {kSmallTokens, kSmallTokens}),
          .layout = plan::parse_layout("zigzag"),
          .strategy = strategy};
}

/// Random inputs of one rank, the same in every run; all require gradients.
struct Leaves {
  at::Tensor q, k, v, sinks;

  Leaves(const comm::Communicator& comm, const AttentionOptions& options, at::ScalarType dtype) {
    const auto owned = plan::shards(options.layout, options.mask, comm.world());
    const std::int64_t tokens = plan::tokens(owned.q[comm.rank()]);
    const auto leaf = [&](std::int64_t heads, std::int64_t dim, std::uint64_t seed) {
      at::Generator generator =
          at::detail::createCPUGenerator(seed + std::uint64_t{10} * comm.rank());
      return at::randn({2, tokens, heads, dim}, generator).to(dtype).requires_grad_(true);
    };
    q = leaf(4, 8, 1);
    k = leaf(4, 8, 2);
    v = leaf(4, 16, 3);
    sinks = at::linspace(-1, 1, 4, at::kFloat).requires_grad_(true);
  }
  std::vector<at::Tensor> grads() const { return {q.grad(), k.grad(), v.grad(), sinks.grad()}; }
};

inline void expect_same_bits(const at::Tensor& actual, const at::Tensor& required,
                             const std::string& where) {
  EXPECT_TRUE(at::equal(actual, required))
      << where << ": differs by "
      << (actual.to(at::kDouble) - required.to(at::kDouble)).abs().max().item<double>();
}

inline void expect_same_grads(const Leaves& actual, const Leaves& required,
                              const std::string& where) {
  for (std::size_t i = 0; i < 4; ++i) {
    expect_same_bits(actual.grads()[i], required.grads()[i],
                     where + " gradient " + std::to_string(i));
  }
}

/// Runs `body` on all ranks of every spread, in fp32 and in bf16. `where` names the case in failure
/// texts.
inline void on_every_spread(
    const std::function<void(comm::Communicator& comm, const char* strategy, at::ScalarType dtype,
                             const std::string& where)>& body) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Spread& spread : kSpreads) {
      const std::string where =
          std::string(spread.strategy) + " on " + std::to_string(spread.world);
      comm::run_ranks(spread.world,
                      [&](comm::Communicator& comm) { body(comm, spread.strategy, dtype, where); });
    }
  }
}

}  // namespace armillary::attention
