// replicated_pass.cpp: every rank projects all new tokens, so queries need not travel; the rank
// that has the page of a new token writes its K and V. Then each rank attends to the keys that it
// has, all ranks exchange their partial results, out and lse of all sessions in one message, and
// each merges them in the order of ranks, in fp32: the same bits everywhere.
//
//   a layer, P ranks   sent by a rank: (P - 1) T H (E + 1) a bytes in P - 1 messages, whatever the
//                      length of the sessions
//
// A rank without keys gives (0, -inf). Sessions are attended to one by one, so what others are in
// the pass changes no bit of attention; it may change those of the products of matrices.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/core/error.h"
#include "armillary/kernel/block_attention.h"
#include "armillary/plan/decode/words.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/runtime/rank.h"
#include "armillary/serve/pass.h"

namespace armillary::serve {
namespace {

using plan::decode::DecodeOp;

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

/// A part of a pass on one rank: its queries, and the keys that are here.
struct ReplicatedPart {
  SessionId session = 0;
  plan::Interval tokens;                 ///< Among the packed tokens.
  std::vector<plan::Interval> mine;      ///< Those whose K and V this rank writes.
  std::vector<plan::Interval> key_rows;  ///< All keys here: cached ones, then those.
  plan::Mask mask;  ///< Queries by their place in the part, keys by their place in key_rows.
};

/// Sees all cached keys, and of the new ones those up to the query.
plan::Mask mask_of(const ReplicatedPart& part, std::int64_t cached) {
  const std::int64_t queries = part.tokens.end - part.tokens.begin;
  std::vector<plan::Band> bands{{.q = {0, queries}, .k = {0, cached}}};
  std::int64_t key = cached;
  for (const plan::Interval& range : part.mine) {
    const std::int64_t query = range.begin - part.tokens.begin;
    const std::int64_t count = range.end - range.begin;
    bands.push_back({.q = {query, queries}, .k = {key, key + count}, .hi = key - query});
    key += count;
  }
  return {queries, key, std::move(bands)};
}

/// Attention of the layers of one pass, in their order.
class ReplicatedAttention {
 public:
  ReplicatedAttention(const PassContext& context, std::vector<ReplicatedPart> parts,
                      std::vector<plan::Interval> rows)
      : context_(context),
        kernel_(runtime::Rank::of(context.comm).device().kernel()),
        parts_(std::move(parts)),
        rows_(std::move(rows)) {
    std::vector<std::int64_t> mine;
    for (const ReplicatedPart& part : parts_) {
      for (const plan::Interval& range : part.mine) {
        for (std::int64_t token = range.begin; token < range.end; ++token) mine.push_back(token);
      }
    }
    mine_L_ = at::tensor(mine, at::kLong);
  }

  at::Tensor attend(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD, const at::Tensor& v_BLGE) {
    const int layer = layer_++;
    context_.cache.write(layer, rows_, k_BLGD.select(0, 0).index_select(0, mine_L_),
                         v_BLGE.select(0, 0).index_select(0, mine_L_));
    const std::int64_t tokens = q_BLHD.size(1);
    const std::int64_t heads = q_BLHD.size(2);
    const std::int64_t dim = v_BLGE.size(3);
    const at::ScalarType wide = kernel::accumulator(q_BLHD.scalar_type());
    // A row for each rank: out, then lse.
    const at::Tensor all = at::empty({context_.comm.world(), tokens * heads * (dim + 1)},
                                     q_BLHD.options().dtype(wide));
    const auto partial_of = [&](std::int64_t rank) {
      const at::Tensor flat = all.select(0, rank);
      const std::int64_t outs = tokens * heads * dim;
      return kernel::Partial{
          .out_BLHE = flat.narrow(0, 0, outs).view({1, tokens, heads, dim}),
          .lse_BLH = flat.narrow(0, outs, tokens * heads).view({1, tokens, heads})};
    };
    // The program of the exchange, op by op.
    const std::vector<comm::Strided> rows = rows_of(all);
    std::vector<comm::Message> batch;
    kernel::Partial sum;
    for (const plan::Op& op : context_.exchange.ops) {
      const int rank = op.views.back().blocks.front();  // A block is the part of a rank.
      if (op.kind == DecodeOp::Attend) {
        const kernel::Partial own = partial_of(rank);
        for (const ReplicatedPart& part : parts_) attend_part(layer, part, q_BLHD, k_BLGD, own);
      } else if (op.is_comm()) {
        const bool sends = op.kind == DecodeOp::Send;
        batch.push_back({.direction = sends ? comm::Direction::Send : comm::Direction::Receive,
                         .peer = op.peer,
                         .lane = op.lane,
                         .parts = {&rows[static_cast<std::size_t>(rank)], 1}});
      } else {
        run_batch(batch);
        merge_part(op, partial_of(rank), sum);
      }
    }
    return sum.out_BLHE.to(q_BLHD.scalar_type());
  }

