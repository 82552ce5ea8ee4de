// hand_over.cpp: a move of each layer is started as soon as its K and V are written. Rows are found
// once for all layers, which have the same.
#include "armillary/serve/hand_over.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/relayout/shape.h"
#include "armillary/runtime/dtypes.h"
#include "armillary/runtime/or_abort.h"

namespace armillary::serve {
namespace {

using plan::relayout::CacheLayout;

/// Some rows of a layer in one tensor.
at::Tensor joined_rows(const std::vector<plan::Interval>& rows,
                       const std::function<at::Tensor(plan::Interval)>& read) {
  std::vector<at::Tensor> parts;
  for (const plan::Interval& range : rows) parts.push_back(read(range));
  return parts.empty() ? read({0, 0}) : at::cat(parts);
}

/// The places on a rank of the positions of a layout from one on.
plan::Interval places_from(const CacheLayout& layout, int rank, std::int64_t first) {
  const auto place = place_of(layout, rank);
  if (!place) return {};
  const plan::Runs runs = token_runs(layout)[static_cast<std::size_t>(place->token_rank)];
  return {plan::tokens(plan::clip(runs, {0, first})), plan::tokens(runs)};
}

}  // namespace

void check_token_layout(const CacheLayout& layout) {
  if (layout.head_groups == 1 && layout.stages == 1) return;
  fail<InvalidArgument>(
      "serve: a cache layout of {} head groups and {} stages given; 1 and 1 are required",
      layout.head_groups, layout.stages);
}

HandOver::HandOver(comm::Communicator& comm, KvCache& cache, SessionId session,
                   const CacheLayout& from, const CacheLayout& to)
    : comm_(comm),
      cache_(cache),
      session_(session),
      from_(from),
      to_(to),
      first_(cache.first_behind(session, from.tokens())) {
  check_token_layout(to);
  // The layouts are whole: a window of one token leaves none to compare.
  plan::relayout::check_shape({.from = from_, .to = to_, .world = comm_.world()});
}

void HandOver::plan(int layers) {
  plan::relayout::RelayoutShape shape{.cache = {.layers = std::max(layers, 1)},
                                      .from = without_front(from_, first_),
                                      .to = without_front(to_, first_),
                                      .world = comm_.world()};
  if (layers > 0) {  // Else there are no tokens either.
    const at::Tensor k_LGD = cache_.k(0, {0, 0});
    shape.cache.kv_heads = static_cast<int>(k_LGD.size(1));
    shape.cache.head_dim = static_cast<int>(k_LGD.size(2));
    shape.cache.value_dim = static_cast<int>(cache_.v(0, {0, 0}).size(2));
    shape.cache.dtype = runtime::plan_dtype(k_LGD.scalar_type(), "serve: K");
  }
  move_.emplace(comm_, shape);
  rows_ = cache_.rows(session_, places_from(from_, comm_.rank(), first_));
}

LayerKv HandOver::own(int layer) const {
  return {joined_rows(rows_, [&](plan::Interval rows) { return cache_.k(layer, rows); }),
          joined_rows(rows_, [&](plan::Interval rows) { return cache_.v(layer, rows); })};
}

void HandOver::start(int layer, int layers) {
  if (!move_) plan(layers);
  moves_.push_back(move_->start(layer, own(layer)));
}

std::int64_t HandOver::finish() {
  ARMILLARY_CHECK(move_);
  std::vector<LayerKv> arrived;
  runtime::or_abort(comm_, [&] {
    for (CacheMove::LayerMove& layer : moves_) arrived.push_back(move_->finish(layer));
  });
  cache_.change_layout(session_, to_, [&](const auto&, const std::vector<plan::Interval>& after) {
    for (std::size_t layer = 0; layer < arrived.size(); ++layer) {
      cache_.write(static_cast<int>(layer), after, arrived[layer].k_LGD, arrived[layer].v_LGE);
    }
  });
  return move_->moved_bytes();
}

std::int64_t HandOver::move_at_once(int layers) {
  plan(layers);
  cache_.change_layout(session_, to_, [&](const auto&, const std::vector<plan::Interval>& after) {
    runtime::or_abort(comm_, [&] {
      for (int layer = 0; layer < layers; ++layer) {
        const LayerKv moved = move_->move(layer, own(layer));
        cache_.write(layer, after, moved.k_LGD, moved.v_LGE);
      }
    });
  });
  return move_->moved_bytes();
}

}  // namespace armillary::serve
