// expert_dispatch.cpp: four autograd functions, each of which starts an exchange or ends one. The
// exchange is its own gradient the other way round. No sum depends on the order in which rows
// arrive.
#include "armillary/model/expert_dispatch.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

using SharedRows = std::shared_ptr<const ExpertRows>;

/// Rows as autograd keeps them until backward.
struct SavedRows : torch::CustomClassHolder {
  explicit SavedRows(SharedRows rows) : rows(std::move(rows)) {}
  SharedRows rows;
};

void save_rows(AutogradContext* ctx, const SharedRows& rows) {
  ctx->saved_data["rows"] = c10::IValue::make_capsule(c10::make_intrusive<SavedRows>(rows));
}

SharedRows saved_rows(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<SavedRows>(ctx->saved_data["rows"].toCapsule())->rows;
}

/// The dtype in which rows are added.
at::ScalarType sum_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// The rows of the j-th expert of each token.
at::Tensor rows_of_choice(const at::Tensor& rows_NE, const ExpertRows& rows, std::int64_t j) {
  return rows_NE.index_select(0, rows.place_TK.select(1, j));
}

/// Sends rows to experts, or back to their tokens. Returns what stands for them in a graph:
/// nothing, for a node's output and its gradient are of one shape, and these rows are others than
/// those that come back in backward; on one rank the rows themselves. Without a graph.
at::Tensor started(const at::Tensor& rows_NE, const ExpertRows& rows, bool is_back) {
  if (!rows.ranks) return rows_NE;
  RowsUnderWay& way = is_back ? *rows.to_tokens : *rows.to_experts;
  ARMILLARY_CHECK(way.exchange == nullptr);
  const std::int64_t dim = rows_NE.size(1);
  const auto elements = [&](const std::vector<std::int64_t>& counts) {
    std::vector<std::int64_t> all;
    all.reserve(counts.size());
    for (const std::int64_t count : counts) all.push_back(count * dim);
    return all;
  };
  const std::vector<std::int64_t> here = elements(rows.to_ranks);
  const std::vector<std::int64_t> there = elements(rows.from_ranks);
  const bool is_permuted = is_back && rows.by_rank_R.defined();
  const at::Tensor outgoing = is_permuted ? rows_NE.index_select(0, rows.by_rank_R) : rows_NE;
  const std::int64_t count = is_back ? rows.token_N.size(0) : rows.received();
  // Not a tensor that autograd sees: it refers to nodes, which refer to this.
  way.outgoing = outgoing.contiguous().detach();
  way.incoming = at::empty({count, dim}, rows_NE.options());
  way.exchange = rows.ranks->start_all_to_all(way.outgoing, is_back ? there : here, way.incoming,
                                              is_back ? here : there);
  return at::empty({0}, rows_NE.options());
}

/// The rows that come, when they are there: by expert, or by token and expert.
at::Tensor arrived(const at::Tensor& started_rows, const ExpertRows& rows, bool is_back) {
  if (!rows.ranks) return started_rows;
  RowsUnderWay& way = is_back ? *rows.to_tokens : *rows.to_experts;
  ARMILLARY_CHECK(way.exchange != nullptr);
  way.exchange->wait();
  way.exchange.reset();
  way.outgoing.reset();
  at::Tensor incoming = std::exchange(way.incoming, {});
  if (is_back || !rows.by_expert_R.defined()) return incoming;
  return incoming.index_select(0, rows.by_expert_R);
}

class StartDispatch : public torch::autograd::Function<StartDispatch> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TE, const SharedRows& rows) {
    save_rows(ctx, rows);
    return started(x_TE.index_select(0, rows->token_N), *rows, /*is_back=*/false);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const SharedRows rows = saved_rows(ctx);
    const at::Tensor drows_NE = arrived(grads[0], *rows, /*is_back=*/true);
    const at::ScalarType dtype = drows_NE.scalar_type();
    at::Tensor dx_TE =
        at::zeros({rows->dim_tokens, drows_NE.size(1)}, drows_NE.options().dtype(sum_dtype(dtype)));
    for (std::int64_t j = 0; j < rows->place_TK.size(1); ++j) {
      dx_TE.add_(rows_of_choice(drows_NE, *rows, j));
    }
    return {dx_TE.to(dtype), Variable()};
  }
};

