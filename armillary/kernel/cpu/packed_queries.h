// packed_queries.h: queries that backward packs for all key row blocks of a stage (stages.h), and
// the order in which tasks add to dq.
//
//   [KV head of the stage][query head of its group][query row block of the stage]
//       [Q | Q by rows | dO | dO by rows | log-sum-exp | delta]
//
// Each query row block is packed once and read by every key row block that it sees. The tasks of
// those key row blocks add to the same rows of dq; they do so in ascending order of key row blocks,
// so that the bits of dq do not depend on the number of threads.
#pragma once

#include <atomic>
#include <limits>
#include <thread>

#include "armillary/kernel/cpu/stages.h"

namespace armillary::kernel::cpu {

/// Offsets, in floats, of the parts within one packed query row block of `floats` floats. Sizes are
/// those of the largest query row block.
///
/// Q and dO are packed for sums over their elements (q, dout), and again for sums over rows
/// (q_values, dout_values) if words hold two terms. With words of one term both layouts are the
/// same, and the offsets are equal.
struct QueryOffsets {
  /// Offsets for a call; requires its block mask.
  explicit QueryOffsets(const AttentionArgs& call) {
    const GemmOps& gemm = backward_gemm_ops(call);
    const int rows = round_up(call.block_mask->largest_q, gemm.units.rows);
    // Appends a part of `count` floats and returns its offset.
    const auto add = [&](std::int64_t count) {
      const std::int64_t begin = floats;
      floats += count;
      return begin;
    };
    const auto columns = [&](int dim) { return add(query_floats(gemm, rows, dim)); };
    // Words of one term: the layout for sums over elements serves both.
    const auto values = [&](int dim, std::int64_t same) {
      return gemm.terms == 1 ? same : add(value_floats(gemm, rows, dim));
    };
    q = columns(call.head_dim);
    q_values = values(call.head_dim, q);
    dout = columns(call.value_dim);
    dout_values = values(call.value_dim, dout);
    lse = add(rows);
    delta = add(rows);
  }

  /// Q and dO for sums over their elements and over rows; then one log-sum-exp and one delta for
  /// each row.
  std::int64_t q;
  std::int64_t q_values;
  std::int64_t dout;
  std::int64_t dout_values;
  std::int64_t lse;
  std::int64_t delta;
  /// Floats of a packed row block.
  std::int64_t floats = 0;
};

/// Packed queries of a stage, and one counter for each packed row block. Memory is
/// packed_memory() of the constructing thread, valid until the next stage. Threads: pack() of
/// different numbers may run at once; all other functions only after all of them.
class PackedQueries {
 public:
  /// Reserves memory; packs nothing yet. The arguments must outlive this object.
  PackedQueries(const AttentionArgs& call, const RowUpstream& upstream, const Stage& stage)
      : call_(call),
        upstream_(upstream),
        stage_(stage),
        offsets_(call),
        group_(largest_group(call)) {
    const std::int64_t blocks = stage.heads * group_ * stage.blocks;
    data_ = packed_memory().floats(static_cast<std::size_t>(blocks * (offsets_.floats + 2)));
    nonfinite_ = data_ + blocks * offsets_.floats;
    added_ = reinterpret_cast<std::int32_t*>(nonfinite_ + blocks);
  }

  /// Row blocks to pack, from 0 to count() - 1. KV heads with fewer query heads than the largest
  /// group leave some of them empty.
  std::int64_t count() const { return stage_.heads * group_ * stage_.blocks; }

