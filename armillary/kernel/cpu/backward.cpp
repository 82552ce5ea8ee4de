#include <optional>

#include "armillary/kernel/cpu/block.h"
#include "armillary/kernel/cpu/packed_queries.h"
#include "armillary/kernel/cpu/rounds.h"

namespace armillary::kernel::cpu {
namespace {

/// What sums of dS^T Q lack: packed queries are times scale / softcap, or, in pairs, as they came.
float dk_factor(const Call& call) {
  if (backward_products(call).terms > 1) return static_cast<float>(call.scale);
  return call.softcap == 0 ? 1 : static_cast<float>(call.softcap);
}

/// What becomes of gradients.
struct GradTarget {
  /// What calls add to. Of `ends`, what is added up before it is written: the results themselves if
  /// they are fp32, else rows of dq of the round's query heads, and rows of dk and dv of the
  /// round's others, if a head takes several rounds.
  Grads sums;
  bool ends = false;     ///< They end as the results.
  AllGrads results;      ///< Of `ends`; and always where dq goes.
  bool rounded = false;  ///< `sums` are such rows.
};

constexpr float kZeros[kMaxDim] = {};

/// One block of keys of one KV head against the queries of a round.
class KeyBlock {
 public:
  KeyBlock(const Call& call, const GradTarget& target, const Round& round,
           const PackedQueries& queries, std::int64_t head_of_round, std::int64_t k_block)
      : call_(call),
        products_(backward_products(call)),
        target_(target),
        round_(round),
        queries_(queries),
        head_of_round_(head_of_round),
        batch_((round.first_head + head_of_round) / call.kv_heads),
        kv_head_((round.first_head + head_of_round) % call.kv_heads),
        heads_(q_heads_of(call, kv_head_)),
        pairs_(pairs_of_k(*call.schedule, k_block,
                          {round.first_block, round.first_block + round.blocks})),
        turn_(turn_of_keys(k_block)),
        rows_(call.schedule->k_rows[static_cast<std::size_t>(k_block)]),
        first_row_(target.rounded
                       ? call.schedule->k_rows[static_cast<std::size_t>(round.others.begin)].begin
                       : 0) {}

  void run() {
    if (turn_.idle && !begins()) return;
    reserve();
    if (!turn_.idle) attend();
    settle(dk_, call_.head_dim, dk_factor(call_), target_.sums.dk, target_.results.dk);
    settle(dv_, call_.value_dim, 1, target_.sums.dv, target_.results.dv);
  }

 private:
  bool begins() const { return target_.sums.dkv_fresh && turn_.first; }
  bool ends() const { return target_.ends && turn_.last; }
  int count() const { return static_cast<int>(rows_.end - rows_.begin); }
  int panels() const { return round_up(count(), products_.units.keys); }
  int groups() const { return round_up(count(), products_.units.rows); }

  Turn turn_of_keys(std::int64_t k_block) const {
    const Schedule& schedule = *call_.schedule;
    const bool first_blocks = round_.first_block == 0;
    if (heads_.empty()) return {first_blocks, first_blocks, true};
    const auto k = static_cast<std::size_t>(k_block);
    const std::int32_t* const by_k = schedule.by_k.data();
    return turn_of(pairs_, by_k + schedule.first_of_k[k], by_k + schedule.first_of_k[k + 1],
                   first_blocks);
  }

  void reserve() {
    Carver carver;
    const auto array = [&](std::int64_t floats) {
      return carver.reserve(static_cast<std::size_t>(floats));
    };
    const auto sums = [&](int width) {
      return std::int64_t{groups()} * round_up(width, products_.units.columns);
    };
    const std::size_t k_transposed = array(key_floats(products_, panels(), call_.head_dim));
    const std::size_t v_transposed = array(key_floats(products_, panels(), call_.value_dim));
    const std::size_t k = array(value_floats(products_, panels(), call_.head_dim));
    const std::size_t dk = array(sums(call_.head_dim));
    const std::size_t dv = array(sums(call_.value_dim));
    const std::size_t weights = array(products_.backward_sizes.scores);
    const std::size_t dscores = array(products_.backward_sizes.dscores);
    thread_local Scratch scratch;
    float* const memory = scratch.floats(carver.size());
    k_transposed_ = memory + k_transposed;
    v_transposed_ = memory + v_transposed;
    k_values_ = memory + k;
    dk_ = memory + dk;
    dv_ = memory + dv;
    weights_ = memory + weights;
    dscores_ = memory + dscores;
    std::fill(dk_, dv_ + sums(call_.value_dim), 0.0f);
  }

