// rounds.h: what both drivers share: heads, addresses, and work dealt out to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "armillary/kernel/cpu/block.h"
#include "armillary/kernel/cpu/scratch.h"

namespace armillary::kernel::cpu {

/// Heads and blocks that are packed together: all blocks of several heads, or a part of those of
/// one; and the blocks of the other side that meet them.
struct Round {
  std::int64_t first_head = 0;  ///< Counts (batch entry, head) pairs.
  std::int64_t heads = 0;
  std::int64_t first_block = 0;
  std::int64_t blocks = 0;
  plan::Interval others;
};

/// Whether a block meets the first, or the last, of all the blocks that it ever meets. One that
/// never meets any has its turn, idle, with the first blocks.
struct Turn {
  bool first = false;
  bool last = false;
  bool idle = false;  ///< It meets none now.
};

/// `now` of the entries [`first`, `last`) that are a block's.
template <class Entry>
Turn turn_of(std::span<const Entry> now, const Entry* first, const Entry* last, bool first_blocks) {
  if (first == last) return {first_blocks, first_blocks, true};
  if (now.empty()) return {false, false, true};
  return {now.data() == first, now.data() + now.size() == last, false};
}

/// What rounds are cut from. Others meet all blocks of a head before the next `others_each` of them
/// come: all others at once, but where a head takes several rounds and sums cannot rest that long.
struct Rounds {
  std::int64_t heads = 0;
  std::int64_t blocks = 0;
  std::int64_t block_floats = 0;
  std::int64_t others = 0;
  std::int64_t others_each = 0;
  std::int64_t heads_floats = 0;  ///< Products::heads_floats

  /// Blocks that are packed at once, of all heads together.
  std::int64_t fit() const { return fit(kPackedFloats); }
  std::int64_t heads_each() const {
    const std::int64_t most = heads_floats == 0 ? fit() : std::min(fit(), fit(heads_floats));
    return std::max<std::int64_t>(1, most / blocks);
  }
  bool several_a_head() const { return fit() < blocks; }