class FinishDispatch : public torch::autograd::Function<FinishDispatch> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& started_rows,
                            const SharedRows& rows) {
    save_rows(ctx, rows);
    return arrived(started_rows, *rows, /*is_back=*/false);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {started(grads[0], *saved_rows(ctx), /*is_back=*/true), Variable()};
  }
};

class StartCombine : public torch::autograd::Function<StartCombine> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& results_RE,
                            const SharedRows& rows) {
    save_rows(ctx, rows);
    return started(results_RE, *rows, /*is_back=*/true);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {arrived(grads[0], *saved_rows(ctx), /*is_back=*/false), Variable()};
  }
};

class FinishCombine : public torch::autograd::Function<FinishCombine> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& started_rows,
                            const at::Tensor& weights_TK, const SharedRows& rows) {
    const at::Tensor rows_NE = arrived(started_rows, *rows, /*is_back=*/true);
    ctx->save_for_backward({rows_NE, weights_TK});
    save_rows(ctx, rows);
    at::Tensor sum_TE = at::zeros({rows->dim_tokens, rows_NE.size(1)}, weights_TK.options());
    for (std::int64_t j = 0; j < weights_TK.size(1); ++j) {
      sum_TE.addcmul_(rows_of_choice(rows_NE, *rows, j).to(weights_TK.scalar_type()),
                      weights_TK.select(1, j).unsqueeze(1));
    }
    return sum_TE.to(rows_NE.scalar_type());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const SharedRows rows = saved_rows(ctx);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& rows_NE = saved[0];
    const at::Tensor& weights_TK = saved[1];
    const at::Tensor dy_TE = grads[0].to(weights_TK.scalar_type());
    at::Tensor drows_NE = at::empty_like(rows_NE);
    for (std::int64_t j = 0; j < weights_TK.size(1); ++j) {
      drows_NE.index_copy_(
          0, rows->place_TK.select(1, j),
          (dy_TE * weights_TK.select(1, j).unsqueeze(1)).to(rows_NE.scalar_type()));
    }
    const at::Tensor started_rows = started(drows_NE, *rows, /*is_back=*/false);
    at::Tensor dweights_TK = at::empty_like(weights_TK);
    for (std::int64_t j = 0; j < weights_TK.size(1); ++j) {
      const at::Tensor of_choice = rows_of_choice(rows_NE, *rows, j).to(weights_TK.scalar_type());
      dweights_TK.select(1, j).copy_((dy_TE * of_choice).sum(1));
    }
    return {started_rows, dweights_TK, Variable()};
  }
};

/// Received rows lie by rank, those of a rank by expert. Fills in their order by expert.
void order_by_expert(ExpertRows& rows, const std::vector<std::int64_t>& counts) {
  const std::size_t ranks = rows.from_ranks.size();
  const std::size_t experts = rows.of_expert.size();
  if (ranks == 1 || experts <= 1) return;
  std::vector<std::int64_t> begins;  // by rank and expert
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    begins.push_back(begin);
    begin += count;
  }
  std::vector<std::int64_t> by_expert;
  std::vector<std::int64_t> by_rank(static_cast<std::size_t>(begin));
  for (std::size_t expert = 0; expert < experts; ++expert) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t entry = rank * experts + expert;
      for (std::int64_t i = begins[entry]; i < begins[entry] + counts[entry]; ++i) {
        by_rank[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(by_expert.size());
        by_expert.push_back(i);
      }
    }
  }
  rows.by_expert_R = at::tensor(by_expert, at::kLong);
  rows.by_rank_R = at::tensor(by_rank, at::kLong);
}

