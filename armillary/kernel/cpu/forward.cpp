// Forward driver: attention of query row blocks over the keys of a call.
//
// Each stage (stages.h) packs keys and values once, and then runs one task for each query row block
// of each query head (QueryRowBlock): load the state of its rows, pack its queries, attend to every
// visible key row block of the stage, and write the rows as a result or as an accumulator for the
// next stage. Tasks write different rows, so their order does not matter. A ForwardTile holds the
// arguments of the kernel for one query row block and one key row block.
#include <cmath>
#include <limits>
#include <optional>

#include "armillary/kernel/cpu/attention_args.h"
#include "armillary/kernel/cpu/packed_keys.h"
#include "armillary/kernel/cpu/stages.h"

namespace armillary::kernel::cpu {
namespace {

/// Log-sum-exp and maximum of a row that saw no key.
constexpr float kNoKey = -std::numeric_limits<float>::infinity();

/// Raises a maximum that several threads share. NaN is the largest, as for at::maximum.
void raise(float& shared, float count) {
  std::atomic_ref<float> most(shared);
  float before = most.load();
  while (!std::isnan(before) && !(count <= before) && !most.compare_exchange_weak(before, count)) {
  }
}

/// Destination of the rows of a call.
struct QueryTarget {
  bool init = false;     ///< rows are initialised as (0, -inf), not merged into `sums` and `lse`
  bool finish = false;   ///< rows end as `result`, with the sinks; otherwise as `sums`
  RoundedOutput result;  ///< only if `finish`
  Output sums;           ///< accumulators between calls, or between stages
  /// `sums` is scratch: rows of the query row blocks of a stage, for the query heads of one KV
  /// head.
  bool sums_in_scratch = false;
  Output lse;
  const float* sinks_H = nullptr;
  float* max_logit_H = nullptr;
};

/// Adds the sink to the state of each row, as one more key whose score is `sink` and whose value is
/// 0. It is added once, when a row has met all its keys, and is never the largest logit.
void add_sink(const GemmOps& gemm, const ForwardTile& tile, float sink) {
  for (int row = 0; row < tile.pairs.q_rows; ++row) {
    const float max = tile.max[row] * gemm.log_unit;
    float& sum = tile.sum[row];
    if (!(sink > max)) {
      if (sink != kNoKey) sum += std::exp(sink - max);
      continue;
    }
    const float factor = std::exp(max - sink);
    tile.max[row] = sink / gemm.log_unit;
    sum = sum * factor + 1;
    gemm.scale_row(tile, row, factor);
  }
}

/// State that the tasks of a stage share.
struct ForwardStage {
  const AttentionArgs& call;
  const QueryTarget& target;
  const Stage& stage;
  const PackedKeys& keys;
};

/// Task of one thread: a query row block of a query head against the keys of a stage.
class QueryRowBlock {
 public:
  /// `head_of_stage` counts KV heads of the stage, `head` query heads of the call.
  QueryRowBlock(const ForwardStage& work, std::int64_t head_of_stage, std::int64_t head,
                std::int64_t q_block)
      : call_(work.call),
        gemm_(forward_gemm_ops(work.call)),
        target_(work.target),
        stage_(work.stage),
        keys_(work.keys),
        head_of_stage_(head_of_stage),
        batch_((work.stage.first_head + head_of_stage) / work.call.kv_heads),
        head_(head),
        pairs_(pairs_of_q(*call_.block_mask, q_block,
                          {stage_.first_block, stage_.first_block + stage_.blocks})),
        progress_(progress_of_queries(static_cast<std::size_t>(q_block))),
        rows_(call_.block_mask->q_rows[static_cast<std::size_t>(q_block)]),
        count_(static_cast<int>(rows_.end - rows_.begin)),
        padded_(round_up(count_, gemm_.units.rows)) {}

  void run() {
    if (progress_.idle && !initialises()) return;
    reserve();
    load_state();
    attend();
    write();
  }

 private:
  bool initialises() const { return target_.init && progress_.first; }
  bool finishes() const { return target_.finish && progress_.last; }
  std::int64_t out_floats() const {
    return std::int64_t{padded_} * round_up(call_.value_dim, gemm_.units.columns);
  }
  float* lse() const { return at(target_.lse, batch_, head_, rows_.begin); }

