// kv_cache.cpp: numbers change on all ranks alike; rows are read and written on this one only. A
// relayout takes rows for the new layout before it gives those of the old one back.
#include "armillary/serve/kv_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::serve {
namespace {

using plan::relayout::CacheExtent;
using plan::relayout::CacheLayout;

std::int64_t count_rows(const std::vector<plan::Interval>& rows) {
  std::int64_t count = 0;
  for (const plan::Interval& range : rows) count += range.end - range.begin;
  return count;
}

at::Tensor view_of_rows(const at::Tensor& memory, plan::Interval rows) {
  return memory.narrow(0, rows.begin, rows.end - rows.begin);
}

}  // namespace

KvCache::KvCache(const KvCacheOptions& options, int rank, int ranks)
    : options_(options), rank_(rank) {
  for (int r = 0; r < ranks; ++r) pools_.emplace_back(options.pages, options.page);
}

const KvCache::CachedSession& KvCache::at_id(SessionId session) const {
  const auto entry = sessions_.find(session);
  if (entry != sessions_.end()) return entry->second;
  fail<InvalidArgument>("cache: session {} given, which is not open; one of {} is required",
                        session, count_of(sessions_.size(), "open session"));
}

KvCache::CachedSession& KvCache::at_id(SessionId session) {
  return const_cast<CachedSession&>(std::as_const(*this).at_id(session));
}

SessionId KvCache::open() {
  sessions_[next_] = {.layout = {.extents = {}, .ranks = ranks()},
                      .by_rank = std::vector<PagedTokens>(pools_.size()),
                      .tokens = std::vector<std::int64_t>(pools_.size())};
  return next_++;
}

SessionId KvCache::fork(SessionId session) {
  const CachedSession& parent = at_id(session);
  CachedSession child{
      .layout = parent.layout, .by_rank = {}, .tokens = parent.tokens, .first = parent.first};
  for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
    child.by_rank.push_back(pools_[rank].fork(parent.by_rank[rank], parent.tokens[rank]));
  }
  sessions_[next_] = std::move(child);
  return next_++;
}

void KvCache::release(SessionId session) {
  give_back(at_id(session).by_rank);
  sessions_.erase(session);
}

std::int64_t KvCache::tokens(SessionId session) const {
  return at_id(session).layout.tokens();
}

std::int64_t KvCache::tokens(SessionId session, int rank) const {
  return at_id(session).tokens[static_cast<std::size_t>(rank)];
}

const CacheLayout& KvCache::layout(SessionId session) const {
  return at_id(session).layout;
}

plan::Runs KvCache::runs(SessionId session, int rank) const {
  const CacheLayout& layout = at_id(session).layout;
  const auto place = place_of(layout, rank);
  return place ? token_runs(layout)[static_cast<std::size_t>(place->token_rank)] : plan::Runs();
}

std::vector<std::int64_t> KvCache::counts_of(const CacheLayout& layout) const {
  return counts_before(layout, layout.tokens());
}

std::vector<std::int64_t> KvCache::counts_before(const CacheLayout& layout,
                                                 std::int64_t position) const {
  std::vector<std::int64_t> counts(pools_.size());
  const std::vector<plan::Runs> runs = token_runs(layout);
  for (std::size_t token_rank = 0; token_rank < runs.size(); ++token_rank) {
    counts.at(static_cast<std::size_t>(layout.first) + token_rank) =
        plan::tokens(plan::clip(runs[token_rank], {0, position}));
  }
  return counts;
}

void KvCache::require_room(const std::vector<PagedTokens>& by_rank,
                           const std::vector<std::int64_t>& counts) const {
  for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
    const std::int64_t required = pools_[rank].pages_for(by_rank[rank], counts[rank]);
    if (required <= pools_[rank].free_pages()) continue;
    fail<InvalidArgument>(
        "cache: {} of {} tokens required on rank {}, where {} of {} are free; released sessions or "
        "a larger cache are required",
        count_of(required, "page"), options_.page, rank, pools_[rank].free_pages(),
        pools_[rank].pages());
  }
}

