// packed_keys.h: what forward packs for all blocks of queries of a round.
#pragma once

#include "armillary/kernel/cpu/rounds.h"

namespace armillary::kernel::cpu {

/// Where a packed block of keys has its parts, in floats from its begin: K, then V.
struct KeyLayout {
  explicit KeyLayout(const Call& call) {
    const Products& products = forward_products(call);
    const int rows = round_up(call.schedule->largest_k, products.units.keys);
    v = key_floats(products, rows, call.head_dim);
    floats = v + value_floats(products, rows, call.value_dim);
  }

  std::int64_t v = 0;
  std::int64_t floats = 0;
};

/// Packed keys of a round: for each head and block, K transposed, then V in columns.
class PackedKeys {
 public:
  PackedKeys(const Call& call, const Round& round)
      : call_(call), products_(forward_products(call)), round_(round), layout_(call) {
    const auto blocks = static_cast<std::size_t>(round.heads * round.blocks);
    data_ = packed_memory().floats(blocks * static_cast<std::size_t>(layout_.floats) + blocks);
    wild_ = data_ + blocks * static_cast<std::size_t>(layout_.floats);
  }

  void pack(std::int64_t number) {
    const std::int64_t pair = round_.first_head + number / round_.blocks;
    const std::int64_t block = round_.first_block + number % round_.blocks;
    const std::int64_t batch = pair / call_.kv_heads;
    const std::int64_t head = pair % call_.kv_heads;
    const auto index = static_cast<std::size_t>(block);
    const Schedule& schedule = *call_.schedule;
    if (q_heads_of(call_, head).empty()) return;
    if (pairs_of_k(schedule, block, round_.others).empty()) return;
    const plan::Interval rows = schedule.k_rows[index];
    const int padded = round_up(static_cast<int>(rows.end - rows.begin), products_.units.keys);
    float* const k = data_ + number * layout_.floats;
    const bool k_finite =
        products_.pack_keys(rows_of(call_, call_.k, batch, head, rows, call_.head_dim), k);
    const bool v_finite = products_.pack_values(
        rows_of(call_, call_.v, batch, head, rows, call_.value_dim), 1, padded, k + layout_.v);
    wild_[number] = k_finite && v_finite ? 0 : 1;
  }

  void point(std::int64_t head, std::int64_t block, ForwardTile& tile) const {
    const std::int64_t number = head * round_.blocks + block - round_.first_block;
    tile.k = data_ + number * layout_.floats;
    tile.v = tile.k + layout_.v;
    tile.pairs.wild = wild_[number] != 0;
  }

 private:
  const Call& call_;
  const Products& products_;
  const Round& round_;
  KeyLayout layout_;
  float* data_ = nullptr;
  float* wild_ = nullptr;
};

}  // namespace armillary::kernel::cpu
