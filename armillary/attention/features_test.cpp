// Features of attention over ranks: gradients of sinks, dropout on any world size, the largest
// logit, and refused options. tests/equivalence has every set of features in every strategy.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "armillary/attention/attention.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/dropout.h"
#include "armillary/kernel/testing/feature_sets.h"
#include "armillary/kernel/testing/naive_attention.h"
#include "armillary/plan/testing/every_strategy.h"
#include "tests/finite_differences.h"
#include "tests/sanitized.h"
#include "tests/tolerance.h"

namespace armillary::attention {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct StrategyWorld {
  const char* strategy;
  int ranks;
};
constexpr StrategyWorld kWorlds[] = {{"ring", 1},      {"ring", 2},      {"ring", 3},
                                     {"allgather", 2}, {"ulysses", 2},   {"usp:u=2", 4},
                                     {"allgather", 4}, {"tokenring", 3}, {"startrail:c=2", 4}};

AttentionOptions options_of(const std::string& mask, std::int64_t tokens,
                            const std::string& strategy, const kernel::Features& features) {
  return {.mask = plan::parse_mask(mask, {tokens, tokens}),
          .layout = plan::parse_layout("zigzag"),
          .strategy = strategy,
          .scale = features.score.scale,
          .softcap = features.score.softcap,
          .alibi_slopes_H = features.score.alibi_slopes_H,
          .sinks_H = features.sinks_H,
          .dropout = features.score.dropout};
}

/// Results put together from all ranks; `dsinks` by rank.
struct WorldResults {
  kernel::Results whole;
  std::vector<at::Tensor> dsinks;
};

WorldResults run(int world, const AttentionOptions& options, const kernel::Sequences& x,
                 const comm::LocalOptions& local = {}) {
  const plan::Shards owned = plan::shards(options.layout, options.mask, world);
  WorldResults actual{{at::zeros_like(x.dout_BSHE),
                       {},
                       at::zeros_like(x.q_BSHD),
                       at::zeros_like(x.k_BSGD),
                       at::zeros_like(x.v_BSGE)},
                      std::vector<at::Tensor>(world)};
  const auto rows = [](const plan::Runs& runs) {
    return at::tensor(plan::positions(runs), at::kLong);
  };
  comm::run_ranks(
      world,
      [&](comm::Communicator& comm) {
        const at::Tensor q_rows = rows(owned.q[comm.rank()]);
        const at::Tensor kv_rows = rows(owned.kv[comm.rank()]);
        const at::Tensor q = x.q_BSHD.index_select(1, q_rows).requires_grad_(true);
        const at::Tensor k = x.k_BSGD.index_select(1, kv_rows).requires_grad_(true);
        const at::Tensor v = x.v_BSGE.index_select(1, kv_rows).requires_grad_(true);
        AttentionOptions mine = options;
        if (mine.sinks_H.defined()) {
          mine.sinks_H = mine.sinks_H.detach().clone().requires_grad_(true);
        }
        const at::Tensor out = sequence_parallel_attention(q, k, v, comm, mine);
        out.backward(x.dout_BSHE.index_select(1, q_rows));
        actual.whole.out_BSHE.index_copy_(1, q_rows, out.detach());
        actual.whole.dq_BSHD.index_copy_(1, q_rows, q.grad());
        actual.whole.dk_BSGD.index_copy_(1, kv_rows, k.grad());
        actual.whole.dv_BSGE.index_copy_(1, kv_rows, v.grad());
        if (mine.sinks_H.defined()) actual.dsinks[comm.rank()] = mine.sinks_H.grad();
      },
      local);
  if (options.sinks_H.defined()) actual.whole.dsinks_H = at::stack(actual.dsinks).sum(0);
  return actual;
}

/// Central differences of sum(out * dout) in every element of q, k, v and sinks, in fp64.
TEST(Features, GradientsEqualFiniteDifferences) {
  for (const StrategyWorld& world :
       {StrategyWorld{"ring", 2}, StrategyWorld{"ulysses", 2}, StrategyWorld{"usp:u=2", 4}}) {
    kernel::Features features = kernel::features_of(kernel::kAllFeatures, 2, 0.6);
    features.sinks_H = features.sinks_H.to(at::kDouble);
    const AttentionOptions options =
        options_of("window:left=3,right=1", 6, world.strategy, features);
    const kernel::Sequences x =
        kernel::random_sequences({1, 2, 1, 2, 3}, options.mask, at::kDouble, 11);
    const kernel::Results actual = run(world.ranks, options, x).whole;
    const auto loss = [&] {
      return (run(world.ranks, options, x).whole.out_BSHE * x.dout_BSHE).sum().item<double>();
    };
    for (const auto& [input, gradient] :
         {std::pair(x.q_BSHD, actual.dq_BSHD), std::pair(x.k_BSGD, actual.dk_BSGD),
          std::pair(x.v_BSGE, actual.dv_BSGE), std::pair(options.sinks_H, actual.dsinks_H)}) {
      expect_finite_differences(input, gradient, loss, world.strategy);
    }
  }
}

// All weights are 1 / n and values (and dout) are unit vectors, so out (and dV) show the weight of
// each pair alone: 0 if it was dropped, else 1 / (n (1 - p)).
TEST(Features, DropoutDropsTheSameEntriesOnEveryWorld) {
  constexpr std::int64_t kTokens = 23;
  const kernel::Dropout dropout{.p = 0.4, .seed = 12, .step = 34};
  const at::Tensor units = at::eye(kTokens, at::kDouble)
                               .view({1, kTokens, 1, kTokens})
                               .expand({2, -1, 2, -1})
                               .contiguous();
  const at::Tensor zeros = at::zeros({2, kTokens, 2, 4}, at::kDouble);
  const kernel::Sequences x{zeros, zeros, units, units};
  at::Tensor kept_BQHK = at::empty({2, kTokens, 2, kTokens}, at::kBool);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 2; ++h) {
      const kernel::DropoutStream stream(dropout, b, h);
      for (std::int64_t q = 0; q < kTokens; ++q) {
        for (std::int64_t k = 0; k < kTokens; ++k) kept_BQHK[b][q][h][k] = !stream.drops(q, k);
      }
    }
  }
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::string& strategy :
         plan::every_strategy({.world = ranks, .heads = 2, .kv_heads = 2})) {
      AttentionOptions options = options_of("full", kTokens, strategy, {});
      options.dropout = dropout;
      for (const char* layout : {"contiguous", "zigzag", "striped:1"}) {
        if (sanitizer_samples() && std::string(layout) != "zigzag") continue;
        options.layout = plan::parse_layout(layout);
        const kernel::Results actual = run(ranks, options, x).whole;
        EXPECT_TRUE(at::equal(actual.out_BSHE > 0, kept_BQHK)) << strategy << ' ' << layout;
        EXPECT_TRUE(at::equal(actual.dv_BSGE > 0, kept_BQHK.transpose(1, 3)))
            << strategy << ' ' << layout;
      }
    }
  }
}

