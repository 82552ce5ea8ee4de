// Backward driver: gradients of the visible pairs of a call.
//
// Each stage (stages.h) packs queries and their gradients once, and then runs one task for each key
// row block of each KV head (KeyRowBlock): pack K and V, compute the tile of every visible query
// row block of every query head in the group, and write or add dk and dv. dk and dv are accumulated
// in scratch of the task. dq is added tile by tile, in the order of key row blocks (add_dq), so
// that results have the same bits for any number of threads.
#include <optional>

#include "armillary/kernel/cpu/attention_args.h"
#include "armillary/kernel/cpu/packed_queries.h"
#include "armillary/kernel/cpu/stages.h"

namespace armillary::kernel::cpu {
namespace {

/// Factor that sums of dS^T Q still lack. With words of one term, Q is packed times scale /
/// softcap; with words of two terms, it is packed as it is.
float dk_factor(const AttentionArgs& call) {
  if (backward_gemm_ops(call).terms > 1) return static_cast<float>(call.scale);
  return call.softcap == 0 ? 1 : static_cast<float>(call.softcap);
}

/// Destination of the gradients of a call.
struct GradTarget {
  /// Accumulators: those of the caller; or, if `finish`, the results themselves if they are fp32,
  /// and otherwise scratch.
  Grads sums;
  /// Gradients end as `results`, rounded once. Otherwise they are added to `sums`, and only
  /// `results.dq` is used.
  bool finish = false;
  AllGrads results;
  /// `sums` is scratch: rows of dq for the query heads of the stage; and rows of dk and dv for its
  /// key row blocks, if a head takes several stages.
  bool sums_in_scratch = false;
};

constexpr float kZeros[kMaxDim] = {};

/// State that the tasks of a stage share.
struct BackwardStage {
  const AttentionArgs& call;
  const GradTarget& target;
  const Stage& stage;
  const PackedQueries& queries;
};

/// Task of one thread: a key row block of a KV head against the queries of a stage.
class KeyRowBlock {
 public:
  /// `head_of_stage` counts KV heads of the stage.
  KeyRowBlock(const BackwardStage& work, std::int64_t head_of_stage, std::int64_t k_block)
      : call_(work.call),
        gemm_(backward_gemm_ops(work.call)),
        target_(work.target),
        stage_(work.stage),
        queries_(work.queries),
        head_of_stage_(head_of_stage),
        batch_((stage_.first_head + head_of_stage) / call_.kv_heads),
        kv_head_((stage_.first_head + head_of_stage) % call_.kv_heads),
        heads_(q_heads_of(call_, kv_head_)),
        pairs_(pairs_of_k(*call_.block_mask, k_block,
                          {stage_.first_block, stage_.first_block + stage_.blocks})),
        progress_(progress_of_keys(k_block)),
        rows_(call_.block_mask->k_rows[static_cast<std::size_t>(k_block)]),
        first_row_(target_.sums_in_scratch ? first_row_of_stage() : 0) {}

  void run() {
    if (progress_.idle && !initialises()) return;
    reserve();
    if (!progress_.idle) attend();
    flush(packed_sums(dk_, call_.head_dim, dk_factor(call_)), target_.sums.dk, target_.results.dk);
    flush(packed_sums(dv_, call_.value_dim, 1), target_.sums.dv, target_.results.dv);
  }

 private:
  bool initialises() const { return target_.sums.dkv_init && progress_.first; }
  bool finishes() const { return target_.finish && progress_.last; }
  int count() const { return static_cast<int>(rows_.end - rows_.begin); }
  int panels() const { return round_up(count(), gemm_.units.keys); }
  int groups() const { return round_up(count(), gemm_.units.rows); }
  PackedSums packed_sums(const float* sums, int width, float factor) const {
    return {.data = sums, .padded = groups(), .rows = count(), .width = width, .factor = factor};
  }
  std::int64_t first_row_of_stage() const {
    return call_.block_mask->k_rows[static_cast<std::size_t>(stage_.others.begin)].begin;
  }

