// vocabulary_parallel_test.cpp: the cross entropy of words that are cut over ranks, and their
// embedding, against one rank: also words that no number of ranks divides, and ignored labels.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/model/cross_entropy.h"
#include "armillary/model/global_range.h"
#include "armillary/train/tensor_parallel_over_ranks.h"

namespace armillary::train {
namespace {

/// Tokens with logits far apart, some labels ignored.
struct WordInputs {
  at::Tensor x_NE, weight_VE, labels_N;

  WordInputs(std::int64_t tokens, std::int64_t words, at::ScalarType dtype) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    x_NE = at::randn({tokens, 24}, generator).to(dtype);
    weight_VE =
        at::randn({words, 24}, generator).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
    labels_N = at::randint(words, {tokens}, generator, at::kLong);
    for (const std::int64_t ignored : {0, 3, 4}) labels_N[ignored].fill_(-100);
  }

  model::EvenPart part(int index, int ranks) const {
    return model::even_part(weight_VE.size(0), index, ranks);
  }
};

struct WordResults {
  double loss = 0;
  at::Tensor dx_NE, dweight_VE;
};

/// The loss over 7 with the rows of one rank.
WordResults results_of_words(const WordInputs& in, const model::EvenPart& words,
                             const model::CrossEntropyOptions& options) {
  const at::Tensor x_NE = in.x_NE.clone().requires_grad_(true);
  const at::Tensor weight_VE =
      in.weight_VE.narrow(0, words.begin, words.size).clone().requires_grad_(true);
  const at::Tensor loss = model::cross_entropy(x_NE, weight_VE, in.labels_N, options);
  (loss / 7).backward();
  return {loss.item<double>(), x_NE.grad().to(at::kDouble), weight_VE.grad().to(at::kDouble)};
}

double relative_error(const at::Tensor& result, const at::Tensor& required) {
  return ((result - required).abs().max() / required.abs().max()).item<double>();
}

TEST(VocabularyParallel, LossAndGradientsAreThoseOfOneRank) {
  for (const auto& [dtype, bound] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5),
                                     std::pair(at::kBFloat16, 0.03)}) {
    for (const auto& [words, tokens] : {std::pair(257, 53), std::pair(5, 11)}) {
      const WordInputs in(tokens, words, dtype);
      const WordResults required = results_of_words(in, in.part(0, 1), {.chunk_tokens = 7});
      for (const int ranks : {2, 3, 4}) {
        std::vector<WordResults> of_rank(static_cast<std::size_t>(ranks));
        comm::run_ranks(ranks,
                        [&, tokens_of_chunk = ranks == 3 ? 100 : 6](comm::Communicator& comm) {
                          const model::EvenPart part = in.part(comm.rank(), ranks);
                          of_rank[static_cast<std::size_t>(comm.rank())] =
                              results_of_words(in, part,
                                               {.chunk_tokens = tokens_of_chunk,
                                                .ranks = tensor_parallel_over_ranks(comm),
                                                .first_word = part.begin});
                        });
        WordResults sum{.dx_NE = at::zeros({tokens, 24}, at::kDouble)};
        std::vector<at::Tensor> rows;
        for (const WordResults& results : of_rank) {
          sum.loss += results.loss;
          sum.dx_NE += results.dx_NE;
          rows.push_back(results.dweight_VE);
        }
        const std::string where =
            fmt::format("dtype {}, {} words on {} ranks", static_cast<int>(dtype), words, ranks);
        EXPECT_NEAR(sum.loss, required.loss, bound * required.loss) << where;
        EXPECT_LE(relative_error(sum.dx_NE, required.dx_NE), bound) << where;
        EXPECT_LE(relative_error(at::cat(rows, 0), required.dweight_VE), bound) << where;
      }
    }
  }
}

TEST(VocabularyParallel, EachRankCountsItsPartOfTheTokens) {
  const WordInputs in(10, 9, at::kDouble);
  std::vector<double> losses(4);
  comm::run_ranks(4, [&](comm::Communicator& comm) {
    const model::EvenPart part = in.part(comm.rank(), 4);
    losses[static_cast<std::size_t>(comm.rank())] =
        results_of_words(in, part,
                         {.ranks = tensor_parallel_over_ranks(comm), .first_word = part.begin})
            .loss;
  });
  for (int rank = 0; rank < 4; ++rank) {
    const model::EvenPart tokens = model::even_part(10, rank, 4);
    const double required =
        model::cross_entropy(in.x_NE.narrow(0, tokens.begin, tokens.size), in.weight_VE,
                             in.labels_N.narrow(0, tokens.begin, tokens.size), {})
            .item<double>();
    EXPECT_NEAR(losses[static_cast<std::size_t>(rank)], required, 1e-12 * required)
        << "rank " << rank;
  }
}

TEST(VocabularyParallel, EmbeddingsOfAllRanksAddUpToTheTable) {
  const WordInputs in(40, 11, at::kFloat);
  const at::Tensor tokens_BL = in.labels_N.masked_fill(in.labels_N.lt(0), 1).view({2, 20});
  for (const int ranks : {1, 2, 3, 11}) {
    at::Tensor sum_BLE = at::zeros({2, 20, 24});
    for (int rank = 0; rank < ranks; ++rank) {
      const model::EvenPart part = in.part(rank, ranks);
      sum_BLE += model::embedding_of_words(in.weight_VE.narrow(0, part.begin, part.size),
                                           part.begin, tokens_BL);
    }
    EXPECT_TRUE(at::equal(sum_BLE, at::embedding(in.weight_VE, tokens_BL))) << ranks << " ranks";
  }
}

// Batches of several entries: tokens of a rank are cut from each.
TEST(VocabularyParallel, TokensOfSeveralBatchEntriesAreGatheredAndScattered) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  const at::Tensor whole_BLE = at::randn({3, 7, 4}, generator).to(at::kDouble);
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    const model::TokenShards shards{tensor_parallel_over_ranks(comm), 7};
    const model::EvenPart tokens = model::even_part(7, comm.rank(), 3);
    const at::Tensor x_BKE =
        whole_BLE.narrow(1, tokens.begin, tokens.size).clone().requires_grad_(true);
    const at::Tensor all_BLE = model::gather_tokens(x_BKE, shards);
    EXPECT_TRUE(at::equal(all_BLE, whole_BLE)) << "rank " << comm.rank();
    const at::Tensor sum_BKE = model::reduce_scatter_tokens(all_BLE * (1 + comm.rank()), shards);
    EXPECT_TRUE(at::equal(sum_BKE, 6 * x_BKE)) << "rank " << comm.rank();
    // d(sum of 6 x w) / dx = 6 w.
    (sum_BKE * whole_BLE.narrow(1, tokens.begin, tokens.size)).sum().backward();
    EXPECT_LE(relative_error(x_BKE.grad(), 6 * x_BKE.detach()), 1e-14) << "rank " << comm.rank();
  });
}

}  // namespace
}  // namespace armillary::train
