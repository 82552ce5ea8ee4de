// Exact attention by the installed library: 4 ranks that are threads, compared with 1 rank.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <armillary/attention/sequence_parallel_attention.h>
#include <armillary/comm/local.h>

#include <iostream>

using namespace armillary;

/// Attention on `world` ranks, each with the tokens that the layout gives it.
at::Tensor attend(int world, const at::Tensor& q_BSHD, const at::Tensor& k_BSGD,
                  const at::Tensor& v_BSGD, const attention::AttentionOptions& options) {
  const plan::Shards owned = plan::shards(options.layout, options.mask, world);
  at::Tensor out_BSHD = at::empty_like(q_BSHD);
  comm::run_ranks(world, [&](comm::Communicator& comm) {
    const at::Tensor mine = at::tensor(plan::positions(owned.q[comm.rank()]), at::kLong);
    const auto part = [&](const at::Tensor& x_BSHD) { return x_BSHD.index_select(1, mine); };
    out_BSHD.index_copy_(1, mine,
                         attention::sequence_parallel_attention(part(q_BSHD), part(k_BSGD),
                                                                part(v_BSGD), comm, options));
  });
  return out_BSHD;
}

int main() {
  const at::Tensor q_BSHD = at::randn({1, 301, 4, 32}), k_BSGD = at::randn({1, 301, 2, 32}),
                   v_BSGD = at::randn({1, 301, 2, 32});
  attention::AttentionOptions options{.mask = plan::parse_mask("causal", {301, 301}),
                                      .layout = plan::parse_layout("zigzag")};
  const at::Tensor single = attend(1, q_BSHD, k_BSGD, v_BSGD, options);
  options.strategy = "usp:u=2";
  const at::Tensor spread = attend(4, q_BSHD, k_BSGD, v_BSGD, options);
  const double difference = (spread - single).abs().max().item<double>();
  std::cout << "max |usp on 4 ranks - 1 rank| = " << difference << "\n";
  return difference < 1e-5 ? 0 : 1;
}