  StageProgress progress_of_keys(std::int64_t k_block) const {
    const BlockMask& block_mask = *call_.block_mask;
    const bool first_blocks = stage_.first_block == 0;
    // A KV head without query heads in this view has gradients of 0.
    if (heads_.empty()) return {first_blocks, first_blocks, true};
    const auto k = static_cast<std::size_t>(k_block);
    const std::int32_t* const by_k = block_mask.by_k.data();
    return progress_of(pairs_, by_k + block_mask.first_of_k[k], by_k + block_mask.first_of_k[k + 1],
                       first_blocks);
  }

  /// Scratch of the thread; dk and dv begin with 0.
  void reserve() {
    Carver carver;
    const auto array = [&](std::int64_t floats) {
      return carver.reserve(static_cast<std::size_t>(floats));
    };
    const auto sums = [&](int width) {
      return std::int64_t{groups()} * round_up(width, gemm_.units.columns);
    };
    const std::size_t k_transposed = array(key_floats(gemm_, panels(), call_.head_dim));
    const std::size_t v_transposed = array(key_floats(gemm_, panels(), call_.value_dim));
    const std::size_t k = array(value_floats(gemm_, panels(), call_.head_dim));
    const std::size_t dk = array(sums(call_.head_dim));
    const std::size_t dv = array(sums(call_.value_dim));
    const std::size_t weights = array(gemm_.backward_sizes.scores);
    const std::size_t dscores = array(gemm_.backward_sizes.dscores);
    thread_local Scratch scratch;
    float* const memory = scratch.floats(carver.size());
    k_transposed_ = memory + k_transposed;
    v_transposed_ = memory + v_transposed;
    k_values_ = memory + k;
    dk_ = memory + dk;
    dv_ = memory + dv;
    weights_ = memory + weights;
    dscores_ = memory + dscores;
    std::fill(dk_, dv_ + sums(call_.value_dim), 0.0f);
  }

  /// Packs K and V, and computes the tiles of all visible query row blocks of the stage.
  void attend() {
    const BlockMask& block_mask = *call_.block_mask;
    // K is a factor of S and of dQ; V of dP.
    const HeadRows place{batch_, kv_head_, rows_};
    const Rows k_rows = rows_of(call_, call_.k, place, call_.head_dim);
    const Rows v_rows = rows_of(call_, call_.v, place, call_.value_dim);
    const bool k_finite = gemm_.pack_keys(k_rows, k_transposed_);
    const bool v_finite = gemm_.pack_keys(v_rows, v_transposed_);
    gemm_.pack_values(k_rows, 1, panels(), k_values_);
    BackwardTile tile{.head_dim = call_.head_dim,
                      .value_dim = call_.value_dim,
                      .scale = static_cast<float>(call_.scale),
                      .score_scale = q_scale(call_),
                      .k_transposed = k_transposed_,
                      .v_transposed = v_transposed_,
                      .k_values = k_values_,
                      .weights = weights_,
                      .dscores = dscores_,
                      .dk = dk_,
                      .dv = dv_,
                      .dq_stride = target_.sums.dq.row};
    // Query heads of the group, then query row blocks: dk and dv add up in this order.
    for (std::int64_t head = heads_.begin; head < heads_.end; ++head) {
      std::optional<DropoutStream> stream;
      if (call_.dropout.on()) stream.emplace(call_.dropout, batch_, call_.first_q_head + head);
      for (const std::int32_t number : pairs_) {
        const RowBlockPair& pair = block_mask.pairs[static_cast<std::size_t>(number)];
        const std::int64_t packed = queries_.number(head_of_stage_, head - heads_.begin, pair.q);
        tile.pairs = block_mask.tile_pairs(pair);
        tile.pairs.nonfinite = !k_finite || !v_finite || queries_.nonfinite(packed);
        tile.score = score_of(call_, head, block_mask.q_rows[static_cast<std::size_t>(pair.q)]);
        tile.score.k_positions = block_mask.k_positions.data() + rows_.begin;
        if (stream) tile.score.dropout = &*stream;
        queries_.point(packed, tile);
        gemm_.backward(tile);
        add_dq(tile, head, number, packed);
      }
    }
  }

