// stages.h: code that forward and backward share: stages, addresses of heads and rows, and work
// dealt out to threads.
//
// A stage packs row blocks of one side together, as many as fit into kPackedFloats, and lets all
// row blocks of the other side meet them. Forward packs keys and visits queries; backward packs
// queries and visits keys:
//
//   for each stage:
//     deal_out: pack the row blocks of the packed side         (packed_keys.h, packed_queries.h)
//     deal_out: each row block of the other side meets them    (forward.cpp, backward.cpp)
//
// A row block of the other side whose pairs all fall into one stage keeps its accumulators in
// scratch of the task, so they never leave the caches. Otherwise they are kept in memory between
// stages: in the accumulators of the caller, or in resting_memory() if the result is rounded.
//
// Example: 3 heads of 10 packed row blocks, of which 25 fit: stages of heads 0-1 and head 2, with
// all their row blocks. If only 4 fit, each head takes three stages, of 4, 4 and 2 row blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "armillary/kernel/cpu/attention_args.h"
#include "armillary/kernel/cpu/scratch.h"

namespace armillary::kernel::cpu {

/// Row blocks that are packed together: all row blocks of several heads, or a part of those of one
/// head; and the range of row blocks of the other side that meet them. Row blocks are numbered as
/// in the block mask.
struct Stage {
  std::int64_t first_head = 0;   ///< index of the first (batch entry, KV head)
  std::int64_t heads = 0;        ///< (batch entry, KV head) pairs from there on
  std::int64_t first_block = 0;  ///< first packed row block of each head
  std::int64_t blocks = 0;       ///< packed row blocks of each head
  plan::Interval others;         ///< row blocks of the other side
};

/// Position of a stage among all stages in which a row block of the other side has visible pairs:
/// whether it is the first of them, and so initialises accumulators, and whether it is the last,
/// and so writes results. A row block without any visible pair is initialised and written in the
/// stage with the first packed row blocks.
struct StageProgress {
  bool first = false;
  bool last = false;
  bool idle = false;  ///< no visible pair in this stage
};

/// The progress of a row block with the pairs [first, last), of which `now` are in this stage.
/// `first_blocks`: the stage has the first packed row blocks.
///
///   pairs 0..9, now 0..3    ->  first
///               now 4..9    ->  last
///               now 0..9    ->  first and last
///               now empty   ->  idle
///   no pairs at all         ->  idle; first and last if `first_blocks`
template <class Entry>
StageProgress progress_of(std::span<const Entry> now, const Entry* first, const Entry* last,
                          bool first_blocks) {
  if (first == last) return {first_blocks, first_blocks, true};
  if (now.empty()) return {false, false, true};
  return {now.data() == first, now.data() + now.size() == last, false};
}

/// Sizes from which stages are cut.
///
/// Row blocks of the other side meet all packed row blocks of a head before the next
/// `others_per_stage` of them begin. `others_per_stage` is less than `others` only where a head
/// takes several stages and accumulators do not all fit into resting_memory().
struct Stages {
  std::int64_t heads = 0;         ///< (batch entry, KV head) pairs
  std::int64_t blocks = 0;        ///< row blocks of the packed side
  std::int64_t block_floats = 0;  ///< floats of a packed row block, of all query heads of its group
  std::int64_t others = 0;        ///< row blocks of the other side
  std::int64_t others_per_stage = 0;  ///< at most so many of them in a stage
  std::int64_t heads_floats = 0;      ///< GemmOps::heads_floats

  /// Packed row blocks that fit into kPackedFloats, over all heads; at least one.
  std::int64_t fit() const { return fit(kPackedFloats); }
  /// Heads of a stage: those whose row blocks all fit, also into heads_floats; at least one.
  std::int64_t heads_per_stage() const {
    const std::int64_t most = heads_floats == 0 ? fit() : std::min(fit(), fit(heads_floats));
    return std::max<std::int64_t>(1, most / blocks);
  }
  /// Whether the row blocks of one head take several stages, so that accumulators must wait in
  /// memory between them.
  bool several_per_head() const { return fit() < blocks; }

