// expert_parallel_test.cpp: dispatch, experts and combine over ranks along ep, against one rank in
// fp64, and what they send. experts_grid_test.cpp has whole models.
#include "armillary/model/expert_parallel.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/model/expert_dispatch.h"
#include "armillary/model/routed_experts.h"
#include "armillary/train/expert_parallel_over_ranks.h"

namespace armillary::train {
namespace {

constexpr std::int64_t kDimOfRows = 4;
constexpr std::int64_t kExpertsOfAll = 6;

at::Tensor drawn_fp64(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

std::shared_ptr<model::ExpertParallel> along(comm::Communicator& comm) {
  return expert_parallel_over_ranks({comm.world() == 1 ? nullptr : &comm, &comm, &comm});
}

/// Tokens of each rank, and the experts of each token.
struct Routed {
  std::string name;
  std::vector<std::int64_t> tokens;
  std::function<at::Tensor(std::int64_t first, std::int64_t tokens)> experts_TK;
};

at::Tensor two_of(const at::Tensor& first_T, const at::Tensor& second_T) {
  return at::stack({first_T, second_T}, 1).remainder(kExpertsOfAll);
}

std::vector<Routed> routes_on(int ranks) {
  const std::vector<std::int64_t> even(static_cast<std::size_t>(ranks), 5);
  std::vector<std::int64_t> uneven;
  uneven.reserve(even.size());
  for (int rank = 0; rank < ranks; ++rank) uneven.push_back(rank % 3 == 1 ? 0 : 3 + rank);
  const auto in_turn = [](std::int64_t first, std::int64_t tokens) {
    const at::Tensor t = at::arange(first, first + tokens, at::kLong);
    return two_of(t * 5 + 1, t * 5 + 3);
  };
  const auto all_to_one = [](std::int64_t, std::int64_t tokens) {
    return at::tensor({4, 3}, at::kLong).expand({tokens, 2}).contiguous();
  };
  const auto none_to_some = [](std::int64_t first, std::int64_t tokens) {
    const at::Tensor t = at::arange(first, first + tokens, at::kLong);
    return at::stack({t.remainder(2), t.remainder(3) + 2}, 1);
  };
  return {{"in turn", even, in_turn},
          {"in turn, ranks without tokens", uneven, in_turn},
          {"all to two experts", even, all_to_one},
          {"all to two experts, ranks without tokens", uneven, all_to_one},
          {"none to the last expert", even, none_to_some}};
}

/// Values and gradients of all ranks' tokens, and gradients of all experts.
struct RoutedResults {
  at::Tensor out, dx, dweights, dw1;
};

/// The experts of `ranks` ranks on these tokens; the tokens of rank 0 come first.
RoutedResults routed_results(int ranks, const Routed& routed) {
  struct OfRank {
    at::Tensor out, dx, dweights, dw1;
  };
  std::vector<OfRank> all(static_cast<std::size_t>(ranks));
  std::int64_t total = 0;
  for (const std::int64_t tokens : routed.tokens) total += tokens;
  const at::Tensor x = drawn_fp64({total, kDimOfRows}, 1);
  const at::Tensor weights = drawn_fp64({total, 2}, 2);
  const at::Tensor dout = drawn_fp64({total, kDimOfRows}, 3);
  const at::Tensor w1 = drawn_fp64({kExpertsOfAll, 5, kDimOfRows}, 4);
  const at::Tensor w2 = drawn_fp64({kExpertsOfAll, kDimOfRows, 5}, 5);
  const at::Tensor w3 = drawn_fp64({kExpertsOfAll, 5, kDimOfRows}, 6);
  comm::run_ranks(ranks, [&](comm::Communicator& comm) {
    // On one rank it has the tokens of all.
    std::int64_t first = 0;
    std::int64_t tokens = total;
    if (ranks > 1) {
      for (int rank = 0; rank < comm.rank(); ++rank) {
        first += routed.tokens[static_cast<std::size_t>(rank)];
      }
      tokens = routed.tokens[static_cast<std::size_t>(comm.rank())];
    }
    const model::EvenPart here = model::experts_of(kExpertsOfAll, comm.rank(), ranks);
    const auto leaf = [](const at::Tensor& part) { return part.clone().requires_grad_(true); };
    const at::Tensor x_TE = leaf(x.narrow(0, first, tokens));
    const at::Tensor weights_TK = leaf(weights.narrow(0, first, tokens));
    const model::ExpertWeights experts{leaf(w1.narrow(0, here.begin, here.size)),
                                       leaf(w2.narrow(0, here.begin, here.size)),
                                       leaf(w3.narrow(0, here.begin, here.size))};
    const at::Tensor out = model::routed_experts(
        x_TE, {routed.experts_TK(first, tokens), weights_TK}, experts,
        {.num_experts = kExpertsOfAll, .ranks = along(comm), .native_bf16 = false});
    (out * dout.narrow(0, first, tokens)).sum().backward();
    all[static_cast<std::size_t>(comm.rank())] = {out.detach(), x_TE.grad(), weights_TK.grad(),
                                                  experts.w1_XFE.grad()};
  });
  const auto joined = [&](at::Tensor OfRank::*member) {
    std::vector<at::Tensor> parts;
    parts.reserve(all.size());
    for (const OfRank& of_rank : all) parts.push_back(of_rank.*member);
    return at::cat(parts, 0);
  };
  return {joined(&OfRank::out), joined(&OfRank::dx), joined(&OfRank::dweights),
          joined(&OfRank::dw1)};
}

/// E3: all tokens to one expert, none to another, a rank without any.
TEST(ExpertParallel, RanksEqualOne) {
  for (const int ranks : {2, 3, 4, 6}) {
    for (const Routed& routed : routes_on(ranks)) {
      const std::string where = fmt::format("{} ranks, {}", ranks, routed.name);
      const RoutedResults results = routed_results(ranks, routed);
      const RoutedResults one = routed_results(1, routed);
      for (const auto member : {&RoutedResults::out, &RoutedResults::dx, &RoutedResults::dweights,
                                &RoutedResults::dw1}) {
        EXPECT_LE((results.*member - one.*member).abs().max().item<double>(), 1e-12) << where;
      }
    }
  }
}

/// Notes the end of an exchange.
class LoggedExchange : public model::ExpertExchange {
 public:
  LoggedExchange(std::unique_ptr<model::ExpertExchange> inner, std::string& log)
      : inner_(std::move(inner)), log_(log) {}
  void wait() override {
    log_ += "end ";
    inner_->wait();
  }

 private:
  std::unique_ptr<model::ExpertExchange> inner_;
  std::string& log_;
};

/// Counts the elements for ranks that have other experts, and notes starts and ends.
class CountedExpertParallel : public model::ExpertParallel {
 public:
  explicit CountedExpertParallel(std::shared_ptr<model::ExpertParallel> inner)
      : ExpertParallel(inner->index(), inner->ranks()), inner_(std::move(inner)) {}

  std::vector<std::int64_t> exchange_counts(std::span<const std::int64_t> counts,
                                            std::span<const std::int64_t> of_ranks) override {
    ++counted;
    return inner_->exchange_counts(counts, of_ranks);
  }
  std::unique_ptr<model::ExpertExchange> start_all_to_all(
      const at::Tensor& outgoing, std::span<const std::int64_t> outgoing_counts,
      const at::Tensor& incoming, std::span<const std::int64_t> incoming_counts) override {
    for (int rank = 0; rank < ranks(); ++rank) {
      if (rank != index()) traffic += outgoing_counts[static_cast<std::size_t>(rank)];
    }
    log += "start ";
    return std::make_unique<LoggedExchange>(
        inner_->start_all_to_all(outgoing, outgoing_counts, incoming, incoming_counts), log);
  }
  void sum(const at::Tensor& values, model::BalanceGroup group) override {
    inner_->sum(values, group);
  }

  std::int64_t traffic = 0;
  int counted = 0;
  std::string log;

 private:
  std::shared_ptr<model::ExpertParallel> inner_;
};

// 4 k h (ep - 1) / ep values a token, where every rank sends as many rows to each.
TEST(ExpertParallel, SendsTheRowsOfTheFormula) {
  constexpr int kRanks = 3;
  constexpr std::int64_t kTokens = 6;
  comm::run_ranks(kRanks, [&](comm::Communicator& comm) {
    const auto ranks = std::make_shared<CountedExpertParallel>(along(comm));
    const at::Tensor x_TE = drawn_fp64({kTokens, kDimOfRows}, 1).requires_grad_(true);
    const at::Tensor weights_TK = drawn_fp64({kTokens, 2}, 2);
    const at::Tensor t = at::arange(kTokens, at::kLong);
    // Results of experts may be their rows themselves.
    const auto rows = model::expert_rows(two_of(t, t + 2), kExpertsOfAll, ranks).front();
    const at::Tensor there = model::finish_dispatch(model::start_dispatch(x_TE, rows), rows);
    const at::Tensor out =
        model::finish_combine(model::start_combine(there, rows), weights_TK, rows);
    EXPECT_EQ(ranks->traffic, 2 * kTokens * 2 * kDimOfRows * (kRanks - 1) / kRanks);
    out.sum().backward();
    EXPECT_EQ(ranks->traffic, 4 * kTokens * 2 * kDimOfRows * (kRanks - 1) / kRanks);
    EXPECT_EQ(ranks->counted, 1);
    EXPECT_LE((out - x_TE * weights_TK.sum(1, true)).abs().max().item<double>(), 1e-15);
  });
}

/// Rows of a half are on their way while experts have those of the other; `beside` runs first.
TEST(ExpertParallel, RowsTravelBesideTheOtherHalf) {
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    const auto ranks = std::make_shared<CountedExpertParallel>(along(comm));
    const at::Tensor x_TE = drawn_fp64({6, kDimOfRows}, 1).requires_grad_(true);
    const at::Tensor t = at::arange(6, at::kLong);
    const model::ExpertWeights experts{drawn_fp64({3, 5, kDimOfRows}, 4).requires_grad_(true),
                                       drawn_fp64({3, kDimOfRows, 5}, 5).requires_grad_(true),
                                       drawn_fp64({3, 5, kDimOfRows}, 6).requires_grad_(true)};
    const at::Tensor out = model::routed_experts(
        x_TE, {two_of(t, t + 2), drawn_fp64({6, 2}, 2)}, experts,
        {.num_experts = kExpertsOfAll, .ranks = ranks, .native_bf16 = false, .beside = [&] {
           ranks->log += "beside ";
         }});
    EXPECT_EQ(ranks->log, "start start beside end start end start end end ");
    EXPECT_EQ(ranks->counted, 1) << "for both halves";
    ranks->log.clear();
    out.sum().backward();
    EXPECT_EQ(ranks->log, "start start end start end start end end ");
  });
}

}  // namespace
}  // namespace armillary::train