void KvCache::copy_rows(const PageCopy& copy) {
  const std::int64_t from = copy.from * options_.page;
  const std::int64_t to = copy.to * options_.page;
  for (const LayerMemory& layer : layers_) {
    for (const at::Tensor& memory : {layer.k_RGD, layer.v_RGE}) {
      memory.narrow(0, to, copy.tokens).copy_(memory.narrow(0, from, copy.tokens));
    }
  }
}

void KvCache::begin_append(SessionId session, const CacheExtent& extent) {
  CachedSession& entry = at_id(session);
  ARMILLARY_CHECK(!entry.extent);
  CacheLayout dealt = entry.layout;
  dealt.extents = {extent};
  const std::vector<std::int64_t> counts = counts_of(dealt);
  require_room(entry.by_rank, counts);
  for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
    const auto copy = pools_[rank].append(entry.by_rank[rank], counts[rank]);
    if (copy && static_cast<int>(rank) == rank_) copy_rows(*copy);
  }
  entry.extent = extent;
}

std::vector<plan::Interval> KvCache::new_rows(SessionId session) const {
  const CachedSession& entry = at_id(session);
  const auto rank = static_cast<std::size_t>(rank_);
  const PagedTokens& all = entry.by_rank[rank];
  return pools_[rank].rows(all, {entry.tokens[rank], all.tokens});
}

void KvCache::end_append(SessionId session) {
  CachedSession& entry = at_id(session);
  ARMILLARY_CHECK(entry.extent);
  add_extent(entry.layout, *entry.extent);
  entry.extent.reset();
  for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
    entry.tokens[rank] = entry.by_rank[rank].tokens;
  }
  leave_pages(entry);
}

std::int64_t KvCache::first_in_sight(const CachedSession& entry, std::int64_t tokens) const {
  return options_.window == 0 ? 0 : std::max(entry.first, tokens - options_.window + 1);
}

std::int64_t KvCache::first_behind(SessionId session, std::int64_t tokens) const {
  return first_in_sight(at_id(session), tokens);
}

void KvCache::leave_pages(CachedSession& entry) {
  if (options_.window == 0) return;
  entry.first = first_in_sight(entry, entry.layout.tokens());
  const std::vector<std::int64_t> behind = counts_before(entry.layout, entry.first);
  for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
    pools_[rank].leave_front(entry.by_rank[rank], behind[rank]);
  }
}

void KvCache::drop_append(SessionId session) {
  CachedSession& entry = at_id(session);
  if (!entry.extent) return;
  entry.extent.reset();
  for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
    pools_[rank].cut(entry.by_rank[rank], entry.tokens[rank]);
  }
}

std::vector<plan::Interval> KvCache::rows(SessionId session, plan::Interval places) const {
  const auto rank = static_cast<std::size_t>(rank_);
  return pools_[rank].rows(at_id(session).by_rank[rank], places);
}

void KvCache::write(int layer, const std::vector<plan::Interval>& rows, const at::Tensor& k_LGD,
                    const at::Tensor& v_LGE) {
  ARMILLARY_CHECK(layer <= layers() && count_rows(rows) == k_LGD.size(0));
  if (layer == layers()) {
    const std::int64_t all = options_.pages * options_.page;
    layers_.push_back({.k_RGD = at::empty({all, k_LGD.size(1), k_LGD.size(2)}, k_LGD.options()),
                       .v_RGE = at::empty({all, v_LGE.size(1), v_LGE.size(2)}, v_LGE.options())});
  }
  const LayerMemory& memory = layers_[static_cast<std::size_t>(layer)];
  std::int64_t next = 0;
  for (const plan::Interval& range : rows) {
    const std::int64_t count = range.end - range.begin;
    view_of_rows(memory.k_RGD, range).copy_(k_LGD.narrow(0, next, count));
    view_of_rows(memory.v_RGE, range).copy_(v_LGE.narrow(0, next, count));
    next += count;
  }
}

