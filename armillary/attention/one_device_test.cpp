// Attention over ranks against PyTorch on one device: forward and every gradient, fp64. Visible
// pairs and the tokens of each rank are written out here, without code of plan/.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "armillary/attention/attention.h"
#include "armillary/comm/local.h"
#include "armillary/kernel/dropout.h"
#include "tests/tolerance.h"

namespace armillary::attention {
namespace {

constexpr std::int64_t kLength = 24;  // zigzag cuts it evenly for 1, 2, 3, 4 and 6 ranks
constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kKvHeads = 2;
constexpr std::int64_t kHeadDim = 6;
constexpr std::int64_t kValueDim = 5;
constexpr double kScale = 0.7;  // differs from every default

struct OverRanks {
  const char* strategy;
  int ranks;
};
constexpr OverRanks kOverRanks[] = {{"ring", 1},
                                    {"ring", 3},
                                    {"ring:backward=q", 4},
                                    {"allgather", 2},
                                    {"ulysses", 2},
                                    {"usp:u=2", 4},
                                    {"double_ring:window=2", 4},
                                    {"bidirectional_ring", 6},
                                    {"tokenring", 3},
                                    {"attention2d:rows=2", 4},
                                    {"startrail:c=2", 4},
                                    {"grid:u=1,rq=2,rk=3", 6}};

constexpr OverRanks kSomeOverRanks[] = {
    {"ring", 3}, {"ulysses", 2}, {"usp:u=2", 4}, {"startrail:c=2", 4}, {"grid:u=1,rq=2,rk=3", 6}};

/// Positions of a rank's tokens: pieces r and 2 P - 1 - r of 2 P.
at::Tensor zigzag(int world, int rank) {
  const std::int64_t piece = kLength / world / 2;
  return at::cat({at::arange(rank * piece, (rank + 1) * piece),
                  at::arange((2 * world - 1 - rank) * piece, (2 * world - rank) * piece)});
}

/// Visible pairs [q, k], by the name of the mask.
std::vector<std::pair<std::string, at::Tensor>> masks() {
  const at::Tensor k = at::arange(kLength);
  const at::Tensor q = k.unsqueeze(1);
  // Documents of 7, 5 and 12 tokens.
  const at::Tensor document = (k >= 7).to(at::kLong) + (k >= 12).to(at::kLong);
  const at::Tensor together = document.unsqueeze(1) == document;
  return {{"full", k >= at::zeros_like(q)},
          {"causal", k <= q},
          {"window:left=5,right=2", (k >= q - 5).logical_and(k <= q + 2)},
          {"documents:7,5,12,within=causal", together.logical_and(k <= q)},
          {"documents:7,5,12,within=full", together}};
}

/// Leaves of whole sequences, [B, tokens, heads, dim], and the gradient of the output.
struct Whole {
  at::Tensor q, k, v, sinks, dout;

