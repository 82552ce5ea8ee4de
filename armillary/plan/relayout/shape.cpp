// shape.cpp: parts are the common tokens of every old and new owner. Transfers are listed from the
// side of the rank that gets: each of its cells has one giver.
#include "armillary/plan/relayout/shape.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::plan::relayout {
namespace {

void require_positive(std::string_view what, std::int64_t value) {
  if (value >= 1) return;
  fail<InvalidArgument>("relayout: {} {} given; at least 1 is required", what, value);
}

/// A layout `name` of the shape fits its cache and world.
void check_layout(std::string_view name, const CacheLayout& layout, const RelayoutShape& shape) {
  require_positive("ranks", layout.ranks);
  require_positive("head groups", layout.head_groups);
  require_positive("stages", layout.stages);
  if (layout.first < 0 || layout.ranks > shape.world - layout.first) {
    fail<InvalidArgument>("relayout: {} has {} from rank {} on; ranks below {} are required", name,
                          count_of(layout.ranks, "rank"), layout.first, shape.world);
  }
  const std::int64_t inner = std::int64_t{layout.head_groups} * layout.stages;
  if (layout.ranks % inner != 0) {
    fail<InvalidArgument>(
        "relayout: {} has {} for {} x {}; a multiple of {} is required; nearest: {}", name,
        count_of(layout.ranks, "rank"), count_of(layout.head_groups, "head group"),
        count_of(layout.stages, "stage"), inner,
        std::max<std::int64_t>(layout.ranks / inner, 1) * inner);
  }
  const int heads = shape.cache.kv_heads;
  if (layout.head_groups > heads && layout.head_groups % heads != 0) {
    fail<InvalidArgument>(
        "relayout: {} has {} of {}; at most {}, or a multiple of it, is required; nearest: {}",
        name, count_of(layout.head_groups, "head group"), count_of(heads, "KV head"), heads,
        layout.head_groups / heads * heads);
  }
  if (layout.stages > shape.cache.layers) {
    fail<InvalidArgument>("relayout: {} has {} of {}; at most {} is required", name,
                          count_of(layout.stages, "stage"), count_of(shape.cache.layers, "layer"),
                          shape.cache.layers);
  }
  for (const CacheExtent& extent : layout.extents) {
    const bool fits = extent.tokens >= 0 && extent.skipped >= 0 && extent.behind >= 0 &&
                      extent.skipped <= kMaxLength && extent.behind <= kMaxLength &&
                      extent.tokens <= kMaxLength - extent.skipped - extent.behind;
    if (!fits) {
      fail<InvalidArgument>(
          "relayout: {} has an extent of {} tokens behind {} and before {}; 0 to {} in all is "
          "required",
          name, extent.tokens, extent.skipped, extent.behind, kMaxLength);
    }
    if (extent.layout.stripe < 1 || extent.layout.kind == LayoutKind::Balanced) {
      fail<InvalidArgument>(
          "relayout: {} has an extent of layout {}; contiguous, zigzag or striped is required; "
          "nearest: zigzag",
          name, plan::to_string(extent.layout));
    }
  }
}

}  // namespace

void check_shape(const RelayoutShape& shape) {
  require_positive("layers", shape.cache.layers);
  require_positive("KV heads", shape.cache.kv_heads);
  require_positive("head dim", shape.cache.head_dim);
  require_positive("value dim", shape.cache.value_dim);
  require_positive("world", shape.world);
  check_layout("the old layout", shape.from, shape);
  check_layout("the new layout", shape.to, shape);
  if (shape.from.tokens() != shape.to.tokens()) {
    fail<InvalidArgument>(
        "relayout: the old layout has {} and the new one {}; equally many are "
        "required",
        count_of(shape.from.tokens(), "token"), count_of(shape.to.tokens(), "token"));
  }
}

RelayoutTables::RelayoutTables(RelayoutShape shape) : shape_(std::move(shape)) {
  check_shape(shape_);
  add_parts();
  for (int layer = 0; layer < shape_.cache.layers; ++layer) {
    for (Rank to = 0; to < shape_.world; ++to) add_transfers(layer, to);
  }
}

void RelayoutTables::add_parts() {
  const std::vector<Runs> before = token_runs(shape_.from);
  const std::vector<Runs> after = token_runs(shape_.to);
  for (int from = 0; from < shape_.from.token_ranks(); ++from) {
    for (int to = 0; to < shape_.to.token_ranks(); ++to) {
      const std::int64_t tokens =
          count_common(before[static_cast<std::size_t>(from)], after[static_cast<std::size_t>(to)]);
      if (tokens > 0) parts_.push_back({from, to, tokens});
    }
  }
}