at::Tensor KvCache::k(int layer, plan::Interval rows) const {
  return view_of_rows(layers_.at(static_cast<std::size_t>(layer)).k_RGD, rows);
}

at::Tensor KvCache::v(int layer, plan::Interval rows) const {
  return view_of_rows(layers_.at(static_cast<std::size_t>(layer)).v_RGE, rows);
}

std::vector<PagedTokens> KvCache::take_for(const CacheLayout& layout, std::int64_t first) {
  std::vector<std::int64_t> counts = counts_of(layout);
  const std::vector<std::int64_t> behind = counts_before(layout, first);
  std::vector<PagedTokens> by_rank;
  for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
    by_rank.push_back(pools_[rank].without_front(behind[rank]));
    counts[rank] -= by_rank[rank].tokens;
  }
  require_room(by_rank, counts);
  for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
    pools_[rank].append(by_rank[rank], counts[rank]);
  }
  return by_rank;
}

std::vector<plan::Interval> KvCache::rows_from(const std::vector<PagedTokens>& by_rank,
                                               const CacheLayout& layout,
                                               std::int64_t first) const {
  const auto rank = static_cast<std::size_t>(rank_);
  return pools_[rank].rows(by_rank[rank],
                           {counts_before(layout, first)[rank], by_rank[rank].tokens});
}

void KvCache::give_back(std::vector<PagedTokens>& by_rank) {
  for (std::size_t rank = 0; rank < pools_.size(); ++rank) pools_[rank].cut(by_rank[rank], 0);
}

void KvCache::set_layout(SessionId session, const CacheLayout& layout,
                         std::vector<PagedTokens> by_rank) {
  CachedSession& entry = at_id(session);
  give_back(entry.by_rank);
  entry.layout = layout;
  entry.by_rank = std::move(by_rank);
  for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
    entry.tokens[rank] = entry.by_rank[rank].tokens;
  }
}

std::int64_t KvCache::bytes() const {
  std::int64_t total = 0;
  for (const LayerMemory& layer : layers_) {
    total += static_cast<std::int64_t>(layer.k_RGD.nbytes() + layer.v_RGE.nbytes());
  }
  return total;
}

void add_extent(CacheLayout& layout, const CacheExtent& extent) {
  if (extent.tokens == 0) return;
  if (!layout.extents.empty()) {
    CacheExtent& last = layout.extents.back();
    const bool goes_on = extent.layout.kind == plan::LayoutKind::Striped &&
                         last.layout == extent.layout &&
                         extent.skipped == last.skipped + last.tokens;
    if (goes_on) {
      last.tokens += extent.tokens;
      last.behind = 0;  // Stripes are the same whatever comes behind.
      return;
    }
  }
  layout.extents.push_back(extent);
}

CacheExtent extent_of_pass(const plan::Layout& layout, plan::Interval packed, std::int64_t behind) {
  return {.tokens = packed.end - packed.begin,
          .layout = layout,
          .skipped = packed.begin,
          .behind = behind};
}

CacheLayout without_front(const CacheLayout& layout, std::int64_t first) {
  CacheLayout rest = layout;
  rest.extents.clear();
  for (CacheExtent extent : layout.extents) {
    const std::int64_t cut = std::min(first, extent.tokens);
    first -= cut;
    extent.tokens -= cut;
    extent.skipped += cut;
    if (extent.tokens > 0) rest.extents.push_back(extent);
  }
  return rest;
}

CacheExtent extent_by_page(std::int64_t position, std::int64_t tokens, std::int64_t page) {
  return {.tokens = tokens,
          .layout = {.kind = plan::LayoutKind::Striped, .stripe = page},
          .skipped = position};
}

}  // namespace armillary::serve
