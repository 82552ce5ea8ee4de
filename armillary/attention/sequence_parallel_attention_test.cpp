// sequence_parallel_attention_test.cpp: the autograd function over thread ranks: gradients against
// finite differences, errors of bf16 and of narrow transfer dtypes against one device, strided
// inputs, and what is refused. Equality of all strategies is tested in tests/equivalence.
#include "armillary/attention/sequence_parallel_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/testing/naive_attention.h"
#include "tests/finite_differences.h"
#include "tests/sanitized.h"
#include "tests/tolerance.h"

namespace armillary::attention {
namespace {

at::Tensor shard(const at::Tensor& global_BSHD, const plan::Runs& runs) {
  return global_BSHD.index_select(1, at::tensor(plan::positions(runs), at::kLong)).contiguous();
}

/// One problem over some ranks; its operator takes and returns whole tensors.
struct Setting {
  int world = 2;
  AttentionOptions options;

  /// Output, and gradients of sum(out * dout), as whole tensors.
  kernel::Results operator()(const kernel::Sequences& whole) const {
    const plan::Shards owned = plan::shards(options.layout, options.mask, world);
    kernel::Results results{at::zeros_like(whole.dout_BSHE),
                            {},
                            at::zeros_like(whole.q_BSHD),
                            at::zeros_like(whole.k_BSGD),
                            at::zeros_like(whole.v_BSGE)};
    comm::run_ranks(world, [&](comm::Communicator& comm) {
      const plan::Runs& q_runs = owned.q[comm.rank()];
      const plan::Runs& kv_runs = owned.kv[comm.rank()];
      at::Tensor q = shard(whole.q_BSHD, q_runs).requires_grad_(true);
      at::Tensor k = shard(whole.k_BSGD, kv_runs).requires_grad_(true);
      at::Tensor v = shard(whole.v_BSGE, kv_runs).requires_grad_(true);
      const at::Tensor out = sequence_parallel_attention(q, k, v, comm, options);
      out.backward(shard(whole.dout_BSHE, q_runs));
      const auto put = [](at::Tensor& into, const plan::Runs& runs, const at::Tensor& part) {
        into.index_copy_(1, at::tensor(plan::positions(runs), at::kLong), part.detach());
      };
      put(results.out_BSHE, q_runs, out);
      put(results.dq_BSHD, q_runs, q.grad());
      put(results.dk_BSGD, kv_runs, k.grad());
      put(results.dv_BSGE, kv_runs, v.grad());
    });
    return results;
  }
};

AttentionOptions options_of(const char* mask, std::int64_t tokens, const char* layout,
                            const char* strategy) {
  return {.mask = plan::parse_mask(mask, {tokens, tokens}),
          .layout = plan::parse_layout(layout),
          .strategy = strategy};
}

/// Central differences of sum(out * dout) in every element of q, k and v, in fp64.
TEST(SequenceParallelAttention, GradientsEqualFiniteDifferences) {
  for (const char* strategy : {"ring", "allgather", "ulysses", "usp:u=2"}) {
    const bool two_axes = std::string(strategy) == "usp:u=2";
    const Setting run{two_axes ? 4 : 2, options_of("window:left=3,right=1", 7, "zigzag", strategy)};
    const kernel::Sequences whole =
        kernel::random_sequences({1, 2, 1, 2, 3}, run.options.mask, at::kDouble, 11);
    const kernel::Results actual = run(whole);
    const auto loss = [&] { return (run(whole).out_BSHE * whole.dout_BSHE).sum().item<double>(); };
    for (const auto& [input, gradient] :
         {std::pair(whole.q_BSHD, actual.dq_BSHD), std::pair(whole.k_BSGD, actual.dk_BSGD),
          std::pair(whole.v_BSGE, actual.dv_BSGE)}) {
      expect_finite_differences(input, gradient, loss, strategy);
    }
  }
}

/// Errors of output and gradients against fp64.
std::array<double, 4> errors_of(const kernel::Results& actual, const kernel::Results& exact) {
  return {kernel::relative_error(actual.out_BSHE, exact.out_BSHE),
          kernel::relative_error(actual.dq_BSHD, exact.dq_BSHD),
          kernel::relative_error(actual.dk_BSGD, exact.dk_BSGD),
          kernel::relative_error(actual.dv_BSGE, exact.dv_BSGE)};
}

/// PyTorch's causal attention on one device, in the dtype of `whole`.
kernel::Results one_device(const kernel::Sequences& whole) {
  const auto leaf = [](const at::Tensor& t) {
    return t.transpose(1, 2).contiguous().requires_grad_(true);
  };
  const at::Tensor q = leaf(whole.q_BSHD);
  const at::Tensor k = leaf(whole.k_BSGD);
  const at::Tensor v = leaf(whole.v_BSGE);
  const at::Tensor out = at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
  out.backward(whole.dout_BSHE.transpose(1, 2));
  kernel::Results results;
  results.out_BSHE = out.detach().transpose(1, 2);
  results.dq_BSHD = q.grad().transpose(1, 2);
  results.dk_BSGD = k.grad().transpose(1, 2);
  results.dv_BSGE = v.grad().transpose(1, 2);
  return results;
}

/// Rounding errors of bf16 stay near those of one-device bf16 attention, and do not grow with the
/// world. Each row: a strategy for 2 ranks and the same for 16.
TEST(SequenceParallelAttention, Bf16ErrorIsThatOfOneDevice) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] about rounding, not about memory or threads";
  constexpr std::int64_t kTokens = 512;
  const plan::Mask mask = plan::parse_mask("causal", {kTokens, kTokens});
  const kernel::Sequences whole =
      kernel::random_sequences({1, 4, 4, 64, 64}, mask, at::kBFloat16, 3);
  const kernel::Results exact = kernel::naive_attention(whole, mask, 0.125);
  const auto theirs = errors_of(one_device(whole), exact);
  const auto ratio_of = [&](int world, const char* strategy) {
    const Setting run{world, options_of("causal", kTokens, "zigzag", strategy)};
    const auto ours = errors_of(run(whole), exact);
    double ratio = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) ratio = std::max(ratio, ours[i] / theirs[i]);
    EXPECT_LE(ratio, kBf16Ratio) << strategy << " world " << world;
    return ratio;
  };
  const std::pair<const char*, const char*> strategies[] = {
      {"ring", "ring"},
      {"ring:backward=q", "ring:backward=q"},
      {"allgather", "allgather"},
      {"allgather:slices=2", "allgather:slices=2"},
      {"usp:u=2", "usp:u=2"},
      {"usp:u=2,inner=ring", "usp:u=2,inner=ring"},
      {"double_ring:window=2", "double_ring:window=4"},
      {"bidirectional_ring", "bidirectional_ring"},
      {"tokenring", "tokenring"},
      {"tokenring:nodes=2", "tokenring:nodes=4"},
      {"attention2d:rows=2", "attention2d:rows=4"},
      {"attention2d:rows=1,overlap=true", "attention2d:rows=4,overlap=true"},
      {"startrail:c=1", "startrail:c=2"},
      {"startrail:c=1", "startrail:c=4"},
      {"grid:u=1,rq=1,rk=2", "grid:u=2,rq=4,rk=2,row=ring,col=double_ring,window=2"},
      {"auto:traffic", "auto:traffic"}};
  for (const auto& [of_two, of_sixteen] : strategies) {
    const double two = ratio_of(2, of_two);
    const double sixteen = ratio_of(16, of_sixteen);
    EXPECT_LE(sixteen, 1.1 * two) << of_sixteen;
    fmt::print("{:<55} {:.2f} on 2 ranks, {:.2f} on 16\n", of_sixteen, two, sixteen);
  }
}