// Every rank returns its share of the gradient of sinks; the sum of the shares is the gradient.
TEST(Features, TheGradientOfSinksIsTheSumOfShares) {
  const kernel::Features features = kernel::features_of(kernel::kSinks, 4, 0.5);
  for (const StrategyWorld& world : kWorlds) {
    const AttentionOptions options = options_of("causal", 9, world.strategy, features);
    const kernel::Sequences x =
        kernel::random_sequences({2, 4, 2, 4, 4}, options.mask, at::kFloat, 5);
    const kernel::Results exact =
        kernel::naive_attention(x, options.mask, features.score, features.sinks_H);
    const WorldResults actual = run(world.ranks, options, x);
    EXPECT_LE(kernel::relative_error(actual.whole.dsinks_H, exact.dsinks_H), kFp32Bound)
        << world.strategy << ' ' << world.ranks;
    if (world.ranks == 1) continue;
    for (const at::Tensor& share : actual.dsinks) {
      EXPECT_GT(kernel::relative_error(share, exact.dsinks_H), 1e-2) << world.strategy;
    }
  }
  // Ranks without tokens have no share.
  const AttentionOptions options = options_of("causal", 1, "ring", features);
  const kernel::Sequences x =
      kernel::random_sequences({2, 4, 2, 4, 4}, options.mask, at::kFloat, 5);
  int without = 0;
  for (const at::Tensor& share : run(4, options, x).dsinks) {
    if (at::equal(share, at::zeros({4}))) ++without;
  }
  EXPECT_EQ(without, 3);
}

