#include <limits>
#include <optional>
#include <thread>

#include "armillary/kernel/cpu/block.h"
#include "armillary/kernel/cpu/rounds.h"

namespace armillary::kernel::cpu {
namespace {

const Products& backward_products(const Call& call) {
  return products_of(call, has_words(call.k, call.head_dim) && has_words(call.v, call.value_dim));
}

/// Where a packed block of queries has its parts, in floats from its begin.
struct QueryLayout {
  explicit QueryLayout(const Call& call) {
    const Products& products = backward_products(call);
    const int rows = round_up(call.schedule->largest_q, call.isa->row_group);
    const auto add = [&](int height, int width) {
      const std::int64_t begin = floats;
      floats += std::int64_t{height} * width;
      return begin;
    };
    // Q and dO once for sums over their elements, and once, if that differs, for sums over rows.
    const auto columns = [&](int dim) {
      return add(rows, round_up(dim / products.terms, call.isa->panel));
    };
    const auto values = [&](int dim, std::int64_t same) {
      if (products.terms == 1) return same;
      return add(rows / products.terms, round_up(dim, call.isa->panel));
    };
    q = columns(call.head_dim);
    q_values = values(call.head_dim, q);
    dout = columns(call.value_dim);
    dout_values = values(call.value_dim, dout);
    lse = add(rows, 1);
    delta = add(rows, 1);
  }

  std::int64_t q;
  std::int64_t q_values;
  std::int64_t dout;
  std::int64_t dout_values;
  std::int64_t lse;
  std::int64_t delta;
  std::int64_t floats = 0;
};

/// Queries of a round, packed once for all key blocks: for each KV head, query head of its group
/// and block: Q, dO, log-sum-exp and delta. And whose turn it is to add to dq.
class PackedQueries {
 public:
  PackedQueries(const Call& call, const Upstream& upstream, const Round& round)
      : call_(call),
        upstream_(upstream),
        round_(round),
        layout_(call),
        group_(largest_group(call)) {
    thread_local Scratch scratch;
    const std::int64_t blocks = round.heads * group_ * round.blocks;
    data_ = scratch.floats(static_cast<std::size_t>(blocks * (layout_.floats + 2)));
    wild_ = data_ + blocks * layout_.floats;
    turns_ = reinterpret_cast<std::int32_t*>(wild_ + blocks);
  }

  std::int64_t count() const { return round_.heads * group_ * round_.blocks; }

  void pack(std::int64_t number) {
    const std::int64_t pair = round_.first_head + number / (group_ * round_.blocks);
    const std::int64_t batch = pair / call_.kv_heads;
    const plan::Interval heads = q_heads_of(call_, pair % call_.kv_heads);
    const std::int64_t head = heads.begin + number / round_.blocks % group_;
    turns_[number] = 0;
    if (head >= heads.end) return;
    const plan::Interval rows =
        call_.schedule
            ->q_rows[static_cast<std::size_t>(round_.first_block + number % round_.blocks)];
    const auto count = static_cast<int>(rows.end - rows.begin);
    const int padded = round_up(count, call_.isa->row_group);
    float* const block = data_ + number * layout_.floats;
    const bool q_finite =
        pack_both(rows_of(call_, call_.q, batch, head, rows, call_.head_dim), q_scale(call_),
                  padded, block + layout_.q, block + layout_.q_values);
    const bool dout_finite =
        pack_both(rows_of(call_, upstream_.dout, batch, head, rows, call_.value_dim), 1, padded,
                  block + layout_.dout, block + layout_.dout_values);
    float* const lse = block + layout_.lse;
    float* const delta = block + layout_.delta;
    for (int row = 0; row < padded; ++row) {
      const bool real = row < count;
      lse[row] = real ? *at(upstream_.lse, batch, head, rows.begin + row)
                      : std::numeric_limits<float>::infinity();
      delta[row] = real ? *at(upstream_.delta, batch, head, rows.begin + row) : 0;
    }
    wild_[number] = q_finite && dout_finite ? 0 : 1;
  }

  std::int64_t number(std::int64_t head_of_round, std::int64_t head_of_group,
                      std::int64_t block) const {
    return (head_of_round * group_ + head_of_group) * round_.blocks + block - round_.first_block;
  }