  /// Adds dq of a tile when the key row blocks before this one have added theirs. `number` is that
  /// of the pair in the block mask, `packed` that of the packed query row block.
  void add_dq(BackwardTile& tile, std::int64_t head, std::int32_t number, std::int64_t packed) {
    const BlockMask& block_mask = *call_.block_mask;
    const auto q_block =
        static_cast<std::size_t>(block_mask.pairs[static_cast<std::size_t>(number)].q);
    const std::int64_t row = block_mask.q_rows[q_block].begin;
    const auto first_of_stage = static_cast<std::int32_t>(
        pairs_of_q(block_mask, static_cast<std::int64_t>(q_block), stage_.others).data() -
        block_mask.pairs.data());
    tile.dq = target_.sums_in_scratch
                  ? at(target_.sums.dq, 0,
                       head_of_stage_ * largest_group(call_) + head - heads_.begin, row)
                  : at(target_.sums.dq, batch_, head, row);
    queries_.wait_for_added(packed, number - first_of_stage);
    const IsaKernels& isa = *call_.isa;
    // The first pair of a query row block initialises its rows, and the last one rounds them.
    if (target_.sums.dq_init && number == block_mask.first_of_q[q_block]) {
      isa.write_rows[index_of(Element::Float32)](
          {.data = kZeros, .count = tile.pairs.q_rows, .width = call_.head_dim}, tile.dq,
          tile.dq_stride);
    }
    gemm_.backward_dq(tile);
    if (target_.sums_in_scratch && number + 1 == block_mask.first_of_q[q_block + 1]) {
      const RoundedOutput& dq = target_.results.dq;
      isa.write_rows[index_of(dq.element)]({.data = tile.dq,
                                            .stride = tile.dq_stride,
                                            .count = tile.pairs.q_rows,
                                            .width = call_.head_dim},
                                           at(dq, batch_, head, row), dq.row);
    }
    queries_.set_added(packed, number - first_of_stage + 1);
  }

  /// Brings dk or dv of the stage from scratch of the task to its accumulators or to the result.
  void flush(const PackedSums& packed, const Output& sums, const RoundedOutput& result) const {
    void* const to = finishes() ? at(result, batch_, kv_head_, rows_.begin) : nullptr;
    // All pairs are in this stage: no accumulator in memory is needed.
    if (initialises() && finishes()) {
      gemm_.write_sums[index_of(result.element)](packed, to, result.row);
      return;
    }
    float* const accumulated = target_.sums_in_scratch ? at(sums, 0, 0, rows_.begin - first_row_)
                                                       : at(sums, batch_, kv_head_, rows_.begin);
    if (initialises()) {
      gemm_.write_sums[index_of(Element::Float32)](packed, accumulated, sums.row);
    } else {
      gemm_.add_sums(packed, accumulated, sums.row);
    }
    if (finishes() && target_.sums_in_scratch) {
      call_.isa->write_rows[index_of(result.element)](
          {.data = accumulated, .stride = sums.row, .count = count(), .width = packed.width}, to,
          result.row);
    }
  }