  void attend() {
    const Schedule& schedule = *call_.schedule;
    const Rows k_rows = rows_of(call_, call_.k, batch_, kv_head_, rows_, call_.head_dim);
    const Rows v_rows = rows_of(call_, call_.v, batch_, kv_head_, rows_, call_.value_dim);
    const bool k_finite = products_.pack_keys(k_rows, k_transposed_);
    const bool v_finite = products_.pack_keys(v_rows, v_transposed_);
    products_.pack_values(k_rows, 1, panels(), k_values_);
    BackwardTile tile{.head_dim = call_.head_dim,
                      .value_dim = call_.value_dim,
                      .scale = static_cast<float>(call_.scale),
                      .score_scale = q_scale(call_),
                      .k_transposed = k_transposed_,
                      .v_transposed = v_transposed_,
                      .k_values = k_values_,
                      .weights = weights_,
                      .dscores = dscores_,
                      .dk = dk_,
                      .dv = dv_,
                      .dq_stride = target_.sums.dq.row};
    for (std::int64_t head = heads_.begin; head < heads_.end; ++head) {
      std::optional<DropoutStream> stream;
      if (call_.dropout.on()) stream.emplace(call_.dropout, batch_, call_.first_q_head + head);
      for (const std::int32_t number : pairs_) {
        const BlockPair& pair = schedule.pairs[static_cast<std::size_t>(number)];
        const std::int64_t packed = queries_.number(head_of_round_, head - heads_.begin, pair.q);
        tile.pairs = schedule.tile_pairs(pair);
        tile.pairs.wild = !k_finite || !v_finite || queries_.wild(packed);
        tile.score = score_of(call_, head, schedule.q_rows[static_cast<std::size_t>(pair.q)]);
        tile.score.k_positions = schedule.k_positions.data() + rows_.begin;
        if (stream) tile.score.dropout = &*stream;
        queries_.point(packed, tile);
        products_.backward(tile);
        add_dq(tile, head, number, packed);
      }
    }
  }

  /// In the order of key blocks.
  void add_dq(BackwardTile& tile, std::int64_t head, std::int32_t number, std::int64_t packed) {
    const Schedule& schedule = *call_.schedule;
    const auto q_block =
        static_cast<std::size_t>(schedule.pairs[static_cast<std::size_t>(number)].q);
    const std::int64_t row = schedule.q_rows[q_block].begin;
    const auto first_of_round = static_cast<std::int32_t>(
        pairs_of_q(schedule, static_cast<std::int64_t>(q_block), round_.others).data() -
        schedule.pairs.data());
    tile.dq = target_.rounded ? at(target_.sums.dq, 0,
                                   head_of_round_ * largest_group(call_) + head - heads_.begin, row)
                              : at(target_.sums.dq, batch_, head, row);
    queries_.wait_for_turn(packed, number - first_of_round);
    const Tiles& isa = *call_.isa;
    if (target_.sums.dq_fresh && number == schedule.first_of_q[q_block]) {
      isa.write_rows[index_of(Element::Float32)](kZeros, 0, tile.pairs.q_rows, call_.head_dim,
                                                 tile.dq, tile.dq_stride);
    }
    products_.backward_dq(tile);
    if (target_.rounded && number + 1 == schedule.first_of_q[q_block + 1]) {
      const Result& dq = target_.results.dq;
      isa.write_rows[index_of(dq.element)](tile.dq, tile.dq_stride, tile.pairs.q_rows,
                                           call_.head_dim, at(dq, batch_, head, row), dq.row);
    }
    queries_.end_turn(packed, number - first_of_round);
  }

  /// Brings what the round gave, packed, to its sums or to the result.
  void settle(const float* packed, int width, float factor, const Output& sums,
              const Result& result) const {
    void* const to = ends() ? at(result, batch_, kv_head_, rows_.begin) : nullptr;
    if (begins() && ends()) {
      products_.write_sums[index_of(result.element)](packed, groups(), count(), width, factor, to,
                                                     result.row);
      return;
    }
    float* const at_rest = target_.rounded ? at(sums, 0, 0, rows_.begin - first_row_)
                                           : at(sums, batch_, kv_head_, rows_.begin);
    if (begins()) {
      products_.write_sums[index_of(Element::Float32)](packed, groups(), count(), width, factor,
                                                       at_rest, sums.row);
    } else {
      products_.add_sums(packed, groups(), count(), width, factor, at_rest, sums.row);
    }
    if (ends() && target_.rounded) {
      call_.isa->write_rows[index_of(result.element)](at_rest, sums.row, count(), width, to,
                                                      result.row);
    }
  }