  /// Blocks of so many floats.
  std::int64_t fit(std::int64_t floats) const {
    return std::max<std::int64_t>(1, floats / std::max<std::int64_t>(1, block_floats));
  }
};

/// Calls visit(Round) until every block of every head has met all others.
template <class Visit>
void for_each_round(const Rounds& of, Visit visit) {
  const std::int64_t blocks_each = std::min(of.fit(), of.blocks);
  const std::int64_t heads_each = of.heads_each();
  for (std::int64_t head = 0; head < of.heads; head += heads_each) {
    for (std::int64_t other = 0; other < of.others; other += of.others_each) {
      for (std::int64_t block = 0; block < of.blocks; block += blocks_each) {
        visit(Round{.first_head = head,
                    .heads = std::min(heads_each, of.heads - head),
                    .first_block = block,
                    .blocks = std::min(blocks_each, of.blocks - block),
                    .others = {other, std::min(other + of.others_each, of.others)}});
      }
    }
  }
}

/// Memory of the calling thread, one piece for both passes: what a round packed, and sums that wait
/// for the next round.
inline Scratch& packed_memory() {
  thread_local Scratch scratch;
  return scratch;
}
inline Scratch& resting_memory() {
  thread_local Scratch scratch;
  return scratch;
}

/// Calls job(i) for 0 <= i < count, on all threads of the team; jobs begin in ascending order.
template <class Job>
void deal_out(const Team& team, std::int64_t count, const Job& job) {
  struct Shared {
    std::atomic<std::int64_t> next = 0;
    std::int64_t count;
    const Job& job;
  } shared{.count = count, .job = job};
  const auto work = [](void* context) {
    auto& [next, count, job] = *static_cast<Shared*>(context);
    for (std::int64_t i = next++; i < count; i = next++) job(i);
  };
  const auto threads = static_cast<int>(std::min<std::int64_t>(team.threads, count));
  if (threads > 1) {
    team.run(threads, work, &shared);
  } else {
    work(&shared);
  }
}

/// Pairs of a key block with the query blocks [begin, end), by number.
inline std::span<const std::int32_t> pairs_of_k(const Schedule& schedule, std::int64_t k_block,
                                                plan::Interval q_blocks) {
  const auto k = static_cast<std::size_t>(k_block);
  const std::int32_t* const first = schedule.by_k.data() + schedule.first_of_k[k];
  const std::int32_t* const last = schedule.by_k.data() + schedule.first_of_k[k + 1];
  const auto below = [&](std::int32_t pair, std::int64_t q) {
    return schedule.pairs[static_cast<std::size_t>(pair)].q < q;
  };
  const auto* const begin = std::lower_bound(first, last, q_blocks.begin, below);
  return {begin, std::lower_bound(begin, last, q_blocks.end, below)};
}

/// Pairs of a query block with the key blocks [begin, end).
inline std::span<const BlockPair> pairs_of_q(const Schedule& schedule, std::int64_t q_block,
                                             plan::Interval k_blocks) {
  const auto q = static_cast<std::size_t>(q_block);
  const BlockPair* const first = schedule.pairs.data() + schedule.first_of_q[q];
  const BlockPair* const last = schedule.pairs.data() + schedule.first_of_q[q + 1];
  const auto below = [](const BlockPair& pair, std::int64_t k) { return pair.k < k; };
  const BlockPair* const begin = std::lower_bound(first, last, k_blocks.begin, below);
  return {begin, std::lower_bound(begin, last, k_blocks.end, below)};
}

/// Query heads of the view that read KV head `kv_head` of the view.
inline plan::Interval q_heads_of(const Call& call, std::int64_t kv_head) {
  const std::int64_t begin = (call.first_kv_head + kv_head) * call.group_size - call.first_q_head;
  return {std::clamp<std::int64_t>(begin, 0, call.heads),
          std::clamp<std::int64_t>(begin + call.group_size, 0, call.heads)};
}

/// Most query heads that read one KV head.
inline std::int64_t largest_group(const Call& call) {
  return std::min(call.group_size, call.heads);
}

inline float* at(const Output& output, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return output.data + batch * output.batch + head * output.head + row * output.row;
}

inline void* at(const Result& result, std::int64_t batch, std::int64_t head, std::int64_t row) {
  const std::int64_t elements = batch * result.batch + head * result.head + row * result.row;
  return static_cast<char*>(result.data) + elements * bytes_of(result.element);
}

/// Of an fp32 result.
inline Output floats_of(const Result& result) {
  return {.data = static_cast<float*>(result.data),
          .batch = result.batch,
          .row = result.row,
          .head = result.head};
}

inline Result result_of(const Output& output) {
  return {.data = output.data, .batch = output.batch, .row = output.row, .head = output.head};
}

inline const void* at(const Input& input, Element element, std::int64_t batch, std::int64_t head,
                      std::int64_t row) {
  const std::int64_t elements = batch * input.batch + head * input.head + row * input.row;
  return static_cast<const char*>(input.data) + elements * bytes_of(element);
}

inline Rows rows_of(const Call& call, const Input& input, std::int64_t batch, std::int64_t head,
                    plan::Interval rows, int width) {
  return {.data = at(input, call.element, batch, head, rows.begin),
          .element = call.element,
          .stride = input.row,
          .count = rows.end - rows.begin,
          .width = width};
}

/// Whether rows of bf16 can be read as words of two.
inline bool has_words(const Input& input, int width) {
  const std::int64_t elements = input.batch | input.row | input.head | width;
  return elements % 2 == 0 && reinterpret_cast<std::uintptr_t>(input.data) % 4 == 0;
}

/// How the tiles of a call are multiplied: in pairs where the set and the dtype have them, and what
/// is packed word by word, which are the keys of a product, has words if they need them.
inline const Products& products_of(const Call& call, bool words) {
  const Products& pairs = call.isa->pairs;
  const bool has_pairs = pairs.forward != nullptr && call.element == Element::BFloat16;
  return has_pairs && (words || !pairs.needs_words) ? pairs : call.isa->floats;
}

/// Floats of `rows` packed queries.
inline std::int64_t query_floats(const Products& products, int rows, int dim) {
  const int words = (dim + products.terms - 1) / products.terms;
  return std::int64_t{rows} * round_up(words, products.units.words) * products.parts;
}
/// Floats of `rows` packed keys.
inline std::int64_t key_floats(const Products& products, int rows, int dim) {
  return std::int64_t{rows} * round_up(dim, products.units.width) / products.terms * products.parts;
}
/// Floats of `rows` packed values.
inline std::int64_t value_floats(const Products& products, int rows, int dim) {
  const int columns = round_up(dim, products.units.columns);
  return std::int64_t{rows} * columns / products.terms * products.parts;
}

/// What a tile needs of score.h, but for the dropout stream.
inline TileScore score_of(const Call& call, std::int64_t head, plan::Interval q_rows) {
  TileScore score{.softcap = static_cast<float>(call.softcap), .shift = call.schedule->shift};
  if (call.slopes_H != nullptr) score.slope = call.slopes_H[call.first_q_head + head];
  score.q_positions = call.schedule->q_positions.data() + q_rows.begin;
  return score;
}

/// What packed queries are multiplied with.
inline float q_scale(const Call& call) {
  return static_cast<float>(call.softcap == 0 ? call.scale : call.scale / call.softcap);
}

}  // namespace armillary::kernel::cpu