/// Fills in the rows for each rank and from each. `counts`: of this rank, by part and expert.
void exchange_rows(const std::vector<std::shared_ptr<ExpertRows>>& parts,
                   const std::vector<std::vector<std::int64_t>>& counts, ExpertParallel& ranks) {
  const auto experts = static_cast<std::int64_t>(counts.front().size());
  std::vector<std::int64_t> outgoing;  // by rank, part and expert of the rank
  std::vector<std::int64_t> of_ranks;
  for (int rank = 0; rank < ranks.ranks(); ++rank) {
    const EvenPart of_rank = experts_of(experts, rank, ranks.ranks());
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const auto begin = counts[part].begin() + of_rank.begin;
      outgoing.insert(outgoing.end(), begin, begin + of_rank.size);
      parts[part]->to_ranks.push_back(
          std::accumulate(begin, begin + of_rank.size, std::int64_t{0}));
    }
    of_ranks.push_back(of_rank.size * static_cast<std::int64_t>(parts.size()));
  }
  const std::vector<std::int64_t> received = ranks.exchange_counts(outgoing, of_ranks);
  const auto mine =
      static_cast<std::size_t>(experts_of(experts, ranks.index(), ranks.ranks()).size);
  ARMILLARY_CHECK(received.size() == mine * parts.size() * static_cast<std::size_t>(ranks.ranks()));
  for (std::size_t part = 0; part < parts.size(); ++part) {
    ExpertRows& rows = *parts[part];
    rows.of_expert.resize(mine);
    std::vector<std::int64_t> of_part;  // by rank and expert here
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks.ranks()); ++rank) {
      const auto begin =
          received.begin() + static_cast<std::ptrdiff_t>((rank * parts.size() + part) * mine);
      of_part.insert(of_part.end(), begin, begin + static_cast<std::ptrdiff_t>(mine));
      rows.from_ranks.push_back(
          std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(mine), std::int64_t{0}));
      for (std::size_t i = 0; i < mine; ++i) rows.of_expert[i] += *(begin + i);
    }
    order_by_expert(rows, of_part);
  }
}

}  // namespace

std::int64_t ExpertRows::received() const {
  return sum_of(of_expert);
}

std::vector<SharedRows> expert_rows(const at::Tensor& experts_TK, std::int64_t experts,
                                    std::shared_ptr<ExpertParallel> ranks, int parts) {
  if (ranks && ranks->ranks() == 1) ranks.reset();
  const std::int64_t tokens = experts_TK.size(0);
  const std::int64_t choices = experts_TK.size(1);
  std::vector<std::shared_ptr<ExpertRows>> all;
  std::vector<std::vector<std::int64_t>> counts;  // by part and expert
  for (int part = 0; part < parts; ++part) {
    const EvenPart here = even_part(tokens, part, parts);
    auto rows = std::make_shared<ExpertRows>();
    const at::Tensor pairs_N = experts_TK.narrow(0, here.begin, here.size).flatten();
    // Pairs by expert; a stable sort leaves those of an expert in the order of the tokens.
    const at::Tensor order_N =
        std::get<1>(at::sort(pairs_N, /*stable=*/true, /*dim=*/0, /*descending=*/false));
    at::Tensor place_N = at::empty_like(order_N);
    place_N.index_copy_(0, order_N, at::arange(order_N.size(0), at::kLong));
    rows->dim_tokens = here.size;
    rows->token_N = order_N.div(choices, "floor");
    rows->place_TK = place_N.view({here.size, choices});
    rows->ranks = ranks;
    const at::Tensor counts_X = at::bincount(pairs_N, {}, experts).contiguous();
    const auto* const first = counts_X.const_data_ptr<std::int64_t>();
    counts.emplace_back(first, first + experts);
    if (!ranks) rows->of_expert = counts.back();
    all.push_back(std::move(rows));
  }
  if (ranks) exchange_rows(all, counts, *ranks);
  return {all.begin(), all.end()};
}

at::Tensor start_dispatch(const at::Tensor& x_TE, const SharedRows& rows) {
  return StartDispatch::apply(x_TE, rows);
}

at::Tensor finish_dispatch(const at::Tensor& started_rows, const SharedRows& rows) {
  return FinishDispatch::apply(started_rows, rows);
}

at::Tensor start_combine(const at::Tensor& results_RE, const SharedRows& rows) {
  return StartCombine::apply(results_RE, rows);
}

at::Tensor finish_combine(const at::Tensor& started_rows, const at::Tensor& weights_TK,
                          const SharedRows& rows) {
  return FinishCombine::apply(started_rows, weights_TK, rows);
}

}  // namespace armillary::model