 private:
  /// The memory of each row of a tensor.
  static std::vector<comm::Strided> rows_of(const at::Tensor& all) {
    std::vector<comm::Strided> rows;
    for (std::int64_t i = 0; i < all.size(0); ++i) {
      const at::Tensor row = all.select(0, i);
      const auto bytes = static_cast<std::int64_t>(row.nbytes());
      rows.push_back({static_cast<std::byte*>(row.data_ptr()), 1, bytes, bytes});
    }
    return rows;
  }

  /// Starts messages and waits for them.
  void run_batch(std::vector<comm::Message>& batch) const {
    if (batch.empty()) return;
    const std::vector<comm::Request> requests = context_.comm.start(batch);
    context_.comm.wait_all(requests);
    batch.clear();
  }

  static void merge_part(const plan::Op& op, const kernel::Partial& part, kernel::Partial& sum) {
    if (!op.init[plan::decode::kSumSide]) return kernel::merge(sum, part);
    sum = {.out_BLHE = part.out_BLHE.clone(), .lse_BLH = part.lse_BLH.clone()};
  }

  /// The partial result of one session over the keys that are here.
  void attend_part(int layer, const ReplicatedPart& part, const at::Tensor& q_BLHD,
                   const at::Tensor& k_BLGD, const kernel::Partial& own) const {
    const std::int64_t count = part.tokens.end - part.tokens.begin;
    const auto narrowed = [&](const at::Tensor& x) {
      return x.narrow(1, part.tokens.begin, count);
    };
    kernel::Partial carry{.out_BLHE = narrowed(own.out_BLHE), .lse_BLH = narrowed(own.lse_BLH)};
    if (part.key_rows.empty()) return kernel::clear(carry);
    carry.init = true;
    std::int64_t key = 0;
    for (const plan::Interval& rows : part.key_rows) {
      const std::int64_t keys = rows.end - rows.begin;
      const kernel::Pairs pairs{.q_runs = {plan::run_of({0, count})},
                                .k_runs = {plan::run_of({key, key + keys})},
                                .mask = &part.mask,
                                .heads = {.group_size = q_BLHD.size(2) / k_BLGD.size(2)}};
      const kernel::Inputs inputs{
          .q_BLHD = narrowed(q_BLHD),
          .k_BLGD = context_.cache.k(layer, rows).unsqueeze(0),
          .v_BLGE = context_.cache.v(layer, rows).unsqueeze(0),
          .score = {.scale = 1 / std::sqrt(static_cast<double>(q_BLHD.size(3)))}};
      kernel_.attend(pairs, inputs, carry);
      key += keys;
    }
  }

  const PassContext& context_;
  const kernel::Kernel& kernel_;
  const std::vector<ReplicatedPart> parts_;
  const std::vector<plan::Interval> rows_;  ///< The new tokens of this rank.
  at::Tensor mine_L_;                       ///< Those tokens, among the packed ones.
  int layer_ = 0;
};

/// Begins the append of a part, and says what it means for this rank.
ReplicatedPart begin_part(const PassContext& context, const PassPart& part, std::int64_t packed,
                          PassAppends& appends) {
  KvCache& cache = context.cache;
  const auto tokens = static_cast<std::int64_t>(part.tokens.size());
  const std::int64_t cached = cache.tokens(part.session, context.comm.rank());
  plan::relayout::CacheLayout layout = cache.layout(part.session);
  layout.extents = {extent_by_page(cache.tokens(part.session), tokens, cache.page())};
  appends.begin(part.session, layout.extents.front());
  ReplicatedPart result{.session = part.session, .tokens = {packed, packed + tokens}};
  std::int64_t here = 0;
  if (const auto place = place_of(layout, context.comm.rank())) {
    for (plan::Interval range :
         stripes(token_runs(layout)[static_cast<std::size_t>(place->token_rank)])) {
      here += range.end - range.begin;
      result.mine.push_back({packed + range.begin, packed + range.end});
    }
  }
  result.key_rows = cache.rows(part.session, cached + here);
  result.mask = mask_of(result, cached);
  return result;
}

}  // namespace

at::Tensor run_replicated(const PassContext& context, std::span<const PassPart> parts) {
  const at::NoGradGuard no_grad;
  const std::vector<std::int64_t> tokens = packed_tokens(parts);
  const std::vector<std::int64_t> positions = packed_positions(context.cache, parts);
  PassAppends appends(context.cache);
  std::vector<ReplicatedPart> of_rank;
  std::vector<std::int64_t> lasts;
  std::int64_t packed = 0;
  for (const PassPart& part : parts) {
    of_rank.push_back(begin_part(context, part, packed, appends));
    packed = of_rank.back().tokens.end;
    if (part.is_last) lasts.push_back(packed - 1);
  }
  ReplicatedAttention attention(context, std::move(of_rank), appends.rows());
  const model::Attend attend = [&](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                   const at::Tensor& v_BLGE) {
    return attention.attend(q_BLHD, k_BLGD, v_BLGE);
  };
  const at::Tensor x_BLE = features_of(context, tokens, positions, attend);
  appends.end();
  return x_BLE.select(0, 0).index_select(0, at::tensor(lasts, at::kLong));
}

}  // namespace armillary::serve