  /// Packs query row block `number`, resets its counter, and copies its log-sum-exps and deltas.
  /// Padding rows get a log-sum-exp of inf, so that their weights are exp(-inf) = 0. Does nothing
  /// for query heads that do not exist or that have no visible pair with the key row blocks of the
  /// stage.
  void pack(std::int64_t number) {
    // Find the head and row block that the number stands for; nobody may read it.
    const std::int64_t batch_head = stage_.first_head + number / (group_ * stage_.blocks);
    const std::int64_t batch = batch_head / call_.kv_heads;
    const plan::Interval heads = q_heads_of(call_, batch_head % call_.kv_heads);
    const std::int64_t head = heads.begin + number / stage_.blocks % group_;
    const std::int64_t q_block = stage_.first_block + number % stage_.blocks;
    added_[number] = 0;
    if (head >= heads.end || pairs_of_q(*call_.block_mask, q_block, stage_.others).empty()) return;
    // Pack Q and dO in the layouts that both kinds of sums need.
    const plan::Interval rows = call_.block_mask->q_rows[static_cast<std::size_t>(q_block)];
    const auto count = static_cast<int>(rows.end - rows.begin);
    const int padded = round_up(count, backward_gemm_ops(call_).units.rows);
    float* const block = data_ + number * offsets_.floats;
    const HeadRows place{batch, head, rows};
    const bool q_finite = pack_both(rows_of(call_, call_.q, place, call_.head_dim), q_scale(call_),
                                    padded, block + offsets_.q, block + offsets_.q_values);
    const bool dout_finite = pack_both(rows_of(call_, upstream_.dout, place, call_.value_dim), 1,
                                       padded, block + offsets_.dout, block + offsets_.dout_values);
    // Copy log-sum-exps and deltas; padding rows get values that make their weights 0.
    float* const lse = block + offsets_.lse;
    float* const delta = block + offsets_.delta;
    for (int row = 0; row < padded; ++row) {
      const bool real = row < count;
      lse[row] = real ? *at(upstream_.lse, batch, head, rows.begin + row)
                      : std::numeric_limits<float>::infinity();
      delta[row] = real ? *at(upstream_.delta, batch, head, rows.begin + row) : 0;
    }
    nonfinite_[number] = q_finite && dout_finite ? 0 : 1;
  }

  /// Number of the packed row block for query row block `block` of the block mask. `head_of_stage`
  /// counts KV heads of the stage, `head_of_group` the query heads that read it:
  ///
  ///   number = (head_of_stage * largest group + head_of_group) * stage.blocks + block -
  ///   first_block
  std::int64_t number(std::int64_t head_of_stage, std::int64_t head_of_group,
                      std::int64_t block) const {
    return (head_of_stage * group_ + head_of_group) * stage_.blocks + block - stage_.first_block;
  }

  /// Whether Q or dO of a packed row block has a NaN or Inf. Kernels then skip hidden pairs instead
  /// of multiplying them by 0.
  bool nonfinite(std::int64_t number) const { return nonfinite_[number] != 0; }

  /// Sets the packed factors, log-sum-exps and deltas of a tile; `number` is that of the packed row
  /// block.
  void point(std::int64_t number, BackwardTile& tile) const {
    const float* const block = data_ + number * offsets_.floats;
    tile.q = block + offsets_.q;
    tile.q_values = block + offsets_.q_values;
    tile.dout = block + offsets_.dout;
    tile.dout_values = block + offsets_.dout_values;
    tile.lse = block + offsets_.lse;
    tile.delta = block + offsets_.delta;
  }

  /// Waits until the first `count` key row blocks of the stage have added to the dq rows of packed
  /// row block `number`. Cannot deadlock: tasks begin in ascending order of key row blocks
  /// (deal_out), so all earlier ones are running or done. Spins, then yields.
  void wait_for_added(std::int64_t number, std::int32_t count) const {
    const std::atomic_ref<std::int32_t> progress(added_[number]);
    for (int spins = 0; progress.load(std::memory_order_acquire) != count; ++spins) {
      if (spins > 1000) std::this_thread::yield();
    }
  }
  /// Tells the next key row block that `count` before it have added. Releases the writes to dq,
  /// which wait_for_added() acquires.
  void set_added(std::int64_t number, std::int32_t count) const {
    std::atomic_ref<std::int32_t>(added_[number]).store(count, std::memory_order_release);
  }

 private:
  /// Packs rows for sums over elements, and also for sums over rows if that layout differs. Returns
  /// whether all elements were finite.
  bool pack_both(const Rows& rows, float scale, int padded, float* columns, float* values) const {
    const GemmOps& gemm = backward_gemm_ops(call_);
    const bool finite = gemm.pack_queries(rows, scale, padded, columns);
    if (values != columns) gemm.pack_query_values(rows, scale, padded, values);
    return finite;
  }

  const AttentionArgs& call_;
  const RowUpstream& upstream_;
  const Stage& stage_;
  /// Offsets within a packed row block.
  QueryOffsets offsets_;
  /// Query heads reserved for each KV head: those of the largest group.
  std::int64_t group_;
  /// count() row blocks of offsets_.floats floats.
  float* data_ = nullptr;
  /// One flag for each packed row block: 1 if it has a NaN or Inf, else 0.
  float* nonfinite_ = nullptr;
  /// One counter for each packed row block: key row blocks of the stage that have added to its dq.
  /// Accessed through std::atomic_ref once packing is done.
  std::int32_t* added_ = nullptr;
};

}  // namespace armillary::kernel::cpu