  const Call& call_;
  const Products& products_;
  const GradTarget& target_;
  const Round& round_;
  const PackedQueries& queries_;
  std::int64_t head_of_round_;
  std::int64_t batch_;
  std::int64_t kv_head_;
  plan::Interval heads_;  ///< Query heads that read this KV head.
  std::span<const std::int32_t> pairs_;
  Turn turn_;
  plan::Interval rows_;
  std::int64_t first_row_;  ///< Of the sums of `rounded`.
  // Scratch.
  float* k_transposed_ = nullptr;
  float* v_transposed_ = nullptr;
  float* k_values_ = nullptr;
  float* dk_ = nullptr;
  float* dv_ = nullptr;
  float* weights_ = nullptr;
  float* dscores_ = nullptr;
};

/// dq of queries that see no key.
void clear_dq(const Call& call, const GradTarget& target) {
  const Schedule& schedule = *call.schedule;
  const Result& dq = target.results.dq;
  for (std::size_t q = 0; q < schedule.q_rows.size(); ++q) {
    if (schedule.first_of_q[q] != schedule.first_of_q[q + 1]) continue;
    const plan::Interval rows = schedule.q_rows[q];
    for (std::int64_t i = 0; i < call.batch * call.heads; ++i) {
      call.isa->write_rows[index_of(dq.element)](
          kZeros, 0, static_cast<int>(rows.end - rows.begin), call.head_dim,
          at(dq, i / call.heads, i % call.heads, rows.begin), dq.row);
    }
  }
}

/// Memory for the sums of results that are rounded, and how many others of a round that takes.
void place_sums(const Call& call, Rounds& rounds, GradTarget& target) {
  const Schedule& schedule = *call.schedule;
  const std::int64_t q_rows = schedule.q_rows.back().end;
  const std::int64_t heads = std::min(rounds.heads, rounds.heads_each()) * largest_group(call);
  Carver carver;
  const auto array = [&](std::int64_t height, int width) {
    return carver.reserve(static_cast<std::size_t>(height * width));
  };
  const std::size_t dq = array(heads * q_rows, call.head_dim);
  std::int64_t k_rows = 0;
  if (rounds.several_a_head()) {
    const int width = call.head_dim + call.value_dim;
    rounds.others_each = kRestingFloats / (std::int64_t{schedule.largest_k} * width);
    k_rows = std::min(rounds.others_each, rounds.others) * schedule.largest_k;
  }
  const std::size_t dk = array(k_rows, call.head_dim);
  const std::size_t dv = array(k_rows, call.value_dim);
  float* const memory = resting_memory().floats(carver.size());
  target.sums = {.dq = {.data = memory + dq, .row = call.head_dim, .head = q_rows * call.head_dim},
                 .dk = {.data = memory + dk, .row = call.head_dim},
                 .dv = {.data = memory + dv, .row = call.value_dim},
                 .dq_fresh = true,
                 .dkv_fresh = true};
}

void attend_grad_to(const Call& call, const Upstream& upstream, GradTarget target) {
  const Schedule& schedule = *call.schedule;
  const auto k_blocks = static_cast<std::int64_t>(schedule.k_rows.size());
  Rounds rounds{.heads = call.batch * call.kv_heads,
                .blocks = static_cast<std::int64_t>(schedule.q_rows.size()),
                .block_floats = QueryLayout(call).floats * largest_group(call),
                .others = k_blocks,
                .others_each = k_blocks,
                .heads_floats = backward_products(call).heads_floats};
  if (target.rounded) place_sums(call, rounds, target);
  if (target.sums.dq_fresh) clear_dq(call, target);
  for_each_round(rounds, [&](const Round& round) {
    PackedQueries queries(call, upstream, round);
    deal_out(call.team, queries.count(), [&](std::int64_t i) { queries.pack(i); });
    // Ascending: a block of keys waits only for those before it, which have begun.
    const std::int64_t blocks = round.others.end - round.others.begin;
    deal_out(call.team, round.heads * blocks, [&](std::int64_t i) {
      KeyBlock(call, target, round, queries, i / blocks, round.others.begin + i % blocks).run();
    });
  });
}

}  // namespace

const Products& backward_products(const Call& call) {
  return products_of(call, has_words(call.k, call.head_dim) && has_words(call.v, call.value_dim));
}

PatchLimits backward_limits(const Products& products) {
  return {.q_rows = products.backward_sizes.q_rows, .k_rows = products.backward_sizes.k_rows};
}

void attend_grad(const Call& call, const Upstream& upstream, const Grads& grads) {
  attend_grad_to(call, upstream, {.sums = grads, .results = {.dq = result_of(grads.dq)}});
}

void attend_grad_all(const Call& call, const Upstream& upstream, const AllGrads& results) {
  GradTarget target{
      .ends = true, .results = results, .rounded = results.dq.element != Element::Float32};
  if (!target.rounded) {
    target.sums = {
        .dq = floats_of(results.dq), .dk = floats_of(results.dk), .dv = floats_of(results.dv)};
  }
  target.sums.dq_fresh = target.sums.dkv_fresh = true;
  attend_grad_to(call, upstream, target);
}

}  // namespace armillary::kernel::cpu
