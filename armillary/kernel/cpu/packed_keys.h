// packed_keys.h: keys and values that forward packs for all query row blocks of a stage (stages.h).
//
//   [KV head of the stage][key row block of the stage][K transposed | V in columns]
//
// Each key row block is packed once and read by every query row block and query head that sees it:
// with 4 query heads a KV head, a stage of 8 key row blocks and 16 query row blocks that see all of
// them packs 8 row blocks and reads each 64 times.
#pragma once

#include "armillary/kernel/cpu/stages.h"

namespace armillary::kernel::cpu {

/// Offsets, in floats, within one packed key row block: K begins at 0, V at `v`, and the next row
/// block at `floats`. Sizes are those of the largest key row block, so that every row block has the
/// same. Requires the block mask of the call.
struct KeyOffsets {
  explicit KeyOffsets(const AttentionArgs& call) {
    const GemmOps& gemm = forward_gemm_ops(call);
    const int rows = round_up(call.block_mask->largest_k, gemm.units.keys);
    v = key_floats(gemm, rows, call.head_dim);
    floats = v + value_floats(gemm, rows, call.value_dim);
  }

  std::int64_t v = 0;
  std::int64_t floats = 0;
};

/// Packed keys of a stage. Memory is packed_memory() of the constructing thread, valid until the
/// next stage. Threads: pack() of different numbers may run at once; point() only after all of
/// them.
class PackedKeys {
 public:
  /// Reserves memory; packs nothing yet. `call` and `stage` must outlive this object.
  PackedKeys(const AttentionArgs& call, const Stage& stage)
      : call_(call), gemm_(forward_gemm_ops(call)), stage_(stage), offsets_(call) {
    const auto blocks = static_cast<std::size_t>(stage.heads * stage.blocks);
    data_ = packed_memory().floats(blocks * static_cast<std::size_t>(offsets_.floats) + blocks);
    nonfinite_ = data_ + blocks * static_cast<std::size_t>(offsets_.floats);
  }

  /// Packs key row block `number` of stage.heads * stage.blocks: number / stage.blocks is the KV
  /// head of the stage, number % stage.blocks its row block. Skips row blocks that nobody reads: a
  /// KV head without query heads in this view, or no visible pair with the query row blocks of the
  /// stage.
  void pack(std::int64_t number) {
    // Find the head and row block that the number stands for.
    const std::int64_t batch_head = stage_.first_head + number / stage_.blocks;
    const std::int64_t block = stage_.first_block + number % stage_.blocks;
    const std::int64_t batch = batch_head / call_.kv_heads;
    const std::int64_t head = batch_head % call_.kv_heads;
    const auto index = static_cast<std::size_t>(block);
    const BlockMask& block_mask = *call_.block_mask;
    // Nobody reads row blocks without query heads or visible pairs.
    if (q_heads_of(call_, head).empty()) return;
    if (pairs_of_k(block_mask, block, stage_.others).empty()) return;
    // Pack K, then V; remember whether all of it is finite.
    const plan::Interval rows = block_mask.k_rows[index];
    const int padded = round_up(static_cast<int>(rows.end - rows.begin), gemm_.units.keys);
    float* const k = data_ + number * offsets_.floats;
    const HeadRows place{batch, head, rows};
    const bool k_finite = gemm_.pack_keys(rows_of(call_, call_.k, place, call_.head_dim), k);
    const bool v_finite = gemm_.pack_values(rows_of(call_, call_.v, place, call_.value_dim), 1,
                                            padded, k + offsets_.v);
    nonfinite_[number] = k_finite && v_finite ? 0 : 1;
  }

  /// Sets K, V and `nonfinite` of a tile. `head` counts KV heads of the stage, `block` is the
  /// number of the key row block in the block mask.
  void point(std::int64_t head, std::int64_t block, ForwardTile& tile) const {
    const std::int64_t number = head * stage_.blocks + block - stage_.first_block;
    tile.k = data_ + number * offsets_.floats;
    tile.v = tile.k + offsets_.v;
    tile.pairs.nonfinite = nonfinite_[number] != 0;
  }

 private:
  const AttentionArgs& call_;
  /// Packing and padding of this pass.
  const GemmOps& gemm_;
  const Stage& stage_;
  /// Offsets within a packed row block.
  KeyOffsets offsets_;
  /// stage.heads * stage.blocks row blocks of offsets_.floats floats.
  float* data_ = nullptr;
  /// One flag for each packed row block: 1 if it has a NaN or Inf, else 0.
  float* nonfinite_ = nullptr;
};

}  // namespace armillary::kernel::cpu