  /// Packed row blocks that fit into `floats`; at least one. Example: row blocks of 300,000 floats:
  /// fit(1 << 21) -> 6.
  std::int64_t fit(std::int64_t floats) const {
    return std::max<std::int64_t>(1, floats / std::max<std::int64_t>(1, block_floats));
  }
};

/// Calls visit(Stage) until every packed row block of every head has met all row blocks of the
/// other side. Order: heads, then parts of the other side, then packed row blocks. So accumulators
/// of one part of the other side are complete before those of the next part begin, and may share
/// their memory.
template <class Visit>
void for_each_stage(const Stages& of, Visit visit) {
  // Several heads share a stage only if all row blocks of each fit.
  const std::int64_t blocks_per_stage = std::min(of.fit(), of.blocks);
  const std::int64_t heads_per_stage = of.heads_per_stage();
  for (std::int64_t head = 0; head < of.heads; head += heads_per_stage) {
    for (std::int64_t other = 0; other < of.others; other += of.others_per_stage) {
      for (std::int64_t block = 0; block < of.blocks; block += blocks_per_stage) {
        visit(Stage{.first_head = head,
                    .heads = std::min(heads_per_stage, of.heads - head),
                    .first_block = block,
                    .blocks = std::min(blocks_per_stage, of.blocks - block),
                    .others = {other, std::min(other + of.others_per_stage, of.others)}});
      }
    }
  }
}

/// Memory for the packed row blocks of a stage. It belongs to the calling thread, and both passes
/// use the same piece: it is valid until the next call of floats() on this thread.
inline Scratch& packed_memory() {
  thread_local Scratch scratch;
  return scratch;
}
/// The same for fp32 accumulators of rounded results that wait for the next stage.
inline Scratch& resting_memory() {
  thread_local Scratch scratch;
  return scratch;
}

/// Calls job(i) for 0 <= i < count, on all threads of the team, and returns when all jobs are done.
/// Jobs begin in ascending order, so a job may wait for an earlier one. With one thread or one job
/// everything runs on the calling thread.
template <class Job>
void deal_out(const Team& team, std::int64_t count, const Job& job) {
  // The counter deals the jobs out: each thread takes the next job until none is left.
  struct Shared {
    std::atomic<std::int64_t> next = 0;
    std::int64_t count;
    const Job& job;
  } shared{.count = count, .job = job};
  const auto work = [](void* context) {
    auto& [next, count, job] = *static_cast<Shared*>(context);
    for (std::int64_t i = next++; i < count; i = next++) job(i);
  };
  // More threads than jobs would have nothing to do.
  const auto threads = static_cast<int>(std::min<std::int64_t>(team.threads, count));
  if (threads > 1) {
    team.run(threads, work, &shared);
  } else {
    work(&shared);
  }
}

/// Visible pairs of a key row block with the query row blocks `q_blocks`, as indices into
/// BlockMask::pairs, ascending. Cost: two binary searches.
inline std::span<const std::int32_t> pairs_of_k(const BlockMask& block_mask, std::int64_t k_block,
                                                plan::Interval q_blocks) {
  const auto k = static_cast<std::size_t>(k_block);
  const std::int32_t* const first = block_mask.by_k.data() + block_mask.first_of_k[k];
  const std::int32_t* const last = block_mask.by_k.data() + block_mask.first_of_k[k + 1];
  const auto below = [&](std::int32_t pair, std::int64_t q) {
    return block_mask.pairs[static_cast<std::size_t>(pair)].q < q;
  };
  const auto* const begin = std::lower_bound(first, last, q_blocks.begin, below);
  return {begin, std::lower_bound(begin, last, q_blocks.end, below)};
}

/// Visible pairs of a query row block with the key row blocks `k_blocks`, ascending. Cost: two
/// binary searches.
inline std::span<const RowBlockPair> pairs_of_q(const BlockMask& block_mask, std::int64_t q_block,
                                                plan::Interval k_blocks) {
  const auto q = static_cast<std::size_t>(q_block);
  const RowBlockPair* const first = block_mask.pairs.data() + block_mask.first_of_q[q];
  const RowBlockPair* const last = block_mask.pairs.data() + block_mask.first_of_q[q + 1];
  const auto below = [](const RowBlockPair& pair, std::int64_t k) { return pair.k < k; };
  const RowBlockPair* const begin = std::lower_bound(first, last, k_blocks.begin, below);
  return {begin, std::lower_bound(begin, last, k_blocks.end, below)};
}

/// Query heads of the view that read KV head `kv_head` of the view (kernel::HeadMap); may be empty.
/// Example: groups of 4 query heads, a view of query heads 2 to 7 and KV heads 0 to 1: KV head 0 is
/// read by query heads [0, 2) of the view, KV head 1 by [2, 6).
inline plan::Interval q_heads_of(const AttentionArgs& call, std::int64_t kv_head) {
  const std::int64_t begin = (call.first_kv_head + kv_head) * call.group_size - call.first_q_head;
  return {std::clamp<std::int64_t>(begin, 0, call.heads),
          std::clamp<std::int64_t>(begin + call.group_size, 0, call.heads)};
}

/// Query heads that read one KV head, at most. Memory is reserved for so many, even if the view
/// cuts a group.
inline std::int64_t largest_group(const AttentionArgs& call) {
  return std::min(call.group_size, call.heads);
}

/// Address of a row. Batch entry, head and row count from 0 in the tensor.
inline float* at(const Output& output, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return output.data + batch * output.batch + head * output.head + row * output.row;
}

/// The same for a tensor that is only written.
inline void* at(const RoundedOutput& result, std::int64_t batch, std::int64_t head,
                std::int64_t row) {
  const std::int64_t elements = batch * result.batch + head * result.head + row * result.row;
  return static_cast<char*>(result.data) + elements * bytes_of(result.element);
}

/// An fp32 result as an accumulator of the same memory. Requires `result.element` to be Float32.
inline Output floats_of(const RoundedOutput& result) {
  return {.data = static_cast<float*>(result.data),
          .batch = result.batch,
          .row = result.row,
          .head = result.head};
}

/// An fp32 accumulator as a result of the same memory.
inline RoundedOutput result_of(const Output& output) {
  return {.data = output.data, .batch = output.batch, .row = output.row, .head = output.head};
}

/// Address of a row of a tensor that is only read, of dtype `element`.
inline const void* at(const Input& input, Element element, std::int64_t batch, std::int64_t head,
                      std::int64_t row) {
  const std::int64_t elements = batch * input.batch + head * input.head + row * input.row;
  return static_cast<const char*>(input.data) + elements * bytes_of(element);
}

/// Rows of one head of one batch entry.
struct HeadRows {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  plan::Interval rows;
};

/// The same of q, k, v or dout of the call, as pack functions take them. No copy is made.
inline Rows rows_of(const AttentionArgs& call, const Input& input, const HeadRows& place,
                    int width) {
  return {.data = at(input, call.element, place.batch, place.head, place.rows.begin),
          .element = call.element,
          .stride = input.row,
          .count = place.rows.end - place.rows.begin,
          .width = width};
}

/// Whether rows of bf16 can be read as aligned words of two: even strides and width, and an address
/// that is a multiple of 4.
inline bool has_words(const Input& input, int width) {
  const std::int64_t elements = input.batch | input.row | input.head | width;
  return elements % 2 == 0 && reinterpret_cast<std::uintptr_t>(input.data) % 4 == 0;
}

/// GEMM functions for the dtype of a call: those of bf16 for bf16 if the set has them, otherwise
/// those of fp32. `words`: rows of the packed keys can be read as words of two bf16. Sets with
/// GemmOps::needs_words fall back to fp32 without that. The choice depends on the call only, so the
/// block mask and the driver agree on it.
inline const GemmOps& gemm_ops_of(const AttentionArgs& call, bool words) {
  const GemmOps& bf16_dot = call.isa->bf16_dot;
  const bool has_bf16_dot = bf16_dot.forward != nullptr && call.element == Element::BFloat16;
  return has_bf16_dot && (words || !bf16_dot.needs_words) ? bf16_dot : call.isa->floats;
}

/// Floats of `rows` packed queries (GemmOps::pack_queries) of width `dim`. Example, fp32 with
/// panels of 64: query_floats(gemm, 96, 80) -> 96 * 128.
inline std::int64_t query_floats(const GemmOps& gemm, int rows, int dim) {
  const int words = (dim + gemm.terms - 1) / gemm.terms;
  return std::int64_t{rows} * round_up(words, gemm.units.words) * gemm.parts;
}
/// Floats of `rows` packed keys (GemmOps::pack_keys) of width `dim`.
inline std::int64_t key_floats(const GemmOps& gemm, int rows, int dim) {
  return std::int64_t{rows} * round_up(dim, gemm.units.width) / gemm.terms * gemm.parts;
}
/// Floats of `rows` packed values (GemmOps::pack_values, pack_query_values) of width `dim`. Values
/// are padded in both directions: rows by the caller, columns here.
inline std::int64_t value_floats(const GemmOps& gemm, int rows, int dim) {
  const int columns = round_up(dim, gemm.units.columns);
  return std::int64_t{rows} * columns / gemm.terms * gemm.parts;
}

/// Features of the score for query head `head` of the view and a query row block. The caller adds
/// the positions of the keys and the dropout stream, which depend on the key row block and the
/// batch entry.
inline TileScore score_of(const AttentionArgs& call, std::int64_t head, plan::Interval q_rows) {
  TileScore score{.softcap = static_cast<float>(call.softcap), .shift = call.block_mask->shift};
  if (call.slopes_H != nullptr) score.slope = call.slopes_H[call.first_q_head + head];
  score.q_positions = call.block_mask->q_positions.data() + q_rows.begin;
  return score;
}

/// Factor of packed fp32 queries, or of scores of bf16 queries: the scale, divided by the softcap
/// if there is one.
inline float q_scale(const AttentionArgs& call) {
  return static_cast<float>(call.softcap == 0 ? call.scale : call.scale / call.softcap);
}

}  // namespace armillary::kernel::cpu