  bool wild(std::int64_t number) const { return wild_[number] != 0; }

  void point(std::int64_t number, BackwardTile& tile) const {
    const float* const block = data_ + number * layout_.floats;
    tile.q = block + layout_.q;
    tile.q_values = block + layout_.q_values;
    tile.dout = block + layout_.dout;
    tile.dout_values = block + layout_.dout_values;
    tile.lse = block + layout_.lse;
    tile.delta = block + layout_.delta;
  }

  /// Waits until the dq of a block has the sums of the first `turn` of its key blocks.
  void wait_for_turn(std::int64_t number, std::int32_t turn) const {
    const std::atomic_ref<std::int32_t> done(turns_[number]);
    for (int spins = 0; done.load(std::memory_order_acquire) != turn; ++spins) {
      if (spins > 1000) std::this_thread::yield();
    }
  }
  void end_turn(std::int64_t number, std::int32_t turn) const {
    std::atomic_ref<std::int32_t>(turns_[number]).store(turn + 1, std::memory_order_release);
  }

 private:
  bool pack_both(const Rows& rows, float scale, int padded, float* columns, float* values) const {
    const Products& products = backward_products(call_);
    const bool finite = products.pack_queries(rows, scale, padded, columns);
    if (values != columns) products.pack_values(rows, scale, padded, values);
    return finite;
  }

