// tensor_parallel.h: the ranks along tp as a model sees them: tokens and matrices of one sequence
// are cut over them (Megatron-LM with sequence parallelism, arXiv:2205.05198).
//
//   tokens of this rank --gather--> all L tokens, its columns of a matrix --> its heads
//   its rows of a matrix --> a partial sum for all L tokens --reduce-scatter--> tokens of this rank
//
// A model knows no communicator: the collectives are an interface that the trainer implements
// (train/tensor_parallel_over_ranks.h), or a test. Ranks along tp have the same inputs and make the
// same calls in the same order, in backward too.
//
//   B batch, L tokens that the ranks along tp share, K tokens of one of them, E dim
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

namespace armillary::model {

/// Collectives over the ranks along tp, for code without a graph. Tensors are contiguous, in the
/// memory of the CPU, and of one dtype: fp64, fp32 or bf16, which is summed in fp32 and rounded
/// once. Counts are elements by rank. Threads: that of the rank. @throws what the group throws if
/// it fails.
class TensorParallel {
 public:
  /// Rank `index` of `ranks`.
  TensorParallel(int index, int ranks) : index_(index), ranks_(ranks) {}
  TensorParallel(const TensorParallel&) = delete;
  TensorParallel& operator=(const TensorParallel&) = delete;
  virtual ~TensorParallel() = default;

  int index() const { return index_; }
  int ranks() const { return ranks_; }

  /// Fills `all` with the `mine` of ranks 0, 1, ..
  virtual void all_gather(const at::Tensor& mine, const at::Tensor& all,
                          std::span<const std::int64_t> counts) = 0;
  /// Fills `mine` with the sum over the ranks of part index() of their `all`.
  virtual void reduce_scatter(const at::Tensor& all, const at::Tensor& mine,
                              std::span<const std::int64_t> counts) = 0;
  /// Replaces values by their sum or largest over the ranks, in place: the same bits on all ranks.
  /// fp64 or fp32. NaN if one is NaN.
  virtual void all_reduce_sum(const at::Tensor& values) = 0;
  virtual void all_reduce_max(const at::Tensor& values) = 0;

 private:
  int index_;
  int ranks_;
};

/// The tokens of a pass, cut over the ranks along tp: rank i of t has the tokens [i L / t, (i + 1)
/// L / t) of each batch entry, which may be none. False as a bool if they are not cut.
struct TokenShards {
  std::shared_ptr<TensorParallel> ranks = {};  ///< Null: not cut.
  std::int64_t tokens = 0;                     ///< L.

  explicit operator bool() const { return ranks != nullptr; }
};

/// The tokens of this rank, of a tensor that has all L along a dim: a view, or all if they are not
/// cut.
at::Tensor tokens_of_rank(const at::Tensor& x, std::int64_t dim, const TokenShards& shards);

/// The shards of all ranks as one tensor [B, L, E]; and the sum over the ranks of a tensor [B, L,
/// E], for the tokens of this rank alone: [B, K, E]. Without a graph. Collective, over B L E
/// elements.
at::Tensor gathered(const at::Tensor& x_BKE, const TokenShards& shards);
at::Tensor reduce_scattered(const at::Tensor& partial_BLE, const TokenShards& shards);

/// The same, differentiable; each is the gradient of the other. The gradient of gathered tokens is
/// partial on each rank: that of what the rank itself computed of them.
at::Tensor gather_tokens(const at::Tensor& x_BKE, const TokenShards& shards);
at::Tensor reduce_scatter_tokens(const at::Tensor& partial_BLE, const TokenShards& shards);

/// The embedding of tokens whose words are rows of this rank, and 0 for other words, so that the
/// sum over the ranks is the embedding. The weight has the rows from that of `first_word` on. Its
/// dtype is that of the weight's gradients (narrow_parameters.h).
at::Tensor embedding_of_words(const at::Tensor& weight_VE, std::int64_t first_word,
                              const at::Tensor& tokens_BL);

}  // namespace armillary::model
