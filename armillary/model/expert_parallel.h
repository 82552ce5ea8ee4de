// expert_parallel.h: the ranks along ep as a model sees them: each has some experts of every layer,
// and tokens of its own.
//
//   counts of rows by expert --exchange--> counts by rank and expert
//   rows for rank 0, 1, .. --all-to-all--> rows of rank 0, 1, .. for the experts of this rank
//
// A model knows no communicator: the collectives are an interface that the trainer implements
// (train/expert_parallel_over_ranks.h), or a test. Ranks make the same calls in the same order, in
// backward too, also with no tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "armillary/model/global_range.h"
#include "armillary/model/moe_options.h"

namespace armillary::model {

/// An exchange under way.
class ExpertExchange {
 public:
  ExpertExchange() = default;
  ExpertExchange(const ExpertExchange&) = delete;
  ExpertExchange& operator=(const ExpertExchange&) = delete;
  virtual ~ExpertExchange() = default;
  virtual void wait() = 0;
};

/// Collectives for code without a graph. Tensors are contiguous, in the memory of the CPU, and of
/// fp64, fp32 or bf16. Threads: that of the rank. @throws what the groups throw if they fail.
class ExpertParallel {
 public:
  /// Rank `index` of `ranks` along ep.
  ExpertParallel(int index, int ranks) : index_(index), ranks_(ranks) {}
  ExpertParallel(const ExpertParallel&) = delete;
  ExpertParallel& operator=(const ExpertParallel&) = delete;
  virtual ~ExpertParallel() = default;

  int index() const { return index_; }
  int ranks() const { return ranks_; }

  /// Gives rank r its part of the counts, of_ranks[r] of them: the same list on all ranks. Returns
  /// what this rank is given by rank 0, then by rank 1, ..
  virtual std::vector<std::int64_t> exchange_counts(std::span<const std::int64_t> counts,
                                                    std::span<const std::int64_t> of_ranks) = 0;
  /// Begins to fill part r of `incoming` with part index() of rank r's `outgoing`. Counts are
  /// elements by rank. Both tensors belong to the exchange until it was waited for, or is gone.
  virtual std::unique_ptr<ExpertExchange> start_all_to_all(
      const at::Tensor& outgoing, std::span<const std::int64_t> outgoing_counts,
      const at::Tensor& incoming, std::span<const std::int64_t> incoming_counts) = 0;
  /// Replaces values by their sum over the ranks that share a sequence, or over all ranks. fp64.
  virtual void sum(const at::Tensor& values, BalanceGroup group) = 0;

 private:
  int index_;
  int ranks_;
};

/// The experts of a rank, of `experts`.
inline EvenPart experts_of(std::int64_t experts, int index, int ranks) {
  return even_part(experts, index, ranks);
}

/// The sequences of the tokens of a pass, and their parts in the balance loss of a step.
struct SequencesOfPass {
  at::Tensor number_L;  ///< int64: of the sequence of each token, from 0 on. Undefined: all of 0.
  std::int64_t count = 1;
  double sequence_share = 1;  ///< 1 / sequences of the step.
  double pass_share = 1;      ///< 1 / passes of the step.
};

}  // namespace armillary::model
