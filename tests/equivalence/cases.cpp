// cases.cpp: random problems and calls from a seed: masks, layouts, heads, dtypes, strategies that
// solve them, features, and the tensors of the whole sequence.
#include "tests/equivalence/cases.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "armillary/attention/attention.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/testing/feature_sets.h"
#include "armillary/kernel/testing/naive_attention.h"
#include "armillary/plan/layout.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/runtime/rank.h"

namespace armillary::equivalence {
namespace {

/// Masks over equal lengths; documents of uneven lengths that add up, one of them empty.
std::vector<std::string> masks_for(std::int64_t length) {
  std::vector<std::string> masks{"full",
                                 "causal",
                                 "window:left=5,right=0",
                                 "window:left=3,right=7",
                                 fmt::format("prefix:{}", length / 3),
                                 "block_causal:4"};
  const std::int64_t a = length / 5;
  const std::int64_t b = length / 2;
  for (const char* within : {"causal", "full", "window,left=6,right=1"}) {
    masks.push_back(fmt::format("documents:{},0,{},{},within={}", a, b, length - a - b, within));
  }
  if (length >= 4) {  // two bands side by side, and queries that see nothing
    masks.push_back(fmt::format("bands:0-{0}/0-{0}/-2..1;1-{1}/{0}-{1}/..", length / 2, length));
  }
  return masks;
}

/// `model` under each of the masks, and as cross-attention to 11 more keys.
void add_masks(std::vector<Case>& cases, const Case& model, const std::vector<std::string>& masks) {
  for (const std::string& mask : masks) {
    cases.push_back(model);
    cases.back().mask = mask;
  }
  for (const char* mask : {"full", "causal:align=end", "causal:align=start"}) {
    cases.push_back(model);
    cases.back().mask = mask;
    cases.back().kv_len = model.kv_len + 11;
  }
}

/// Rows of `global` that a rank owns, in its memory order.
at::Tensor shard(const at::Tensor& global_BSHD, const plan::Runs& runs) {
  return global_BSHD.index_select(1, at::tensor(plan::positions(runs), at::kLong)).contiguous();
}

void unshard(at::Tensor& global_BSHD, const plan::Runs& runs, const at::Tensor& local_BLHD) {
  global_BSHD.index_copy_(1, at::tensor(plan::positions(runs), at::kLong),
                          local_BLHD.detach().to(global_BSHD.scalar_type()));
}

at::Tensor leaf(const at::Tensor& value, at::Device place) {
  return value.detach().to(place, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
}

}  // namespace

std::string to_string(const Case& c) {
  return fmt::format("{} {} {} world {} lengths {}/{} heads {}/{} {} {}", c.strategy, c.layout,
                     c.mask, c.world, c.q_len, c.kv_len, c.heads, c.kv_heads, at::toString(c.dtype),
                     kernel::describe_features(c.features));
}

std::string to_string(const LargestErrors& e) {
  return fmt::format("out {} lse {} dq {} dk {} dv {} dsinks {} max_logit {}", e.out, e.lse, e.dq,
                     e.dk, e.dv, e.dsinks, e.max_logit);
}

std::vector<Case> grid_cases(int world) {
  constexpr std::pair<int, int> kHeads[] = {{4, 4}, {4, 2}, {4, 1}, {6, 3}};
  std::vector<Case> cases;
  for (const auto& [heads, kv_heads] : kHeads) {
    const plan::Problem any{.world = world, .heads = heads, .kv_heads = kv_heads};
    for (const std::string& strategy : plan::every_strategy(any)) {
      for (const std::int64_t length : {0, 1, std::max(world - 1, 0), world, 2 * world + 7, 257}) {
        for (const char* layout : {"contiguous", "zigzag", "striped:1", "striped:3", "balanced"}) {
          for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
            const Case model{strategy, layout, "", world, length, length, heads, kv_heads, dtype};
            add_masks(cases, model, masks_for(length));
          }
        }
      }
    }
  }
  return cases;
}

std::vector<Case> feature_cases(int world) {
  constexpr std::int64_t kLength = 29;
  constexpr std::pair<int, int> kHeads[] = {{4, 4}, {4, 2}, {6, 3}, {4, 1}};
  std::vector<Case> cases;
  for (const unsigned set : kernel::feature_sets()) {
    for (const auto& [heads, kv_heads] : kHeads) {
      const plan::Problem any{.world = world, .heads = heads, .kv_heads = kv_heads};
      for (const std::string& strategy : plan::every_strategy(any)) {
        for (const char* layout : {"contiguous", "zigzag"}) {
          for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
            const Case model{strategy, layout, "",       world, kLength,
                             kLength,  heads,  kv_heads, dtype, set};
            add_masks(cases, model,
                      {"full", "causal", "window:left=5,right=2", "documents:11,0,6,12",
                       "bands:0-14/0-14/-2..1"});
          }
        }
      }
    }
  }
  return cases;
}

std::vector<Case> drawn_cases(const std::vector<int>& worlds, std::uint64_t seed,
                              std::size_t count) {
  std::vector<Case> cases;
  for (const int world : worlds) {
    for (const auto& grid : {grid_cases(world), feature_cases(world)}) {
      cases.insert(cases.end(), grid.begin(), grid.end());
    }
  }
  std::mt19937_64 random(seed);
  std::ranges::shuffle(cases, random);
  std::set<std::string> met;
  std::stable_partition(cases.begin(), cases.end(),
                        [&](const Case& c) { return met.insert(c.strategy).second; });
  cases.resize(std::min(cases.size(), std::max(count, met.size())));
  return cases;
}