  const AttentionArgs& call_;
  const GemmOps& gemm_;
  const GradTarget& target_;
  const Stage& stage_;
  const PackedQueries& queries_;
  std::int64_t head_of_stage_;
  std::int64_t batch_;
  std::int64_t kv_head_;
  plan::Interval heads_;                 ///< query heads that read this KV head
  std::span<const std::int32_t> pairs_;  ///< visible ones of this stage
  StageProgress progress_;
  plan::Interval rows_;
  std::int64_t first_row_;  ///< first row of dk and dv in scratch
  // Scratch of the task.
  float* k_transposed_ = nullptr;
  float* v_transposed_ = nullptr;
  float* k_values_ = nullptr;
  float* dk_ = nullptr;
  float* dv_ = nullptr;
  float* weights_ = nullptr;
  float* dscores_ = nullptr;
};

/// Writes 0 to dq of query row blocks without a visible pair: no task visits them.
void clear_dq(const AttentionArgs& call, const GradTarget& target) {
  const BlockMask& block_mask = *call.block_mask;
  const RoundedOutput& dq = target.results.dq;
  for (std::size_t q = 0; q < block_mask.q_rows.size(); ++q) {
    if (block_mask.first_of_q[q] != block_mask.first_of_q[q + 1]) continue;
    const plan::Interval rows = block_mask.q_rows[q];
    for (std::int64_t i = 0; i < call.batch * call.heads; ++i) {
      call.isa->write_rows[index_of(dq.element)](
          {.data = kZeros, .count = rows.end - rows.begin, .width = call.head_dim},
          at(dq, i / call.heads, i % call.heads, rows.begin), dq.row);
    }
  }
}

/// Places the accumulators of rounded results in scratch, and limits the key row blocks of a stage
/// to those whose dk and dv fit.
void place_sums(const AttentionArgs& call, Stages& stages, GradTarget& target) {
  const BlockMask& block_mask = *call.block_mask;
  const std::int64_t q_rows = block_mask.q_rows.back().end;
  const std::int64_t heads = std::min(stages.heads, stages.heads_per_stage()) * largest_group(call);
  Carver carver;
  const auto array = [&](std::int64_t height, int width) {
    return carver.reserve(static_cast<std::size_t>(height * width));
  };
  const std::size_t dq = array(heads * q_rows, call.head_dim);
  std::int64_t k_rows = 0;
  if (stages.several_per_head()) {
    const int width = call.head_dim + call.value_dim;
    stages.others_per_stage = kRestingFloats / (std::int64_t{block_mask.largest_k} * width);
    k_rows = std::min(stages.others_per_stage, stages.others) * block_mask.largest_k;
  }
  const std::size_t dk = array(k_rows, call.head_dim);
  const std::size_t dv = array(k_rows, call.value_dim);
  float* const memory = resting_memory().floats(carver.size());
  target.sums = {.dq = {.data = memory + dq, .row = call.head_dim, .head = q_rows * call.head_dim},
                 .dk = {.data = memory + dk, .row = call.head_dim},
                 .dv = {.data = memory + dv, .row = call.value_dim},
                 .dq_init = true,
                 .dkv_init = true};
}

void attend_grad_to(const AttentionArgs& call, const RowUpstream& upstream, GradTarget target) {
  const BlockMask& block_mask = *call.block_mask;
  const auto k_blocks = static_cast<std::int64_t>(block_mask.k_rows.size());
  Stages stages{.heads = call.batch * call.kv_heads,
                .blocks = static_cast<std::int64_t>(block_mask.q_rows.size()),
                .block_floats = QueryOffsets(call).floats * largest_group(call),
                .others = k_blocks,
                .others_per_stage = k_blocks,
                .heads_floats = backward_gemm_ops(call).heads_floats};
  if (target.sums_in_scratch) place_sums(call, stages, target);
  if (target.sums.dq_init) clear_dq(call, target);
  for_each_stage(stages, [&](const Stage& stage) {
    PackedQueries queries(call, upstream, stage);
    deal_out(call.team, queries.count(), [&](std::int64_t i) { queries.pack(i); });
    const BackwardStage work{call, target, stage, queries};
    // Ascending: a key row block waits only for those before it, which have begun.
    const std::int64_t blocks = stage.others.end - stage.others.begin;
    deal_out(call.team, stage.heads * blocks, [&](std::int64_t i) {
      KeyRowBlock(work, i / blocks, stage.others.begin + i % blocks).run();
    });
  });
}

}  // namespace

const GemmOps& backward_gemm_ops(const AttentionArgs& call) {
  return gemm_ops_of(call, has_words(call.k, call.head_dim) && has_words(call.v, call.value_dim));
}

MaskTileLimits backward_limits(const GemmOps& gemm) {
  return {.q_rows = gemm.backward_sizes.q_rows, .k_rows = gemm.backward_sizes.k_rows};
}

void attend_grad(const AttentionArgs& call, const RowUpstream& upstream, const Grads& grads) {
  attend_grad_to(call, upstream, {.sums = grads, .results = {.dq = result_of(grads.dq)}});
}

void attend_grad_all(const AttentionArgs& call, const RowUpstream& upstream,
                     const AllGrads& results) {
  GradTarget target{.finish = true,
                    .results = results,
                    .sums_in_scratch = results.dq.element != Element::Float32};
  // fp32 results are their own accumulators.
  if (!target.sums_in_scratch) {
    target.sums = {
        .dq = floats_of(results.dq), .dk = floats_of(results.dk), .dv = floats_of(results.dv)};
  }
  target.sums.dq_init = target.sums.dkv_init = true;
  attend_grad_to(call, upstream, target);
}

}  // namespace armillary::kernel::cpu