TEST(Features, SinksKeepTheirDtypeAndMayBeConstants) {
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    kernel::Features features = kernel::features_of(kernel::kSinks, 2, 1);
    AttentionOptions options = options_of("causal", 8, "ring", features);
    const at::Tensor x = at::ones({1, 4, 2, 8});
    EXPECT_FALSE(sequence_parallel_attention(x, x, x, comm, options).requires_grad());
    options.sinks_H = features.sinks_H.to(at::kBFloat16).requires_grad_(true);
    sequence_parallel_attention(x, x, x, comm, options).sum().backward();
    EXPECT_EQ(options.sinks_H.grad().scalar_type(), at::kBFloat16);
  });
}

// Backward reads the sinks again, so autograd must notice that they were changed.
TEST(Features, SinksMustStayAsTheyAreUntilBackward) {
  const auto body = [](comm::Communicator& comm) {
    const kernel::Features features = kernel::features_of(kernel::kSinks, 2, 1);
    AttentionOptions options = options_of("causal", 8, "ring", features);
    const at::Tensor x = at::ones({1, 4, 2, 8});
    options.sinks_H = features.sinks_H.clone().requires_grad_(true);
    const at::Tensor out = sequence_parallel_attention(x, x, x, comm, options);
    options.sinks_H.detach().add_(1);
    EXPECT_THAT([&] { out.sum().backward(); },
                testing::Throws<c10::Error>(testing::Property(
                    &c10::Error::what, testing::HasSubstr("modified by an inplace operation"))));
  };
  EXPECT_THROW(comm::run_ranks(2, body), CommError);
}

// Backward scores with the slopes of forward, even if the caller has changed its tensor since.
TEST(Features, SlopesMayChangeAfterForward) {
  const kernel::Features features = kernel::features_of(kernel::kAlibi, 2, 0.5);
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    at::Generator generator = at::detail::createCPUGenerator(3 + comm.rank());
    const at::Tensor x = at::randn({3, 1, 4, 2, 8}, generator);
    const auto gradients = [&](double added) {
      AttentionOptions options = options_of("causal", 8, "ring", features);
      options.alibi_slopes_H = features.score.alibi_slopes_H.clone();
      const at::Tensor qkv = x.clone().requires_grad_(true);
      const at::Tensor out = sequence_parallel_attention(qkv[0], qkv[1], qkv[2], comm, options);
      options.alibi_slopes_H.add_(added);
      out.backward(x[1]);
      return qkv.grad();
    };
    const at::Tensor required = gradients(0);
    EXPECT_TRUE(at::equal(gradients(3), required)) << "rank " << comm.rank();
    EXPECT_GT(required[0].abs().max().item<double>(), 1e-3) << "nothing to tell slopes by";
  });
}

TEST(Features, OnlyTheOutputIsDifferentiable) {
  for (const bool sinks : {false, true}) {
    const kernel::Features features = kernel::features_of(sinks ? kernel::kSinks : 0, 2, 0.5);
    comm::run_ranks(2, [&](comm::Communicator& comm) {
      AttentionOptions options = options_of("causal", 8, "ring", features);
      options.return_max_logit = true;
      const at::Tensor x = at::ones({1, 4, 2, 8}).requires_grad_(true);
      const AttentionResults result =
          Attention(comm, options).run(CallKind::AttentionLse, {x, x, x});
      EXPECT_TRUE(result.out_BLHE.requires_grad());
      EXPECT_FALSE(result.lse_BLH.requires_grad());
      EXPECT_FALSE(result.max_logit_H.requires_grad());
      result.out_BLHE.sum().backward();
      EXPECT_TRUE(x.grad().defined());
    });
  }
}

TEST(Features, SameBitsWhateverTheTiming) {
  const kernel::Features features = kernel::features_of(kernel::kAllFeatures, 4, 0.5);
  for (const char* strategy : {"ring", "usp:u=2"}) {
    const AttentionOptions options = options_of("causal", 37, strategy, features);
    const kernel::Sequences x =
        kernel::random_sequences({2, 4, 2, 8, 8}, options.mask, at::kFloat, 3);
    const kernel::Results first = run(4, options, x, {.shuffle_seed = 1}).whole;
    const kernel::Results second = run(4, options, x, {.shuffle_seed = 2}).whole;
    EXPECT_TRUE(at::equal(first.out_BSHE, second.out_BSHE)) << strategy;
    EXPECT_TRUE(at::equal(first.dq_BSHD, second.dq_BSHD)) << strategy;
    EXPECT_TRUE(at::equal(first.dk_BSGD, second.dk_BSGD)) << strategy;
    EXPECT_TRUE(at::equal(first.dv_BSGE, second.dv_BSGE)) << strategy;
    EXPECT_TRUE(at::equal(first.dsinks_H, second.dsinks_H)) << strategy;
  }
}