  const Call& call_;
  const Upstream& upstream_;
  const Round& round_;
  QueryLayout layout_;
  std::int64_t group_;
  float* data_ = nullptr;
  float* wild_ = nullptr;
  std::int32_t* turns_ = nullptr;
};

/// Numbers of the pairs of a key block whose queries are in the round.
std::span<const std::int32_t> pairs_of(const Schedule& schedule, const Round& round,
                                       std::size_t k_block) {
  const std::int32_t* const first = schedule.by_k.data() + schedule.first_of_k[k_block];
  const std::int32_t* const last = schedule.by_k.data() + schedule.first_of_k[k_block + 1];
  const auto below = [&](std::int32_t pair, std::int64_t q) {
    return schedule.pairs[static_cast<std::size_t>(pair)].q < q;
  };
  const auto* const begin = std::lower_bound(first, last, round.first_block, below);
  return {begin, std::lower_bound(begin, last, round.first_block + round.blocks, below)};
}

/// What sums of dS^T Q lack: packed queries are times scale / softcap, or, in pairs, as they came.
float dk_factor(const Call& call) {
  if (backward_products(call).terms > 1) return static_cast<float>(call.scale);
  return call.softcap == 0 ? 1 : static_cast<float>(call.softcap);
}

/// One block of keys of one KV head against the queries of a round.
void attend_grad_block(const Call& call, const Grads& grads, const Round& round,
                       const PackedQueries& queries, std::int64_t head_of_round,
                       std::size_t k_block) {
  const Tiles& isa = *call.isa;
  const Products& products = backward_products(call);
  const Schedule& schedule = *call.schedule;
  const std::int64_t batch = (round.first_head + head_of_round) / call.kv_heads;
  const std::int64_t kv_head = (round.first_head + head_of_round) % call.kv_heads;
  const plan::Interval heads = q_heads_of(call, kv_head);
  const std::span<const std::int32_t> pairs = pairs_of(schedule, round, k_block);
  if (heads.empty() || pairs.empty()) return;

  const plan::Interval rows = schedule.k_rows[k_block];
  const auto count = static_cast<int>(rows.end - rows.begin);
  const int panels = round_up(count, isa.panel);
  const int groups = round_up(count, isa.row_group);
  Carver carver;
  const auto array = [&](int height, int width) {
    return carver.reserve(static_cast<std::size_t>(height) * static_cast<std::size_t>(width));
  };
  const int d_width = round_up(call.head_dim, isa.panel);
  const int e_width = round_up(call.value_dim, isa.panel);
  const std::size_t k_transposed = array(panels, call.head_dim);
  const std::size_t v_transposed = array(panels, call.value_dim);
  const std::size_t k = array(panels, d_width);
  const std::size_t dk = array(groups, d_width);
  const std::size_t dv = array(groups, e_width);
  const std::size_t weights = array(isa.backward_q_rows, isa.backward_ld);
  const std::size_t dscores = array(isa.backward_q_rows, isa.backward_ld);
  thread_local Scratch scratch;
  float* const memory = scratch.floats(carver.size());

  const Rows k_rows = rows_of(call, call.k, batch, kv_head, rows, call.head_dim);
  const Rows v_rows = rows_of(call, call.v, batch, kv_head, rows, call.value_dim);
  const bool k_finite = products.pack_keys(k_rows, memory + k_transposed);
  const bool v_finite = products.pack_keys(v_rows, memory + v_transposed);
  products.pack_values(k_rows, 1, panels, memory + k);
  std::fill(memory + dk,
            memory + dv + static_cast<std::size_t>(groups) * static_cast<std::size_t>(e_width),
            0.0f);

  BackwardTile tile{.head_dim = call.head_dim,
                    .value_dim = call.value_dim,
                    .scale = static_cast<float>(call.scale),
                    .score_scale = q_scale(call),
                    .k_transposed = memory + k_transposed,
                    .v_transposed = memory + v_transposed,
                    .k_values = memory + k,
                    .weights = memory + weights,
                    .dscores = memory + dscores,
                    .dk = memory + dk,
                    .dv = memory + dv,
                    .dq_stride = grads.dq.row};
  for (std::int64_t head = heads.begin; head < heads.end; ++head) {
    std::optional<DropoutStream> stream;
    if (call.dropout.on()) stream.emplace(call.dropout, batch, call.first_q_head + head);
    for (const std::int32_t number : pairs) {
      const BlockPair& pair = schedule.pairs[static_cast<std::size_t>(number)];
      const auto q_block = static_cast<std::size_t>(pair.q);
      const std::int64_t packed = queries.number(head_of_round, head - heads.begin, pair.q);
      tile.pairs = schedule.tile_pairs(pair);
      tile.pairs.wild = !k_finite || !v_finite || queries.wild(packed);
      tile.score = score_of(call, head, schedule.q_rows[q_block]);
      tile.score.k_positions = schedule.k_positions.data() + rows.begin;
      if (stream) tile.score.dropout = &*stream;
      queries.point(packed, tile);
      tile.dq = at(grads.dq, batch, head, schedule.q_rows[q_block].begin);
      products.backward(tile);
      const std::int32_t turn = number - schedule.first_of_q[q_block];
      queries.wait_for_turn(packed, turn);
      products.backward_dq(tile);
      queries.end_turn(packed, turn);
    }
  }
  isa.add_columns(memory + dk, groups, count, call.head_dim, dk_factor(call),
                  at(grads.dk, batch, kv_head, rows.begin), grads.dk.row);
  isa.add_columns(memory + dv, groups, count, call.value_dim, 1,
                  at(grads.dv, batch, kv_head, rows.begin), grads.dv.row);
}

}  // namespace

PatchLimits backward_limits(const Tiles& isa) {
  return {.q_rows = isa.backward_q_rows, .k_rows = isa.backward_k_rows};
}

void attend_grad(const Call& call, const Upstream& upstream, const Grads& grads) {
  const Schedule& schedule = *call.schedule;
  if (schedule.pairs.empty() || call.heads == 0) return;
  const auto q_blocks = static_cast<std::int64_t>(schedule.q_rows.size());
  const auto k_blocks = static_cast<std::int64_t>(schedule.k_rows.size());
  const std::int64_t block_floats = QueryLayout(call).floats * largest_group(call);
  for_each_round(call.batch * call.kv_heads, q_blocks, block_floats, [&](const Round& round) {
    PackedQueries queries(call, upstream, round);
    deal_out(call.team, queries.count(), [&](std::int64_t i) { queries.pack(i); });
    // Ascending: a block of keys waits only for those before it, which have begun.
    deal_out(call.team, round.heads * k_blocks, [&](std::int64_t i) {
      attend_grad_block(call, grads, round, queries, i / k_blocks,
                        static_cast<std::size_t>(i % k_blocks));
    });
  });
}

}  // namespace armillary::kernel::cpu
