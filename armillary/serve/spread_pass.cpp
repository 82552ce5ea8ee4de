// spread_pass.cpp: attention of a layer is one call among the new tokens, in the layout of the
// pass, and one to the cached tokens if there are any that its window reaches. The mask of the
// second call numbers tokens by rank and place, so any layouts of any caches will do; windows are
// staircases in it (windows.h). Ranks with fewer tokens than others are filled up with tokens that
// no query sees, which are neither sent nor computed.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/attention/attention.h"
#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/kernel/block_attention.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/serve/context_side.h"
#include "armillary/serve/pass.h"

namespace armillary::serve {
namespace {

using attention::Attention;
using attention::AttentionInProgress;
using attention::AttentionOptions;
using attention::AttentionResults;
using attention::CallKind;

std::int64_t bytes_of_element(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

/// The packed tokens of a pass as they are spread over ranks.
class SpreadTokens {
 public:
  SpreadTokens(const PassContext& context, std::span<const PassPart> parts) {
    std::vector<std::int64_t> lengths;
    for (const PassPart& part : parts) {
      begins_.push_back(tokens_);
      lengths.push_back(static_cast<std::int64_t>(part.tokens.size()));
      tokens_ += lengths.back();
    }
    begins_.push_back(tokens_);
    for (const std::int64_t window : context.windows.distinct()) {
      const plan::Within within =
          window > 0 ? plan::Within(plan::Window{.left = window - 1}) : plan::Causal{};
      masks_.push_back(plan::documents_mask({tokens_, tokens_}, lengths, within));
    }
    by_rank_ = plan::shards(context.layout, masks_.front(), context.comm.world()).q;
  }

  std::int64_t tokens() const { return tokens_; }
  /// The mask among the new tokens, by distinct window.
  const std::vector<plan::Mask>& masks() const { return masks_; }
  const plan::Runs& of_rank(int rank) const { return by_rank_[static_cast<std::size_t>(rank)]; }
  /// The packed tokens of a part.
  plan::Interval of_part(std::size_t part) const { return {begins_[part], begins_[part + 1]}; }
  /// Tokens of a part on a rank, by their places in the memory of the rank.
  plan::Interval places(int rank, std::size_t part) const {
    const plan::Interval range = of_part(part);
    const std::int64_t begin = plan::tokens(plan::clip(of_rank(rank), {0, range.begin}));
    return {begin, begin + plan::tokens(plan::clip(of_rank(rank), range))};
  }
  std::int64_t most_of_a_rank() const {
    std::int64_t most = 0;
    for (const plan::Runs& runs : by_rank_) most = std::max(most, plan::tokens(runs));
    return most;
  }
  /// The rank that has a packed token.
  int owner(std::int64_t token) const {
    for (std::size_t rank = 0; rank < by_rank_.size(); ++rank) {
      if (!plan::clip(by_rank_[rank], {token, token + 1}).empty()) return static_cast<int>(rank);
    }
    ARMILLARY_CHECK(false);
  }

 private:
  std::int64_t tokens_ = 0;
  std::vector<std::int64_t> begins_;  ///< By part, and the end.
  std::vector<plan::Mask> masks_;
  std::vector<plan::Runs> by_rank_;
};

/// Cached keys and values of one rank.
struct CachedKeys {
  at::Tensor k_BKGD;
  at::Tensor v_BKGE;
};

/// Attention of the new tokens to the cached ones of their sessions, for all layers of a pass that
/// have one window.
class ContextAttention {
 public:
  ContextAttention(const PassContext& context, std::span<const PassPart> parts,
                   const SpreadTokens& spread, std::int64_t window)
      : context_(context), parts_(parts), queries_(spread.most_of_a_rank()), window_(window) {
    const int world = context.comm.world();
    for (int rank = 0; rank < world; ++rank) {
      std::int64_t keys = 0;
      std::vector<ReachedKeys>& reached = reached_.emplace_back();
      for (const PassPart& part : parts) {
        reached.push_back(reached_keys(context.cache, part.session, rank, window));
        keys += count_of(reached.back());
      }
      keys_ = std::max(keys_, keys);
    }
    const std::vector<ReachedKeys>& own = reached_[static_cast<std::size_t>(context.comm.rank())];
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const std::vector<plan::Interval> rows =
          context.cache.rows(parts[part].session, own[part].places);
      rows_.insert(rows_.end(), rows.begin(), rows.end());
    }
    std::vector<plan::Band> bands;
    for (int q_rank = 0; q_rank < world; ++q_rank) {
      for (std::size_t part = 0; part < parts.size(); ++part) {
        add_bands(spread, q_rank, part, bands);
      }
    }
    mask_ = plan::Mask(world * queries_, world * keys_, std::move(bands));
  }

  /// Whether there are cached tokens in reach.
  bool has_keys() const { return keys_ > 0; }

  /// Partial result of the queries of this rank. Collective.
  AttentionResults attend(int layer, const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                          const at::Tensor& v_BLGE) const {
    const auto [k_BKGD, v_BKGE] = cached(layer, k_BLGD, v_BLGE);
    at::Tensor q_BKHD = q_BLHD;
    if (q_BLHD.size(1) < queries_) {
      q_BKHD = at::zeros({1, queries_, q_BLHD.size(2), q_BLHD.size(3)}, q_BLHD.options());
      q_BKHD.narrow(1, 0, q_BLHD.size(1)).copy_(q_BLHD);
    }
    const AttentionOptions options{.mask = mask_,
                                   .layout = {.kind = plan::LayoutKind::Contiguous},
                                   .strategy = strategy(q_BLHD, v_BLGE)};
    AttentionResults results =
        Attention(context_.comm, options).run(CallKind::AttentionLse, {q_BKHD, k_BKGD, v_BKGE});
    results.out_BLHE = results.out_BLHE.narrow(1, 0, q_BLHD.size(1));
    results.lse_BLH = results.lse_BLH.narrow(1, 0, q_BLHD.size(1));
    return results;
  }

 private:
  static std::int64_t count_of(const ReachedKeys& keys) {
    return keys.places.end - keys.places.begin;
  }

  /// The queries of a part on a rank with its keys of every rank.
  void add_bands(const SpreadTokens& spread, int q_rank, std::size_t part,
                 std::vector<plan::Band>& bands) const {
    const std::int64_t before = context_.cache.tokens(parts_[part].session);
    std::vector<std::int64_t> positions =
        plan::positions(plan::clip(spread.of_rank(q_rank), spread.of_part(part)));
    for (std::int64_t& position : positions) position += before - spread.of_part(part).begin;
    const std::int64_t q = q_rank * queries_ + spread.places(q_rank, part).begin;
    for (std::size_t k_rank = 0; k_rank < reached_.size(); ++k_rank) {
      std::int64_t k = static_cast<std::int64_t>(k_rank) * keys_;
      for (std::size_t i = 0; i < part; ++i) k += count_of(reached_[k_rank][i]);
      const std::vector<plan::Band> cached =
          cached_bands(positions, q, reached_[k_rank][part], k, window_);
      bands.insert(bands.end(), cached.begin(), cached.end());
    }
  }

  /// The cached keys and values of this rank, part after part, filled up. `k`, `v`: new ones, for
  /// their shapes.
  CachedKeys cached(int layer, const at::Tensor& k_BLGD, const at::Tensor& v_BLGE) const {
    CachedKeys all{at::zeros({1, keys_, k_BLGD.size(2), k_BLGD.size(3)}, k_BLGD.options()),
                   at::zeros({1, keys_, v_BLGE.size(2), v_BLGE.size(3)}, v_BLGE.options())};
    std::int64_t next = 0;
    for (const plan::Interval& rows : rows_) {
      const std::int64_t count = rows.end - rows.begin;
      all.k_BKGD.select(0, 0).narrow(0, next, count).copy_(context_.cache.k(layer, rows));
      all.v_BKGE.select(0, 0).narrow(0, next, count).copy_(context_.cache.v(layer, rows));
      next += count;
    }
    return all;
  }

  /// Queries travel if that costs fewer bytes.
  std::string strategy(const at::Tensor& q_BLHD, const at::Tensor& v_BLGE) const {
    const ContextSide side = cheaper_side(
        {.new_tokens = context_.comm.world() * queries_,
         .cached_tokens = context_.comm.world() * keys_,
         .heads = q_BLHD.size(2),
         .kv_heads = v_BLGE.size(2),
         .head_dim = q_BLHD.size(3),
         .value_dim = v_BLGE.size(3),
         .element_bytes = bytes_of_element(q_BLHD.scalar_type()),
         .accumulator_bytes = bytes_of_element(kernel::accumulator(q_BLHD.scalar_type()))});
    return side == ContextSide::Queries ? "tokenring" : "ring";
  }

  const PassContext& context_;
  std::span<const PassPart> parts_;
  std::int64_t queries_ = 0;  ///< On each rank, with those that fill up.
  std::int64_t keys_ = 0;     ///< Likewise.
  std::int64_t window_ = 0;
  std::vector<std::vector<ReachedKeys>> reached_;  ///< By rank and part.
  std::vector<plan::Interval> rows_;               ///< Those of this rank, part after part.
  plan::Mask mask_;
};

/// Merges the results over new and over cached keys, in this order.
at::Tensor merged(const AttentionResults& results, const AttentionResults& cached) {
  const at::ScalarType dtype = results.out_BLHE.scalar_type();
  const at::ScalarType wide = kernel::accumulator(dtype);
  kernel::Partial sum{.out_BLHE = results.out_BLHE.to(wide, /*non_blocking=*/false, /*copy=*/true),
                      .lse_BLH = results.lse_BLH.clone()};
  kernel::merge(sum, {.out_BLHE = cached.out_BLHE.to(wide), .lse_BLH = cached.lse_BLH});
  return sum.out_BLHE.to(dtype);
}

/// Attention of the layers of one pass, in their order.
class SpreadAttention {
 public:
  SpreadAttention(const PassContext& context, std::span<const PassPart> parts,
                  const SpreadTokens& spread, std::vector<plan::Interval> rows)
      : context_(context), rows_(std::move(rows)) {
    for (std::size_t i = 0; i < spread.masks().size(); ++i) {
      by_window_.push_back(
          {{context, parts, spread, context.windows.distinct()[i]},
           {context.comm,
            {.mask = spread.masks()[i], .layout = context.layout, .strategy = context.strategy}}});
    }
  }