double LargestErrors::worst() const {
  const double all[] = {out, lse, dq, dk, dv, dsinks, max_logit};
  double largest = 0;
  for (const double error : all) largest = std::isnan(error) ? error : std::max(largest, error);
  return largest;
}

Drawn draw(const Case& c, std::uint64_t seed) {
  constexpr std::int64_t kHeadDim = 8;
  constexpr std::int64_t kValueDim = 5;
  plan::Mask mask = plan::parse_mask(c.mask, {c.q_len, c.kv_len});
  const double scale = 1 / std::sqrt(static_cast<double>(kHeadDim));
  return {.mask = mask,
          .whole = kernel::random_sequences({2, c.heads, c.kv_heads, kHeadDim, kValueDim}, mask,
                                            c.dtype, seed),
          .features = kernel::features_of(c.features, c.heads, scale, seed)};
}

kernel::Results on_rank(const Case& c, const Drawn& drawn, comm::Communicator& comm) {
  const auto& [mask, whole, features] = drawn;
  const plan::Layout layout = plan::parse_layout(c.layout);
  const plan::Shards owned = plan::shards(layout, mask, c.world);
  const plan::Runs& q_runs = owned.q[comm.rank()];
  const plan::Runs& kv_runs = owned.kv[comm.rank()];
  const at::Device place = runtime::Rank::of(comm).device().place();
  const at::Tensor q = leaf(shard(whole.q_BSHD, q_runs), place);
  const at::Tensor k = leaf(shard(whole.k_BSGD, kv_runs), place);
  const at::Tensor v = leaf(shard(whole.v_BSGE, kv_runs), place);
  const at::Tensor& slopes = features.score.alibi_slopes_H;
  const at::Tensor sinks =
      features.sinks_H.defined() ? leaf(features.sinks_H.to(c.dtype), place) : at::Tensor();
  const attention::Attention over_ranks(
      comm, {.mask = mask,
             .layout = layout,
             .strategy = c.strategy,
             .softcap = features.score.softcap,
             .alibi_slopes_H = slopes.defined() ? slopes.to(place) : slopes,
             .sinks_H = sinks,
             .dropout = features.score.dropout,
             .return_max_logit = true});
  const attention::AttentionResults result =
      over_ranks.run(attention::CallKind::AttentionLse, {q, k, v});
  result.out_BLHE.backward(shard(whole.dout_BSHE, q_runs).to(place));
  kernel::Results mine{result.out_BLHE.detach().cpu(), result.lse_BLH.detach().cpu(),
                       q.grad().cpu(), k.grad().cpu(), v.grad().cpu()};
  mine.dsinks_H = sinks.defined() ? sinks.grad().cpu() : at::zeros({c.heads});
  mine.max_logit_H = result.max_logit_H.cpu();
  return mine;
}

kernel::Results spread(const Case& c, const Drawn& drawn, const comm::LocalOptions& options,
                       const Prepare& prepare) {
  std::vector<kernel::Results> of_ranks(c.world);
  const auto body = [&](comm::Communicator& comm) {
    prepare(comm);
    of_ranks[comm.rank()] = on_rank(c, drawn, comm);
  };
  comm::run_ranks(c.world, body, options);

  // The rows of all ranks at their positions; a row that nobody owns would stay NaN.
  const kernel::Sequences& whole = drawn.whole;
  const auto nothing_like = [](const at::Tensor& x) { return at::full_like(x, NAN); };
  kernel::Results results{nothing_like(whole.dout_BSHE), nothing_like(whole.dout_BSHE.select(3, 0)),
                          nothing_like(whole.q_BSHD), nothing_like(whole.k_BSGD),
                          nothing_like(whole.v_BSGE)};
  const plan::Shards owned = plan::shards(plan::parse_layout(c.layout), drawn.mask, c.world);
  std::vector<at::Tensor> dsinks;
  results.max_logit_H = of_ranks[0].max_logit_H;
  for (int rank = 0; rank < c.world; ++rank) {
    const kernel::Results& mine = of_ranks[rank];
    unshard(results.out_BSHE, owned.q[rank], mine.out_BSHE);
    unshard(results.lse_BSH, owned.q[rank], mine.lse_BSH);
    unshard(results.dq_BSHD, owned.q[rank], mine.dq_BSHD);
    unshard(results.dk_BSGD, owned.kv[rank], mine.dk_BSGD);
    unshard(results.dv_BSGE, owned.kv[rank], mine.dv_BSGE);
    dsinks.push_back(mine.dsinks_H);
    if (!at::equal(mine.max_logit_H, of_ranks[0].max_logit_H)) {
      results.max_logit_H = at::full_like(mine.max_logit_H, NAN);
    }
  }
  results.dsinks_H = at::stack(dsinks).sum(0, /*keepdim=*/false, at::kDouble);
  return results;
}

LargestErrors run(const Case& c, std::uint64_t seed) {
  const Drawn drawn = draw(c, seed);
  const kernel::Results required = kernel::naive_attention(
      drawn.whole, drawn.mask, drawn.features.score, drawn.features.sinks_H);
  const kernel::Results results = spread(c, drawn);
  return {.out = kernel::relative_error(results.out_BSHE, required.out_BSHE),
          .lse = kernel::relative_error(results.lse_BSH, required.lse_BSH),
          .dq = kernel::relative_error(results.dq_BSHD, required.dq_BSHD),
          .dk = kernel::relative_error(results.dk_BSGD, required.dk_BSGD),
          .dv = kernel::relative_error(results.dv_BSGE, required.dv_BSGE),
          .dsinks = kernel::relative_error(results.dsinks_H, required.dsinks_H),
          .max_logit = kernel::relative_error(results.max_logit_H, required.max_logit_H)};
}

}  // namespace armillary::equivalence
