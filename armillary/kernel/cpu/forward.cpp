#include <cmath>
#include <limits>
#include <optional>

#include "armillary/kernel/cpu/block.h"
#include "armillary/kernel/cpu/features.h"
#include "armillary/kernel/cpu/rounds.h"

namespace armillary::kernel::cpu {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

const Products& forward_products(const Call& call) {
  return products_of(call, has_words(call.k, call.head_dim));
}

/// Packed keys of a round: for each head and block, K transposed, then V in columns.
class PackedKeys {
 public:
  PackedKeys(const Call& call, const Round& round)
      : call_(call),
        products_(forward_products(call)),
        round_(round),
        rows_(round_up(call.schedule->largest_k, call.isa->panel)),
        v_width_(round_up(call.value_dim, call.isa->panel)) {
    thread_local Scratch scratch;
    const auto blocks = static_cast<std::size_t>(round.heads * round.blocks);
    data_ = scratch.floats(blocks * static_cast<std::size_t>(block_floats()) + blocks);
    wild_ = data_ + blocks * static_cast<std::size_t>(block_floats());
  }

  std::int64_t block_floats() const { return std::int64_t{rows_} * (call_.head_dim + v_width_); }

  void pack(std::int64_t number) {
    const std::int64_t pair = round_.first_head + number / round_.blocks;
    const std::int64_t block = round_.first_block + number % round_.blocks;
    const std::int64_t batch = pair / call_.kv_heads;
    const std::int64_t head = pair % call_.kv_heads;
    const auto index = static_cast<std::size_t>(block);
    const Schedule& schedule = *call_.schedule;
    if (q_heads_of(call_, head).empty()) return;
    if (schedule.first_of_k[index] == schedule.first_of_k[index + 1]) return;
    const plan::Interval rows = schedule.k_rows[index];
    const int padded = round_up(static_cast<int>(rows.end - rows.begin), call_.isa->panel);
    float* const k = data_ + number * block_floats();
    const bool k_finite =
        products_.pack_keys(rows_of(call_, call_.k, batch, head, rows, call_.head_dim), k);
    const bool v_finite =
        products_.pack_values(rows_of(call_, call_.v, batch, head, rows, call_.value_dim), 1,
                              padded, k + std::int64_t{rows_} * call_.head_dim);
    wild_[number] = k_finite && v_finite ? 0 : 1;
  }

  void point(std::int64_t head, std::int64_t block, ForwardTile& tile) const {
    const std::int64_t number = head * round_.blocks + block - round_.first_block;
    tile.k = data_ + number * block_floats();
    tile.v = tile.k + std::int64_t{rows_} * call_.head_dim;
    tile.pairs.wild = wild_[number] != 0;
  }