  Whole() {
    at::Generator generator = at::detail::createCPUGenerator(17);
    const auto normal = [&](std::int64_t heads, std::int64_t dim) {
      return at::randn({kBatch, kLength, heads, dim}, generator, at::kDouble);
    };
    q = normal(kHeads, kHeadDim).requires_grad_(true);
    k = normal(kKvHeads, kHeadDim).requires_grad_(true);
    v = normal(kKvHeads, kValueDim).requires_grad_(true);
    dout = normal(kHeads, kValueDim);
    sinks = at::tensor({-0.5, 0.25, 1.0, 2.0}, at::kDouble).requires_grad_(true);
  }
};

struct Required {
  at::Tensor out, lse, max_logit;
};

/// Runs the call over ranks. Expects `required` as the output and the gradients of the leaves of
/// `whole` as gradients; for sinks, if the options have some, as the sum of the shares.
void expect_equal_over_ranks(const OverRanks& world, AttentionOptions options, const Whole& whole,
                             const Required& required, const std::string& what) {
  options.strategy = world.strategy;
  options.scale = kScale;
  options.layout = plan::parse_layout("zigzag");
  options.return_max_logit = true;
  const bool sinks = options.sinks_H.defined();
  std::vector<at::Tensor> shares(world.ranks);
  const auto compare = [&](const char* name, const at::Tensor& actual, const at::Tensor& exact,
                           int rank) {
    ASSERT_EQ(actual.sizes(), exact.sizes()) << name;
    const at::Tensor error = (actual - exact).masked_fill(actual == exact, 0);
    EXPECT_LE(error.abs().max().item<double>(), kFp64Bound * (1 + exact.abs().max().item<double>()))
        << name << ", " << what << ", " << world.strategy << ", rank " << rank << " of "
        << world.ranks;
  };
  comm::run_ranks(world.ranks, [&](comm::Communicator& comm) {
    const at::Tensor rows = zigzag(world.ranks, comm.rank());
    const auto leaf = [&](const at::Tensor& x) {
      return x.detach().index_select(1, rows).requires_grad_(true);
    };
    const at::Tensor q = leaf(whole.q);
    const at::Tensor k = leaf(whole.k);
    const at::Tensor v = leaf(whole.v);
    AttentionOptions mine = options;
    if (sinks) mine.sinks_H = whole.sinks.detach().clone().requires_grad_(true);
    const AttentionResults actual = Attention(comm, mine).run(CallKind::AttentionLse, {q, k, v});
    actual.out_BLHE.backward(whole.dout.index_select(1, rows));
    compare("out", actual.out_BLHE.detach(), required.out.index_select(1, rows), comm.rank());
    compare("lse", actual.lse_BLH, required.lse.index_select(1, rows), comm.rank());
    compare("max_logit", actual.max_logit_H, required.max_logit, comm.rank());
    compare("dq", q.grad(), whole.q.grad().index_select(1, rows), comm.rank());
    compare("dk", k.grad(), whole.k.grad().index_select(1, rows), comm.rank());
    compare("dv", v.grad(), whole.v.grad().index_select(1, rows), comm.rank());
    if (sinks) shares[comm.rank()] = mine.sinks_H.grad();
  });
  if (sinks) compare("dsinks", at::stack(shares).sum(0), whole.sinks.grad(), -1);
}

at::Tensor by_head(const at::Tensor& x_BSHX) {
  return x_BSHX.transpose(1, 2);
}

/// K or V with a head for every query head: KV head h / 2 for query head h.
at::Tensor for_every_head(const at::Tensor& x_BSGX) {
  return x_BSGX.repeat_interleave(kHeads / kKvHeads, 2);
}

at::Tensor products_of(const Whole& whole) {
  return kScale * by_head(whole.q).matmul(by_head(for_every_head(whole.k)).transpose(-2, -1));
}

Required required_of(const at::Tensor& out_BHSE, const at::Tensor& scores_BHSS,
                     const at::Tensor& visible, const at::Tensor& sinks) {
  const double inf = std::numeric_limits<double>::infinity();
  at::Tensor columns = scores_BHSS.detach().masked_fill(visible.logical_not(), -inf);
  const at::Tensor largest = columns.transpose(0, 1).flatten(1).amax(1);
  if (sinks.defined()) {
    columns =
        at::cat({columns, sinks.detach().view({1, -1, 1, 1}).expand({kBatch, -1, kLength, 1})}, -1);
  }
  return {by_head(out_BHSE).detach(), by_head(columns.logsumexp(-1)), largest};
}

TEST(OneDevice, EqualsScaledDotProductAttentionOfPyTorch) {
  for (const auto& [mask, visible] : masks()) {
    const Whole whole;
    const at::Tensor out = at::scaled_dot_product_attention(
        by_head(whole.q), by_head(for_every_head(whole.k)), by_head(for_every_head(whole.v)),
        visible, 0.0, false, kScale);
    out.backward(by_head(whole.dout));
    const Required required = required_of(out, products_of(whole), visible, {});
    for (const OverRanks& world : kOverRanks) {
      expect_equal_over_ranks(world, {.mask = plan::parse_mask(mask, {kLength, kLength})}, whole,
                              required, mask);
    }
  }
}

/// A set of features.
struct Feature {
  const char* name;
  bool softcap, alibi, sinks, dropout;
};
constexpr Feature kEach[] = {{"softcap", true, false, false, false},
                             {"alibi", false, true, false, false},
                             {"sinks", false, false, true, false},
                             {"dropout", false, false, false, true},
                             {"all", true, true, true, true}};

/// 1 / (1 - p) for a probability that is kept, 0 for one that is dropped.
at::Tensor factors_of(const kernel::Dropout& dropout) {
  at::Tensor factors = at::zeros({kBatch, kHeads, kLength, kLength}, at::kDouble);
  auto entry = factors.accessor<double, 4>();
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const kernel::DropoutStream stream(dropout, b, h);
      for (std::int64_t q = 0; q < kLength; ++q) {
        for (std::int64_t k = 0; k < kLength; ++k) {
          if (!stream.drops(q, k)) entry[b][h][q][k] = 1 / (1 - dropout.p);
        }
      }
    }
  }
  return factors;
}

// The formulas of kernel/score.h in plain ATen, gradients by autograd.
TEST(OneDevice, FeaturesEqualTheirFormulas) {
  constexpr double kCap = 1.5;
  const at::Tensor slopes = at::tensor({0.5f, 0.25f, 0.125f, 0.0625f});
  const kernel::Dropout dropout{.p = 0.25, .seed = 5, .step = 3};
  const at::Tensor k = at::arange(kLength, at::kDouble);
  const at::Tensor distances = (k.unsqueeze(1) - k).abs();
  for (const Feature& feature : kEach) {
    for (const auto& [mask, visible] : masks()) {
      const Whole whole;
      AttentionOptions options{.mask = plan::parse_mask(mask, {kLength, kLength})};
      at::Tensor scores = products_of(whole);
      if (feature.softcap) {
        options.softcap = kCap;
        scores = kCap * (scores / kCap).tanh();
      }
      if (feature.alibi) {
        options.alibi_slopes_H = slopes;
        scores = scores - slopes.to(at::kDouble).view({-1, 1, 1}) * distances;
      }
      // Softmax written out: a sink is one more addend of the sum.
      at::Tensor weights = scores.exp() * visible;
      at::Tensor sum = weights.sum(-1, true);
      if (feature.sinks) {
        options.sinks_H = whole.sinks;
        sum = sum + whole.sinks.exp().view({-1, 1, 1});
      }
      weights = weights / sum;
      if (feature.dropout) {
        options.dropout = dropout;
        weights = weights * factors_of(dropout);
      }
      const at::Tensor out = weights.matmul(by_head(for_every_head(whole.v)));
      out.backward(by_head(whole.dout));
      const Required required = required_of(out, scores, visible, options.sinks_H);
      for (const OverRanks& world : kSomeOverRanks) {
        expect_equal_over_ranks(world, options, whole, required, mask + ", " + feature.name);
      }
    }
  }
}

}  // namespace
}  // namespace armillary::attention