  StageProgress progress_of_queries(std::size_t q) const {
    const BlockMask& block_mask = *call_.block_mask;
    const RowBlockPair* const all = block_mask.pairs.data();
    return progress_of(pairs_, all + block_mask.first_of_q[q], all + block_mask.first_of_q[q + 1],
                       stage_.first_block == 0);
  }

  /// Accumulators of the rows between stages; not used if the rows begin and end in this stage.
  float* sums() const {
    if (!target_.sums_in_scratch) return at(target_.sums, batch_, head_, rows_.begin);
    const auto first = static_cast<std::size_t>(stage_.others.begin);
    const std::int64_t first_head = q_heads_of(call_, stage_.first_head % call_.kv_heads).begin;
    return at(target_.sums, 0, head_ - first_head,
              rows_.begin - call_.block_mask->q_rows[first].begin);
  }

  /// Scratch of the thread, and the fields of the tile that are the same for all pairs.
  void reserve() {
    Carver carver;
    const auto array = [&](std::int64_t floats) {
      return carver.reserve(static_cast<std::size_t>(floats));
    };
    const std::size_t queries = array(query_floats(gemm_, padded_, call_.head_dim));
    const std::size_t out = array(out_floats());
    const std::size_t scores = array(gemm_.forward_sizes.scores);
    const std::size_t max = array(padded_);
    const std::size_t sum = array(padded_);
    thread_local Scratch scratch;
    float* const memory = scratch.floats(carver.size());
    queries_ = memory + queries;
    tile_ = ForwardTile{.score = score_of(call_, head_, rows_),
                        .head_dim = call_.head_dim,
                        .value_dim = call_.value_dim,
                        .scale = q_scale(call_),
                        .q = queries_,
                        .scores = memory + scores,
                        .out = memory + out,
                        .max = memory + max,
                        .sum = memory + sum};
    if (call_.dropout.on()) {
      stream_.emplace(call_.dropout, batch_, call_.first_q_head + head_);
      tile_.score.dropout = &*stream_;
    }
    if (target_.max_logit_H != nullptr) tile_.max_logit = &max_logit_;
  }

  /// Loads the online softmax state that the rows had before this stage: the maximum is their
  /// log-sum-exp and the sum is 1; for a row that saw no key they are -inf and 0.
  void load_state() {
    const float* const before = lse();
    for (int row = 0; row < count_; ++row) {
      tile_.max[row] = kNoKey;
      if (!initialises()) tile_.max[row] = before[row * target_.lse.row] / gemm_.log_unit;
      tile_.sum[row] = tile_.max[row] == kNoKey ? 0 : 1;
    }
    std::fill(tile_.max + count_, tile_.max + padded_, 0.0f);
    std::fill(tile_.sum + count_, tile_.sum + padded_, 0.0f);
    // If no row has seen a key, `out` is 0 and need not be read.
    if (std::all_of(tile_.sum, tile_.sum + count_, [](float sum) { return sum == 0; })) {
      std::fill_n(tile_.out, out_floats(), 0.0f);
      return;
    }
    gemm_.pack_sums({.data = sums(),
                     .element = Element::Float32,
                     .stride = target_.sums.row,
                     .count = count_,
                     .width = call_.value_dim},
                    1, padded_, tile_.out);
  }

  /// Packs the queries, and attends to all visible key row blocks of the stage one by one.
  void attend() {
    const BlockMask& block_mask = *call_.block_mask;
    const Rows rows = rows_of(call_, call_.q, {batch_, head_, rows_}, call_.head_dim);
    const bool q_finite = gemm_.pack_queries(rows, tile_.scale, padded_, queries_);
    for (const RowBlockPair& pair : pairs_) {
      tile_.pairs = block_mask.tile_pairs(pair);
      tile_.score.k_positions =
          block_mask.k_positions.data() + block_mask.k_rows[static_cast<std::size_t>(pair.k)].begin;
      keys_.point(head_of_stage_, pair.k, tile_);
      // A non-finite query affects its own row only, and correctly. Split into parts it would give
      // NaN for scores that are infinite, so the kernel then computes these scores without parts.
      tile_.pairs.nonfinite |= !q_finite && gemm_.parts > 1;
      gemm_.forward(tile_);
    }
  }

