// local_keys.cpp: positions of keys are their places on this rank: cached ones are seen by all new
// queries, or by those whose window reaches them, new ones by queries that do not stand before
// them.
#include "armillary/serve/local_keys.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "armillary/runtime/rank.h"

namespace armillary::serve {
namespace {

/// Intervals of runs, stripe by stripe.
std::vector<plan::Interval> stripes(const plan::Runs& runs) {
  std::vector<plan::Interval> intervals;
  for (const plan::Run& run : plan::join(runs)) {
    if (run.contiguous()) {
      intervals.push_back(run.span());
      continue;
    }
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t begin = run.begin + i * run.step;
      intervals.push_back({begin, begin + run.width});
    }
  }
  return intervals;
}

}  // namespace

LocalKeys::LocalKeys(const PassContext& context, std::span<const PassPart> parts,
                     PassAppends& appends)
    : context_(context), kernel_(runtime::Rank::of(context.comm).device().kernel()) {
  std::vector<std::int64_t> mine;
  for (const PassPart& part : parts) {
    parts_.push_back(begin(part, appends));
    tokens_ = parts_.back().tokens.end;
    if (part.is_last) lasts_.push_back(tokens_ - 1);
    for (const plan::Interval& range : parts_.back().mine) {
      for (std::int64_t token = range.begin; token < range.end; ++token) mine.push_back(token);
    }
  }
  rows_ = appends.rows();
  mine_L_ = at::tensor(mine, at::kLong);
}

LocalKeys::KeyPart LocalKeys::begin(const PassPart& part, PassAppends& appends) {
  const KvCache& cache = context_.cache;
  const auto tokens = static_cast<std::int64_t>(part.tokens.size());
  plan::relayout::CacheLayout layout = cache.layout(part.session);
  layout.extents = {extent_by_page(cache.tokens(part.session), tokens, cache.page())};
  appends.begin(part.session, layout.extents.front());
  KeyPart result{.session = part.session, .tokens = {tokens_, tokens_ + tokens}};
  if (const auto place = place_of(layout, context_.comm.rank())) {
    for (const plan::Interval& range :
         stripes(token_runs(layout)[static_cast<std::size_t>(place->token_rank)])) {
      result.mine.push_back({tokens_ + range.begin, tokens_ + range.end});
    }
  }
  for (const std::int64_t window : context_.windows.distinct()) {
    result.reach.push_back(seen_keys(result, window));
  }
  return result;
}

LocalKeys::SeenKeys LocalKeys::seen_keys(const KeyPart& part, std::int64_t window) const {
  const KvCache& cache = context_.cache;
  const ReachedKeys cached = reached_keys(cache, part.session, context_.comm.rank(), window);
  const std::int64_t queries = part.tokens.end - part.tokens.begin;
  std::vector<std::int64_t> positions(static_cast<std::size_t>(queries));
  std::iota(positions.begin(), positions.end(), cache.tokens(part.session));
  std::vector<plan::Band> bands = cached_bands(positions, 0, cached, 0, window);
  const std::int64_t reached = cached.places.end - cached.places.begin;
  std::int64_t key = reached;
  for (const plan::Interval& range : part.mine) {
    const std::int64_t query = range.begin - part.tokens.begin;
    const std::int64_t count = range.end - range.begin;
    plan::Band band{.q = {query, queries}, .k = {key, key + count}, .hi = key - query};
    if (window > 0) band.lo = band.hi - window + 1;
    bands.push_back(band);
    key += count;
  }
  return {
      .rows = cache.rows(part.session, {cached.places.begin, cached.places.end + key - reached}),
      .mask = plan::Mask(queries, key, std::move(bands))};
}

void LocalKeys::write(int layer, const at::Tensor& k_BTGD, const at::Tensor& v_BTGE) const {
  context_.cache.write(layer, rows_, k_BTGD.select(0, 0).index_select(0, mine_L_),
                       v_BTGE.select(0, 0).index_select(0, mine_L_));
}

void LocalKeys::attend(int layer, const at::Tensor& q_BTHD, const kernel::Partial& result) const {
  for (const KeyPart& part : parts_) attend_part(layer, part, q_BTHD, result);
}

void LocalKeys::attend_part(int layer, const KeyPart& part, const at::Tensor& q_BTHD,
                            const kernel::Partial& result) const {
  const std::int64_t count = part.tokens.end - part.tokens.begin;
  const auto narrowed = [&](const at::Tensor& x) { return x.narrow(1, part.tokens.begin, count); };
  kernel::Partial carry{.out_BLHE = narrowed(result.out_BLHE), .lse_BLH = narrowed(result.lse_BLH)};
  const SeenKeys& reach = part.reach[context_.windows.index_of(layer)];
  if (reach.rows.empty()) return kernel::clear(carry);
  carry.init = true;
  std::int64_t key = 0;
  for (const plan::Interval& rows : reach.rows) {
    const std::int64_t keys = rows.end - rows.begin;
    const at::Tensor k_BKGD = context_.cache.k(layer, rows).unsqueeze(0);
    const kernel::Pairs pairs{.q_runs = {plan::run_of({0, count})},
                              .k_runs = {plan::run_of({key, key + keys})},
                              .mask = &reach.mask,
                              .heads = {.group_size = q_BTHD.size(2) / k_BKGD.size(2)}};
    const kernel::Inputs inputs{
        .q_BLHD = narrowed(q_BTHD),
        .k_BLGD = k_BKGD,
        .v_BLGE = context_.cache.v(layer, rows).unsqueeze(0),
        .score = {.scale = 1 / std::sqrt(static_cast<double>(q_BTHD.size(3)))}};
    kernel_.attend(pairs, inputs, carry);
    key += keys;
  }
}

}  // namespace armillary::serve