  model::Attend::InProgress begin(const model::QkvShape& shape) {
    const WindowAttention& attention = of_layer(layer_);
    const CallKind kind =
        attention.cached.has_keys() ? CallKind::AttentionLse : CallKind::Attention;
    const auto call = std::make_shared<AttentionInProgress>(
        attention.among_new.begin(kind, {.batch = shape.batch,
                                         .q_tokens = shape.tokens,
                                         .kv_tokens = shape.tokens,
                                         .heads = shape.heads,
                                         .kv_heads = shape.kv_heads,
                                         .head_dim = shape.head_dim,
                                         .value_dim = shape.head_dim,
                                         .dtype = shape.dtype}));
    return {
        .take_k = [call](const at::Tensor& k_BLGD) { call->feed_k(k_BLGD); },
        .take_v = [call](const at::Tensor& v_BLGD) { call->feed_v(v_BLGD); },
        .finish = [this, call](
                      const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                      const at::Tensor& v_BLGD) { return finish(*call, q_BLHD, k_BLGD, v_BLGD); }};
  }

 private:
  /// Attention of layers that have one window.
  struct WindowAttention {
    ContextAttention cached;
    Attention among_new;
  };

  const WindowAttention& of_layer(int layer) const {
    return by_window_[context_.windows.index_of(layer)];
  }