  /// Writes the state as result or accumulator, and the largest logit.
  void write() {
    tile_.pairs.q_rows = count_;
    if (finishes()) {
      if (target_.sinks_H != nullptr) add_sink(gemm_, tile_, target_.sinks_H[head_]);
      gemm_.write[index_of(target_.result.element)](tile_,
                                                    at(target_.result, batch_, head_, rows_.begin),
                                                    target_.result.row, lse(), target_.lse.row);
    } else {
      gemm_.write[index_of(Element::Float32)](tile_, sums(), target_.sums.row, lse(),
                                              target_.lse.row);
    }
    if (target_.max_logit_H != nullptr) raise(target_.max_logit_H[head_], max_logit_);
  }

  const AttentionArgs& call_;
  const GemmOps& gemm_;
  const QueryTarget& target_;
  const Stage& stage_;
  const PackedKeys& keys_;
  std::int64_t head_of_stage_;
  std::int64_t batch_;
  std::int64_t head_;
  std::span<const RowBlockPair> pairs_;  ///< visible ones of this stage
  StageProgress progress_;
  plan::Interval rows_;
  int count_;
  int padded_;
  float* queries_ = nullptr;
  ForwardTile tile_;
  std::optional<DropoutStream> stream_;
  float max_logit_ = kNoKey;
};

void attend_to(const AttentionArgs& call, QueryTarget target) {
  if (call.heads == 0) return;
  const BlockMask& block_mask = *call.block_mask;
  const std::int64_t group = largest_group(call);
  Stages stages{.heads = call.batch * call.kv_heads,
                .blocks = static_cast<std::int64_t>(block_mask.k_rows.size()),
                .block_floats = KeyOffsets(call).floats,
                .others = static_cast<std::int64_t>(block_mask.q_rows.size()),
                .others_per_stage = static_cast<std::int64_t>(block_mask.q_rows.size()),
                .heads_floats = forward_gemm_ops(call).heads_floats};
  // A rounded result whose KV heads take several stages: accumulators in scratch, for as many query
  // row blocks at a time as fit.
  if (target.sums.data == nullptr && stages.several_per_head()) {
    const std::int64_t floats = std::int64_t{block_mask.largest_q} * call.value_dim * group;
    stages.others_per_stage = std::max<std::int64_t>(1, kRestingFloats / floats);
    target.sums_in_scratch = true;
    target.sums = {.data = resting_memory().floats(stages.others_per_stage * floats),
                   .row = call.value_dim,
                   .head = stages.others_per_stage * block_mask.largest_q * call.value_dim};
  }
  for_each_stage(stages, [&](const Stage& stage) {
    PackedKeys keys(call, stage);
    deal_out(call.team, stage.heads * stage.blocks, [&](std::int64_t i) { keys.pack(i); });
    const ForwardStage work{call, target, stage, keys};
    const std::int64_t q_blocks = stage.others.end - stage.others.begin;
    deal_out(call.team, stage.heads * group * q_blocks, [&](std::int64_t i) {
      const std::int64_t head_of_stage = i / (group * q_blocks);
      const plan::Interval heads =
          q_heads_of(call, (stage.first_head + head_of_stage) % call.kv_heads);
      const std::int64_t head = heads.begin + i / q_blocks % group;
      // Last row blocks first: with a causal mask they have most work, so short tasks end the
      // stage.
      const std::int64_t q_block = stage.others.end - 1 - i % q_blocks;
      if (head < heads.end) QueryRowBlock(work, head_of_stage, head, q_block).run();
    });
  });
}

}  // namespace

const GemmOps& forward_gemm_ops(const AttentionArgs& call) {
  return gemm_ops_of(call, has_words(call.k, call.head_dim));
}

MaskTileLimits forward_limits(const GemmOps& gemm) {
  return {.q_rows = gemm.forward_sizes.q_rows, .k_rows = gemm.forward_sizes.k_rows};
}

void attend(const AttentionArgs& call, const Carry& carry) {
  attend_to(
      call,
      {.init = carry.init, .sums = carry.out, .lse = carry.lse, .max_logit_H = carry.max_logit_H});
}

void attend_all(const AttentionArgs& call, const AllKeys& results) {
  QueryTarget target{.init = true,
                     .finish = true,
                     .result = results.out,
                     .lse = results.lse,
                     .sinks_H = results.sinks_H,
                     .max_logit_H = results.max_logit_H};
  // An fp32 result is its own accumulator between stages.
  if (results.out.element == Element::Float32) target.sums = floats_of(results.out);
  attend_to(call, target);
}

}  // namespace armillary::kernel::cpu
