// rounds.h: what both drivers share: heads, addresses, and work dealt out to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "armillary/kernel/cpu/block.h"
#include "armillary/kernel/cpu/scratch.h"

namespace armillary::kernel::cpu {

/// Heads and blocks that are packed together: all blocks of several heads, or a part of those of
/// one.
struct Round {
  std::int64_t first_head = 0;  ///< Counts (batch entry, head) pairs.
  std::int64_t heads = 0;
  std::int64_t first_block = 0;
  std::int64_t blocks = 0;
};

/// Calls visit(Round) until every block of every head was in one; `block_floats` each.
template <class Visit>
void for_each_round(std::int64_t heads, std::int64_t blocks, std::int64_t block_floats,
                    Visit visit) {
  if (heads == 0 || blocks == 0) return;
  const std::int64_t fit =
      std::clamp<std::int64_t>(kPackedFloats / block_floats, 1, heads * blocks);
  const std::int64_t blocks_each = std::min(fit, blocks);
  const std::int64_t heads_each = std::max<std::int64_t>(1, fit / blocks);
  for (std::int64_t head = 0; head < heads; head += heads_each) {
    for (std::int64_t block = 0; block < blocks; block += blocks_each) {
      visit(Round{.first_head = head,
                  .heads = std::min(heads_each, heads - head),
                  .first_block = block,
                  .blocks = std::min(blocks_each, blocks - block)});
    }
  }
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
/// is packed word by word, which are the keys of a product, has words.
inline const Products& products_of(const Call& call, bool words) {
  const bool pairs =
      words && call.isa->pairs.forward != nullptr && call.element == Element::BFloat16;
  return pairs ? call.isa->pairs : call.isa->floats;
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