TEST(Features, TheLargestLogitIsTheSameOnEveryRank) {
  for (const StrategyWorld& world : kWorlds) {
    AttentionOptions options =
        options_of("causal", std::int64_t{4} * world.ranks, world.strategy, {});
    options.return_max_logit = true;
    comm::run_ranks(world.ranks, [&](comm::Communicator& comm) {
      // <q, k> is 5 for the last query and the first key of head 1, else 0.
      at::Tensor q = at::zeros({1, 4, 2, 1});
      at::Tensor k = at::zeros({1, 4, 2, 1});
      if (comm.rank() == 0) {  // zigzag: rank 0 has the first and the last tokens
        q.select(1, 3).select(1, 1).fill_(5);
        k.select(1, 0).select(1, 1).fill_(1);
      }
      const AttentionResults result =
          Attention(comm, options).run(CallKind::AttentionLse, {q, k, k});
      EXPECT_TRUE(at::equal(result.max_logit_H, at::tensor({0.0f, 5.0f})))
          << world.strategy << ' ' << result.max_logit_H;
      EXPECT_FALSE(result.max_logit_H.requires_grad());
    });
  }
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    AttentionOptions options = options_of("full", 4, "ring", {});
    options.mask = plan::Mask(4, 4, {});
    const at::Tensor x = at::ones({1, 2, 1, 1}, at::kDouble);
    EXPECT_FALSE(
        Attention(comm, options).run(CallKind::AttentionLse, {x, x, x}).max_logit_H.defined());
    options.return_max_logit = true;
    EXPECT_TRUE(
        at::equal(Attention(comm, options).run(CallKind::AttentionLse, {x, x, x}).max_logit_H,
                  at::full({1}, -kInf, at::kDouble)));
  });
}

void expect_error(const std::function<void(AttentionOptions&)>& spoil, const std::string& part) {
  try {
    comm::run_ranks(2, [&](comm::Communicator& comm) {
      AttentionOptions options = options_of("causal", 8, "ring", {});
      spoil(options);
      const at::Tensor x = at::randn({1, 4, 2, 8});
      sequence_parallel_attention(x, x, x, comm, options);
    });
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(part));
    return;
  }
  ADD_FAILURE() << "not refused: " << part;
}

TEST(Features, RefusesWhatDoesNotFit) {
  expect_error([](AttentionOptions& o) { o.softcap = 0; },
               "attention: softcap 0; a finite number above 0 is required, or none");
  expect_error([](AttentionOptions& o) { o.scale = kInf; }, "attention: scale inf; a finite");
  expect_error([](AttentionOptions& o) { o.dropout.p = 1; },
               "attention: dropout p 1; at least 0 and below 1 is required");
  expect_error([](AttentionOptions& o) { o.alibi_slopes_H = at::ones({1}); },
               "attention: alibi_slopes_H is Float [1]; Float [2] is required, of all heads");
  expect_error([](AttentionOptions& o) { o.alibi_slopes_H = at::ones({3}); },
               "attention: alibi_slopes_H is [3]; one slope per query head, [2], is required");
  expect_error([](AttentionOptions& o) { o.alibi_slopes_H = at::full({2}, kInf); },
               "attention: alibi_slopes_H has a slope that is not finite");
  expect_error([](AttentionOptions& o) { o.alibi_slopes_H = at::ones({2}).requires_grad_(); },
               "attention: alibi_slopes_H requires a gradient; slopes are constants: detach()");
  expect_error([](AttentionOptions& o) { o.sinks_H = at::ones({3}); },
               "attention: sinks_H is Float [3] on cpu; one logit per query head, [2], fp64");
  expect_error([](AttentionOptions& o) { o.sinks_H = at::ones({2}, at::kInt); },
               "attention: sinks_H is Int [2] on cpu");
  expect_error([](AttentionOptions& o) { o.return_max_logit = true; },
               "return_max_logit is set, and only the output is returned; a call of kind "
               "AttentionLse is required");
}

}  // namespace
}  // namespace armillary::attention
