// expert_dispatch.h: tokens on their way to experts, which other ranks may have, and back.
//
//   x_TE --gather--> a row for each (token, expert), by expert --all-to-all--> rows of all ranks
//        --permute--> by expert of this rank --> experts --> the same way back --> sums with
//        weights
//
// Counts go first, so messages have the rows that there are: none is dropped, none is padded, and
// each (token, expert) travels once. Backward is the same with the roles of both ends swapped. Each
// way has a start and an end, so that rows travel while others are computed (routed_experts.h).
//
//   T tokens of this rank, E dim, K experts of a token, N = T K rows, R rows for experts here
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "armillary/model/expert_parallel.h"

namespace armillary::model {

/// Rows of an exchange that was started and not waited for.
struct RowsUnderWay {
  at::Tensor outgoing, incoming;
  std::unique_ptr<ExpertExchange> exchange;  ///< Last: it uses the others. Null: none.
};

/// The rows of some tokens on this rank. Nothing changes once it is made but the exchange.
struct ExpertRows {
  std::int64_t dim_tokens = 0;         ///< T.
  at::Tensor token_N;                  ///< The token of each row, in the order of experts.
  at::Tensor place_TK;                 ///< The row of each pair.
  std::vector<std::int64_t> to_ranks;  ///< Rows for each rank along ep, and from each.
  std::vector<std::int64_t> from_ranks;
  at::Tensor by_expert_R;               ///< Received rows in the order of experts, and
  at::Tensor by_rank_R;                 ///< the other way; undefined: they lie so already.
  std::vector<std::int64_t> of_expert;  ///< Rows of each expert of this rank.
  std::shared_ptr<ExpertParallel> ranks;
  std::unique_ptr<RowsUnderWay> to_experts = std::make_unique<RowsUnderWay>();
  std::unique_ptr<RowsUnderWay> to_tokens = std::make_unique<RowsUnderWay>();

  std::int64_t received() const;  ///< R.
};

/// Cuts the tokens into so many parts of neighbours, even ones (even_part), each with rows of its
/// own. Exchanges the counts of all parts at once. Collective over `ranks`, with the same number of
/// parts; null: this rank alone, which has all experts.
std::vector<std::shared_ptr<const ExpertRows>> expert_rows(const at::Tensor& experts_TK,
                                                           std::int64_t experts,
                                                           std::shared_ptr<ExpertParallel> ranks,
                                                           int parts = 1);

// Differentiable; collective over the ranks, in backward too. The result of a start is for its end
// alone, which waits for the rows. Backward starts what forward ends, and ends what it starts.

/// Rows for the experts of this rank, by expert: [R, E].
at::Tensor start_dispatch(const at::Tensor& x_TE, const std::shared_ptr<const ExpertRows>& rows);
at::Tensor finish_dispatch(const at::Tensor& started_rows,
                           const std::shared_ptr<const ExpertRows>& rows);

/// Sums of the results of each token's experts times weights_TK (fp32, of fp64 in fp64), in the
/// order of the token's experts; computed in the dtype of the weights and rounded once.
at::Tensor start_combine(const at::Tensor& results_RE,
                         const std::shared_ptr<const ExpertRows>& rows);
at::Tensor finish_combine(const at::Tensor& started_rows, const at::Tensor& weights_TK,
                          const std::shared_ptr<const ExpertRows>& rows);

}  // namespace armillary::model