/// True if `from` is the one of the ranks with these heads that fills `to`.
bool RelayoutTables::gives(Rank from, Rank to, const Heads& heads) const {
  const int copies = copies_of(shape_.from, shape_.cache.kv_heads);
  if (copies == 1) return true;
  // With copies `heads` is one head, and all ranks that have it are at the place of `from` but for
  // their head groups.
  const CachePlace giver = *place_of(shape_.from, from);
  const std::optional<CachePlace> own = place_of(shape_.from, to);
  const bool has_it = own && own->stage == giver.stage && own->token_rank == giver.token_rank &&
                      heads_of(shape_.from, shape_.cache.kv_heads, own->head_group) == heads;
  if (has_it) return from == to;
  const int copy =
      place_of(shape_.to, to)->head_group % copies_of(shape_.to, shape_.cache.kv_heads);
  return giver.head_group % copies == copy % copies;
}

void RelayoutTables::add_transfers(int layer, Rank to) {
  const std::optional<CachePlace> place = place_of(shape_.to, to);
  if (!place) return;
  const Interval layers = layers_of(shape_.to, shape_.cache.layers, place->stage);
  if (layer < layers.begin || layer >= layers.end) return;
  const Heads required = heads_of(shape_.to, shape_.cache.kv_heads, place->head_group);
  for (Rank from = shape_.from.first; from < shape_.from.first + shape_.from.ranks; ++from) {
    const CachePlace giver = *place_of(shape_.from, from);
    const Interval there = layers_of(shape_.from, shape_.cache.layers, giver.stage);
    if (layer < there.begin || layer >= there.end) continue;
    const Heads has = heads_of(shape_.from, shape_.cache.kv_heads, giver.head_group);
    const Heads heads{std::max(has.begin, required.begin), std::min(has.end, required.end)};
    if (heads.begin >= heads.end || !gives(from, to, heads)) continue;
    for (int part = 0; part < static_cast<int>(parts_.size()); ++part) {
      const TokenPart& of = parts_[static_cast<std::size_t>(part)];
      if (of.from != giver.token_rank || of.to != place->token_rank) continue;
      transfers_.push_back({.layer = layer, .from = from, .to = to, .part = part, .heads = heads});
    }
  }
}

std::optional<Tile> RelayoutTables::tile(const CacheLayout& layout, Rank rank, int layer,
                                         RelayoutTensor tensor) const {
  const std::optional<CachePlace> place = place_of(layout, rank);
  if (!place) return std::nullopt;
  const Interval layers = layers_of(layout, shape_.cache.layers, place->stage);
  if (layer < layers.begin || layer >= layers.end) return std::nullopt;
  Tile tile{.tensor = tensor, .heads = heads_of(layout, shape_.cache.kv_heads, place->head_group)};
  const bool is_source = &layout == &shape_.from;
  for (int part = 0; part < static_cast<int>(parts_.size()); ++part) {
    const TokenPart& of = parts_[static_cast<std::size_t>(part)];
    if ((is_source ? of.from : of.to) == place->token_rank)
      tile.blocks.push_back(block(layer, part));
  }
  if (tile.blocks.empty()) return std::nullopt;
  return tile;
}

std::optional<Tile> RelayoutTables::source_tile(Rank rank, int layer, RelayoutTensor tensor) const {
  return tile(shape_.from, rank, layer, tensor);
}

std::optional<Tile> RelayoutTables::target_tile(Rank rank, int layer, RelayoutTensor tensor) const {
  return tile(shape_.to, rank, layer, tensor);
}

std::vector<Tile> RelayoutTables::source_tiles(Rank rank) const {
  std::vector<Tile> tiles;
  for (int layer = 0; layer < shape_.cache.layers; ++layer) {
    for (const RelayoutTensor tensor : kRelayoutTensors) {
      if (auto tile = source_tile(rank, layer, tensor)) tiles.push_back(*std::move(tile));
    }
  }
  return tiles;
}

std::vector<Tile> RelayoutTables::target_tiles(Rank rank) const {
  std::vector<Tile> tiles;
  for (int layer = 0; layer < shape_.cache.layers; ++layer) {
    for (const RelayoutTensor tensor : kRelayoutTensors) {
      if (auto tile = target_tile(rank, layer, tensor)) tiles.push_back(*std::move(tile));
    }
  }
  return tiles;
}

std::int64_t RelayoutTables::bytes(const Transfer& transfer) const {
  const CacheShape& cache = shape_.cache;
  return checked_product(
      "relayout: bytes of a transfer",
      {parts_[static_cast<std::size_t>(transfer.part)].tokens, transfer.heads.count(),
       std::int64_t{cache.head_dim} + cache.value_dim, bytes_of(cache.dtype)});
}

std::int64_t RelayoutTables::moved_bytes() const {
  std::int64_t total = 0;
  for (const Transfer& transfer : transfers_) {
    if (transfer.from != transfer.to) total += bytes(transfer);
  }
  return total;
}

}  // namespace armillary::plan::relayout
