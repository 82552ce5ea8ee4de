#include <cmath>
#include <limits>
#include <optional>

#include "armillary/kernel/cpu/block.h"
#include "armillary/kernel/cpu/features.h"
#include "armillary/kernel/cpu/packed_keys.h"
#include "armillary/kernel/cpu/rounds.h"

namespace armillary::kernel::cpu {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// NaN is the largest, as for at::maximum.
void raise(float& shared, float seen) {
  std::atomic_ref<float> most(shared);
  float before = most.load();
  while (!std::isnan(before) && !(seen <= before) && !most.compare_exchange_weak(before, seen)) {
  }
}

/// What becomes of queries.
struct QueryTarget {
  bool begins = false;  ///< With nothing seen, in place of what `sums` and `lse` hold.
  bool ends = false;    ///< As the result, with the sinks.
  Result result;        ///< Of `ends`.
  Output sums;          ///< What rounds begin with and end as, but for the first and the last.
  /// `sums` has the rows of the round's others only, of the query heads of one KV head.
  bool sums_of_others = false;
  Output lse;
  const float* sinks_H = nullptr;
  float* max_logit_H = nullptr;
};

float* sums_at(const Call& call, const QueryTarget& target, const Round& round, std::int64_t batch,
               std::int64_t head, plan::Interval rows) {
  if (!target.sums_of_others) return at(target.sums, batch, head, rows.begin);
  const auto first = static_cast<std::size_t>(round.others.begin);
  const std::int64_t first_head = q_heads_of(call, round.first_head % call.kv_heads).begin;
  return at(target.sums, 0, head - first_head, rows.begin - call.schedule->q_rows[first].begin);
}

/// Another key of each row, whose value is 0: last, for the largest logit tells a NaN by the sum.
void add_sink(const Products& products, const ForwardTile& tile, float sink) {
  for (int row = 0; row < tile.pairs.q_rows; ++row) {
    const float max = tile.max[row] * products.log_unit;
    float& sum = tile.sum[row];
    if (!(sink > max)) {
      if (sink != kNone) sum += std::exp(sink - max);
      continue;
    }
    const float factor = std::exp(max - sink);
    tile.max[row] = sink / products.log_unit;
    sum = sum * factor + 1;
    products.scale_row(tile, row, factor);
  }
}

/// One block of queries of one head against the keys of a round.
void attend_block(const Call& call, const QueryTarget& target, const Round& round,
                  const PackedKeys& keys, std::int64_t head_of_round, std::int64_t head,
                  std::int64_t q_block) {
  const Products& products = forward_products(call);
  const Units& units = products.units;
  const Schedule& schedule = *call.schedule;
  const std::span<const BlockPair> pairs =
      pairs_of_q(schedule, q_block, {round.first_block, round.first_block + round.blocks});
  const BlockPair* const all_pairs = schedule.pairs.data();
  const auto q = static_cast<std::size_t>(q_block);
  const Turn turn = turn_of(pairs, all_pairs + schedule.first_of_q[q],
                            all_pairs + schedule.first_of_q[q + 1], round.first_block == 0);
  const bool begins = target.begins && turn.first;
  const bool ends = target.ends && turn.last;
  if (turn.idle && !begins) return;

  const std::int64_t batch = (round.first_head + head_of_round) / call.kv_heads;
  const plan::Interval rows = schedule.q_rows[q];
  const int count = static_cast<int>(rows.end - rows.begin);
  const int padded = round_up(count, units.rows);
  const std::int64_t out_floats = std::int64_t{padded} * round_up(call.value_dim, units.columns);
  Carver carver;
  const auto array = [&](std::int64_t floats) {
    return carver.reserve(static_cast<std::size_t>(floats));
  };
  const std::size_t queries = array(query_floats(products, padded, call.head_dim));
  const std::size_t out = array(out_floats);
  const std::size_t scores = array(products.forward_sizes.scores);
  const std::size_t max = array(padded);
  const std::size_t sum = array(padded);
  thread_local Scratch scratch;
  float* const memory = scratch.floats(carver.size());
  ForwardTile tile{.score = score_of(call, head, rows),
                   .head_dim = call.head_dim,
                   .value_dim = call.value_dim,
                   .q = memory + queries,
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
  if (target.max_logit_H != nullptr) tile.max_logit = &max_logit;

  tile.scale = q_scale(call);
  float* const sums = begins && ends ? nullptr : sums_at(call, target, round, batch, head, rows);
  float* const lse = at(target.lse, batch, head, rows.begin);
  for (int row = 0; row < count; ++row) {
    tile.max[row] = kNone;
    if (!begins) tile.max[row] = lse[row * target.lse.row] / products.log_unit;
    tile.sum[row] = tile.max[row] == kNone ? 0 : 1;
  }
  std::fill(tile.max + count, tile.max + padded, 0.0f);
  std::fill(tile.sum + count, tile.sum + padded, 0.0f);
  // Nothing seen: all of it is 0 and need not be read.
  if (std::all_of(tile.sum, tile.sum + count, [](float sum) { return sum == 0; })) {
    std::fill_n(tile.out, out_floats, 0.0f);
  } else {
    const Rows before{.data = sums,
                      .element = Element::Float32,
                      .stride = target.sums.row,
                      .count = count,
                      .width = call.value_dim};
    products.pack_sums(before, 1, padded, tile.out);
  }
  const bool q_finite =
      products.pack_queries(rows_of(call, call.q, batch, head, rows, call.head_dim), tile.scale,
                            padded, memory + queries);
  for (const BlockPair& pair : pairs) {
    tile.pairs = schedule.tile_pairs(pair);
    tile.score.k_positions =
        schedule.k_positions.data() + schedule.k_rows[static_cast<std::size_t>(pair.k)].begin;
    keys.point(head_of_round, pair.k, tile);
    tile.pairs.wild |= !q_finite && products.parts > 1;
    products.forward(tile);
  }
  tile.pairs.q_rows = count;
  if (ends) {
    if (target.sinks_H != nullptr) {
      add_sink(products, tile, target.sinks_H[head]);
    }
    products.write[index_of(target.result.element)](
        tile, at(target.result, batch, head, rows.begin), target.result.row, lse, target.lse.row);
  } else {
    products.write[index_of(Element::Float32)](tile, sums, target.sums.row, lse, target.lse.row);
  }
  if (target.max_logit_H != nullptr) raise(target.max_logit_H[head], max_logit);
}

void attend_to(const Call& call, QueryTarget target) {
  if (call.heads == 0) return;
  const Schedule& schedule = *call.schedule;
  const std::int64_t group = largest_group(call);
  Rounds rounds{.heads = call.batch * call.kv_heads,
                .blocks = static_cast<std::int64_t>(schedule.k_rows.size()),
                .block_floats = KeyLayout(call).floats,
                .others = static_cast<std::int64_t>(schedule.q_rows.size()),
                .others_each = static_cast<std::int64_t>(schedule.q_rows.size()),
                .heads_floats = forward_products(call).heads_floats};
  if (target.sums.data == nullptr && rounds.several_a_head()) {
    const std::int64_t floats = std::int64_t{schedule.largest_q} * call.value_dim * group;
    rounds.others_each = std::max<std::int64_t>(1, kRestingFloats / floats);
    target.sums_of_others = true;
    target.sums = {.data = resting_memory().floats(rounds.others_each * floats),
                   .row = call.value_dim,
                   .head = rounds.others_each * schedule.largest_q * call.value_dim};
  }
  for_each_round(rounds, [&](const Round& round) {
    PackedKeys keys(call, round);
    deal_out(call.team, round.heads * round.blocks, [&](std::int64_t i) { keys.pack(i); });
    const std::int64_t q_blocks = round.others.end - round.others.begin;
    deal_out(call.team, round.heads * group * q_blocks, [&](std::int64_t i) {
      const std::int64_t head_of_round = i / (group * q_blocks);
      const plan::Interval heads =
          q_heads_of(call, (round.first_head + head_of_round) % call.kv_heads);
      const std::int64_t head = heads.begin + i / q_blocks % group;
      // Last blocks first: with a causal mask they have most to do, and so even out the ends.
      const std::int64_t q_block = round.others.end - 1 - i % q_blocks;
      if (head < heads.end) {
        attend_block(call, target, round, keys, head_of_round, head, q_block);
      }
    });
  });
}

}  // namespace

void fill_dropout(const TileScore& score, int row, int first, int count, float* factors) {
  const auto keys = static_cast<std::size_t>(count);
  score.dropout->fill(score.q_positions[row], std::span(score.k_positions + first, keys),
                      std::span(factors, keys));
}

const Products& forward_products(const Call& call) {
  return products_of(call, has_words(call.k, call.head_dim));
}

PatchLimits forward_limits(const Products& products) {
  return {.q_rows = products.forward_sizes.q_rows, .k_rows = products.forward_sizes.k_rows};
}

void attend(const Call& call, const Carry& carry) {
  attend_to(call, {.begins = carry.fresh,
                   .sums = carry.out,
                   .lse = carry.lse,
                   .max_logit_H = carry.max_logit_H});
}

void attend_all(const Call& call, const AllKeys& results) {
  QueryTarget target{.begins = true,
                     .ends = true,
                     .result = results.out,
                     .lse = results.lse,
                     .sinks_H = results.sinks_H,
                     .max_logit_H = results.max_logit_H};
  if (results.out.element == Element::Float32) target.sums = floats_of(results.out);
  attend_to(call, target);
}

}  // namespace armillary::kernel::cpu
