// packed_queries.h: what backward packs for all blocks of keys of a round.
#pragma once

#include <atomic>
#include <limits>
#include <thread>

#include "armillary/kernel/cpu/rounds.h"

namespace armillary::kernel::cpu {

/// Where a packed block of queries has its parts, in floats from its begin.
struct QueryLayout {
  explicit QueryLayout(const Call& call) {
    const Products& products = backward_products(call);
    const int rows = round_up(call.schedule->largest_q, products.units.rows);
    const auto add = [&](std::int64_t count) {
      const std::int64_t begin = floats;
      floats += count;
      return begin;
    };
    // Q and dO once for sums over their elements, and once, if that differs, for sums over rows.
    const auto columns = [&](int dim) { return add(query_floats(products, rows, dim)); };
    const auto values = [&](int dim, std::int64_t same) {
      return products.terms == 1 ? same : add(value_floats(products, rows, dim));
    };
    q = columns(call.head_dim);
    q_values = values(call.head_dim, q);
    dout = columns(call.value_dim);
    dout_values = values(call.value_dim, dout);
    lse = add(rows);
    delta = add(rows);
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
    const std::int64_t blocks = round.heads * group_ * round.blocks;
    data_ = packed_memory().floats(static_cast<std::size_t>(blocks * (layout_.floats + 2)));
    wild_ = data_ + blocks * layout_.floats;
    turns_ = reinterpret_cast<std::int32_t*>(wild_ + blocks);
  }

  std::int64_t count() const { return round_.heads * group_ * round_.blocks; }

  void pack(std::int64_t number) {
    const std::int64_t pair = round_.first_head + number / (group_ * round_.blocks);
    const std::int64_t batch = pair / call_.kv_heads;
    const plan::Interval heads = q_heads_of(call_, pair % call_.kv_heads);
    const std::int64_t head = heads.begin + number / round_.blocks % group_;
    const std::int64_t q_block = round_.first_block + number % round_.blocks;
    turns_[number] = 0;
    if (head >= heads.end || pairs_of_q(*call_.schedule, q_block, round_.others).empty()) return;
    const plan::Interval rows = call_.schedule->q_rows[static_cast<std::size_t>(q_block)];
    const auto count = static_cast<int>(rows.end - rows.begin);
    const int padded = round_up(count, backward_products(call_).units.rows);
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
    if (values != columns) products.pack_query_values(rows, scale, padded, values);
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

}  // namespace armillary::kernel::cpu