/// Prints the error with sums that travel in bf16 over that with sums that travel in fp32. It is
/// largest for a sum that is rounded on each of n - 1 hops.
TEST(SequenceParallelAttention, NarrowTransferCostsItsRoundings) {
  for (const char* strategy :
       {"ring", "allgather", "tokenring", "startrail:c=2", "grid:u=1,rq=4,rk=2"}) {
    if (sanitizer_samples() && std::string(strategy) != "ring") continue;
    Setting run{8, options_of("causal", 512, "zigzag", strategy)};
    const kernel::Sequences whole =
        kernel::random_sequences({1, 4, 2, 64, 64}, run.options.mask, at::kBFloat16, 3);
    const kernel::Results exact = kernel::naive_attention(whole, run.options.mask, 0.125);
    const auto results = [&](plan::TransferDtype transfer_dtype) {
      run.options.transfer_dtype = transfer_dtype;
      return run(whole);
    };
    const kernel::Results unrounded = results(plan::TransferDtype::Accumulator);
    const kernel::Results rounded = results(plan::TransferDtype::Input);
    EXPECT_FALSE(at::equal(unrounded.out_BSHE, rounded.out_BSHE) &&
                 at::equal(unrounded.dq_BSHD, rounded.dq_BSHD) &&
                 at::equal(unrounded.dk_BSGD, rounded.dk_BSGD))
        << strategy << ": the same bits, so nothing was rounded";
    const auto wide = errors_of(unrounded, exact);
    const auto narrow = errors_of(rounded, exact);
    fmt::print("{:<20}", strategy);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const double ratio = narrow[i] / wide[i];
      fmt::print(" {}: {:.2f}", std::array{"out", "dq", "dk", "dv"}[i], ratio);
      EXPECT_LE(ratio, 4) << strategy;
    }
    fmt::print("\n");
  }
}