 private:
  const Call& call_;
  const Products& products_;
  const Round& round_;
  int rows_;
  int v_width_;
  float* data_ = nullptr;
  float* wild_ = nullptr;
};

/// NaN is the largest, as for at::maximum.
void raise(float& shared, float seen) {
  std::atomic_ref<float> most(shared);
  float before = most.load();
  while (!std::isnan(before) && !(seen <= before) && !most.compare_exchange_weak(before, seen)) {
  }
}

/// One block of queries of one head against the keys of a round.
void attend_block(const Call& call, const Carry& carry, const Round& round, const PackedKeys& keys,
                  std::int64_t head_of_round, std::int64_t head, std::size_t q_block) {
  const Tiles& isa = *call.isa;
  const Products& products = forward_products(call);
  const Schedule& schedule = *call.schedule;
  const auto by_k = [](const BlockPair& pair, std::int64_t k) { return pair.k < k; };
  const BlockPair* const first = schedule.pairs.data() + schedule.first_of_q[q_block];
  const BlockPair* const last = schedule.pairs.data() + schedule.first_of_q[q_block + 1];
  const BlockPair* const begin = std::lower_bound(first, last, round.first_block, by_k);
  const BlockPair* const end =
      std::lower_bound(begin, last, round.first_block + round.blocks, by_k);
  if (begin == end) return;

  const std::int64_t batch = (round.first_head + head_of_round) / call.kv_heads;
  const plan::Interval rows = schedule.q_rows[q_block];
  const int count = static_cast<int>(rows.end - rows.begin);
  const int padded = round_up(count, isa.row_group);
  Carver carver;
  const auto array = [&](int width) {
    return carver.reserve(static_cast<std::size_t>(padded) * width);
  };
  const std::size_t q = array(round_up(call.head_dim, isa.panel));
  const std::size_t out = array(round_up(call.value_dim, isa.panel));
  const std::size_t scores =
      carver.reserve(static_cast<std::size_t>(isa.row_group) * isa.forward_ld);
  const std::size_t max = array(1);
  const std::size_t sum = array(1);
  thread_local Scratch scratch;
  float* const memory = scratch.floats(carver.size());
  ForwardTile tile{.score = score_of(call, head, rows),
                   .head_dim = call.head_dim,
                   .value_dim = call.value_dim,
                   .q = memory + q,
                   .scores = memory + scores,
                   .out = memory + out,
                   .max = memory + max,
                   .sum = memory + sum};
  std::optional<DropoutStream> stream;
  if (call.dropout.on()) {
    stream.emplace(call.dropout, batch, call.first_q_head + head);
    tile.score.dropout = &*stream;
  }
  float max_logit = kNone;
  if (carry.max_logit_H != nullptr) tile.max_logit = &max_logit;

  tile.scale = q_scale(call);
  products.pack_queries(rows_of(call, call.q, batch, head, rows, call.head_dim), tile.scale, padded,
                        memory + q);
  const Rows before{.data = at(carry.out, batch, head, rows.begin),
                    .element = Element::Float32,
                    .stride = carry.out.row,
                    .count = count,
                    .width = call.value_dim};
  bool fresh = true;
  for (int row = 0; row < count; ++row) {
    tile.max[row] = *at(carry.lse, batch, head, rows.begin + row);
    tile.sum[row] = tile.max[row] == kNone ? 0 : 1;
    fresh = fresh && tile.sum[row] == 0;
  }
  if (fresh) {  // All of it is 0: it need not be read.
    std::fill_n(tile.out, padded * round_up(call.value_dim, isa.panel), 0.0f);
  } else {
    isa.floats.pack_values(before, 1, padded, tile.out);
  }
  for (const BlockPair* pair = begin; pair != end; ++pair) {
    tile.pairs = schedule.tile_pairs(*pair);
    tile.score.k_positions =
        schedule.k_positions.data() + schedule.k_rows[static_cast<std::size_t>(pair->k)].begin;
    keys.point(head_of_round, pair->k, tile);
    products.forward(tile);
  }
  tile.pairs.q_rows = count;
  isa.write(tile, at(carry.out, batch, head, rows.begin), carry.out.row,
            at(carry.lse, batch, head, rows.begin), carry.lse.row);
  if (carry.max_logit_H != nullptr) raise(carry.max_logit_H[head], max_logit);
}

}  // namespace

void fill_dropout(const TileScore& score, int row, int first, int count, float* factors) {
  const auto keys = static_cast<std::size_t>(count);
  score.dropout->fill(score.q_positions[row], std::span(score.k_positions + first, keys),
                      std::span(factors, keys));
}

PatchLimits forward_limits(const Tiles& isa) {
  return {.q_rows = isa.forward_q_rows, .k_rows = isa.forward_k_rows};
}

void attend(const Call& call, const Carry& carry) {
  const Schedule& schedule = *call.schedule;
  if (schedule.pairs.empty() || call.heads == 0) return;
  const std::int64_t block_floats = std::int64_t{round_up(schedule.largest_k, call.isa->panel)} *
                                    (call.head_dim + round_up(call.value_dim, call.isa->panel));
  const auto k_blocks = static_cast<std::int64_t>(schedule.k_rows.size());
  const auto q_blocks = static_cast<std::int64_t>(schedule.q_rows.size());
  const std::int64_t group = largest_group(call);
  for_each_round(call.batch * call.kv_heads, k_blocks, block_floats, [&](const Round& round) {
    PackedKeys keys(call, round);
    deal_out(call.team, round.heads * round.blocks, [&](std::int64_t i) { keys.pack(i); });
    deal_out(call.team, round.heads * group * q_blocks, [&](std::int64_t i) {
      const std::int64_t head_of_round = i / (group * q_blocks);
      const plan::Interval heads =
          q_heads_of(call, (round.first_head + head_of_round) % call.kv_heads);
      const std::int64_t head = heads.begin + i / q_blocks % group;
      // Last blocks first: with a causal mask they have most to do, and so even out the ends.
      const std::int64_t q_block = q_blocks - 1 - i % q_blocks;
      if (head < heads.end) {
        attend_block(call, carry, round, keys, head_of_round, head,
                     static_cast<std::size_t>(q_block));
      }
    });
  });
}

}  // namespace armillary::kernel::cpu
