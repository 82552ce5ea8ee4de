// Exact attention on 4 ranks that are threads of this process, compared with the same call on 1
// rank: every strategy gives the same result up to rounding.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/local.h"

using namespace armillary;

/// Attention on `world` ranks. Each rank takes the tokens that the layout gives it out of Q, K and
/// V, and writes its rows of the output.
at::Tensor attend(int world, const at::Tensor& q_BSHD, const at::Tensor& k_BSGD,
                  const at::Tensor& v_BSGD, const attention::AttentionOptions& options) {
  const plan::Shards owned = plan::shards(options.layout, options.mask, world);
  at::Tensor out_BSHD = at::empty_like(q_BSHD);
  comm::run_ranks(world, [&](comm::Communicator& comm) {
    const at::Tensor mine = at::tensor(plan::positions(owned.q[comm.rank()]), at::kLong);
    out_BSHD.index_copy_(1, mine,
                         attention::sequence_parallel_attention(
                             q_BSHD.index_select(1, mine), k_BSGD.index_select(1, mine),
                             v_BSGD.index_select(1, mine), comm, options));
  });
  return out_BSHD;
}

int main() {
  constexpr std::int64_t kTokens = 1001;  // Not divisible by 4: shards may differ in size.
  const at::Tensor q_BSHD = at::randn({1, kTokens, 8, 64});
  const at::Tensor k_BSGD = at::randn({1, kTokens, 2, 64});
  const at::Tensor v_BSGD = at::randn({1, kTokens, 2, 64});
  attention::AttentionOptions options{.mask = plan::parse_mask("causal", {kTokens, kTokens}),
                                      .layout = plan::parse_layout("zigzag")};
  // The reference, then each strategy on 4 ranks.
  const at::Tensor single = attend(1, q_BSHD, k_BSGD, v_BSGD, options);
  bool exact = true;
  for (const char* strategy : {"ring", "allgather", "ulysses", "usp:u=2"}) {
    options.strategy = strategy;
    const at::Tensor spread = attend(4, q_BSHD, k_BSGD, v_BSGD, options);
    const double difference = (spread - single).abs().max().item<double>();
    fmt::print("max |{} on 4 ranks - 1 rank| = {:.1e}\n", strategy, difference);
    exact = exact && difference < 1e-5;
  }
  return exact ? 0 : 1;
}