TEST(SequenceParallelAttention, TakesStridedInputsAndWorksWithoutGradients) {
  const AttentionOptions options = options_of("causal", 12, "contiguous", "ring");
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    const at::Tensor q = at::randn({1, 3, 6, 4}).transpose(1, 2);
    const at::Tensor kv = at::randn({1, 6, 3, 8});
    const at::Tensor actual =
        sequence_parallel_attention(q, kv.narrow(3, 0, 4), kv.narrow(3, 4, 4), comm, options);
    EXPECT_FALSE(actual.requires_grad());
    const at::Tensor required =
        sequence_parallel_attention(q.contiguous(), kv.narrow(3, 0, 4).contiguous(),
                                    kv.narrow(3, 4, 4).contiguous(), comm, options);
    EXPECT_TRUE(at::equal(actual, required));
  });
}

void expect_error(const std::function<void(comm::Communicator&)>& action, const std::string& part) {
  try {
    comm::run_ranks(2, action);
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(part));
    return;
  }
  ADD_FAILURE() << "not refused: " << part;
}

TEST(SequenceParallelAttention, RefusesWhatDoesNotFit) {
  const AttentionOptions ring = options_of("causal", 8, "zigzag", "ring");
  const auto call = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const AttentionOptions& options) {
    return [=](comm::Communicator& comm) { sequence_parallel_attention(q, k, v, comm, options); };
  };
  const at::Tensor x = at::randn({1, 4, 2, 8});
  expect_error(call(x, x, x.select(0, 0), ring), "v has 3 dims; [batch, tokens, heads, dim]");
  expect_error(call(x, x.to(at::kDouble), x, ring), "k is Double on cpu, q is Float");
  expect_error(call(x.to(at::kInt), x.to(at::kInt), x.to(at::kInt), ring), "q is Int");
  expect_error(call(x, x.narrow(3, 0, 4), x, ring), "q and k dims must agree");
  const at::Tensor y = at::randn({1, 5, 2, 8});
  expect_error(call(y, y, y, ring), "5 tokens on rank");
  expect_error(call(y, y, y, ring), "layout zigzag gives it 4");
  const at::Tensor odd = at::randn({1, 4, 3, 8});
  expect_error(call(odd, x, x, ring), "3 heads");
  expect_error(call(x, x, x, options_of("causal", 8, "zigzag", "rign")), "nearest: ring");
  expect_error(call(x, x, x, options_of("causal", 8, "zigzag", "usp:u=3")), "u must divide world");
}

}  // namespace
}  // namespace armillary::attention