  at::Tensor finish(AttentionInProgress& call, const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                    const at::Tensor& v_BLGD) {
    const int layer = layer_++;
    context_.cache.write(layer, rows_, k_BLGD.select(0, 0), v_BLGD.select(0, 0));
    const AttentionResults results = call.finish(q_BLHD, k_BLGD, v_BLGD);
    const ContextAttention& cached = of_layer(layer).cached;
    const at::Tensor out_BLHD = cached.has_keys()
                                    ? merged(results, cached.attend(layer, q_BLHD, k_BLGD, v_BLGD))
                                    : results.out_BLHE;
    if (context_.on_layer) context_.on_layer(layer);
    return out_BLHD;
  }

  const PassContext& context_;
  std::vector<WindowAttention> by_window_;
  const std::vector<plan::Interval> rows_;  ///< The new tokens of this rank.
  int layer_ = 0;                           ///< That is begun next, or is in progress.
};

/// The features of the last token of each part that asks for them, from its owner.
at::Tensor last_features(const PassContext& context, std::span<const PassPart> parts,
                         const SpreadTokens& spread, const at::Tensor& x_BLE) {
  std::vector<std::int64_t> lasts;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].is_last) lasts.push_back(spread.of_part(part).end - 1);
  }
  const at::Tensor features_BE =
      at::empty({static_cast<std::int64_t>(lasts.size()), x_BLE.size(2)}, x_BLE.options());
  const int rank = context.comm.rank();
  for (std::size_t i = 0; i < lasts.size(); ++i) {
    const at::Tensor row_E = features_BE.select(0, static_cast<std::int64_t>(i));
    const int owner = spread.owner(lasts[i]);
    if (owner == rank) {
      const std::int64_t place = plan::tokens(plan::clip(spread.of_rank(rank), {0, lasts[i]}));
      row_E.copy_(x_BLE.select(0, 0).select(0, place));
    }
    comm::broadcast(context.comm,
                    std::span(static_cast<std::byte*>(row_E.data_ptr()), row_E.nbytes()), owner);
  }
  return features_BE;
}

}  // namespace

at::Tensor run_spread(const PassContext& context, std::span<const PassPart> parts) {
  const at::NoGradGuard no_grad;
  const SpreadTokens spread(context, parts);
  // Before new tokens join the cache.
  const std::vector<std::int64_t> all_tokens = packed_tokens(parts);
  const std::vector<std::int64_t> all_positions = packed_positions(context.cache, parts);
  // K and V stay on the rank that computes them.
  PassAppends appends(context.cache);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const plan::Interval range = spread.of_part(part);
    appends.begin(parts[part].session,
                  extent_of_pass(context.layout, range, spread.tokens() - range.end));
  }
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> positions;
  for (const std::int64_t place : plan::positions(spread.of_rank(context.comm.rank()))) {
    tokens.push_back(all_tokens[static_cast<std::size_t>(place)]);
    positions.push_back(all_positions[static_cast<std::size_t>(place)]);
  }
  SpreadAttention attention(context, parts, spread, appends.rows());
  const model::Attend attend = [&](const model::QkvShape& shape) { return attention.begin(shape); };
  return runtime::or_abort(context.comm, [&] {
    const at::Tensor x_BLE = features_of(context, tokens, positions, attend);
    const at::Tensor features_BE = last_features(context, parts, spread, x_BLE);
    appends.end();
    return features_BE;
  });
}

}  // namespace armillary::serve
