// generate_test.cpp: continuations over ranks are those of one rank that reads everything anew for
// each token.
#include "armillary/serve/generate.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/serve/context_side.h"
#include "armillary/serve/testing/tiny_model.h"

namespace armillary::serve {
namespace {

std::vector<Tokens> generate_on(const TinyModel& tiny, int world,
                                const std::vector<Tokens>& prompts, const GenerateOptions& options,
                                std::int64_t chunk) {
  std::vector<Tokens> tokens;
  comm::run_ranks(world, [&](comm::Communicator& comm) {
    const std::unique_ptr<model::Model> model = tiny.make();
    Sessions sessions(comm, *model, tiny.use(),
                      {.chunk = chunk, .cache = {.page = 4, .pages = 64}});
    const Continuations result = generate(comm, sessions, prompts, options);
    EXPECT_EQ(sessions.cache().free_pages(comm.rank()), 64);
    if (comm.rank() == 0) tokens = result.tokens;
  });
  return tokens;
}

/// Tokens drawn one by one, each behind a whole sequence on one rank.
Tokens continue_on_one_rank(const TinyModel& tiny, Tokens prompt, const GenerateOptions& options,
                            std::uint64_t sequence) {
  Tokens tokens;
  while (static_cast<std::int64_t>(tokens.size()) < options.tokens) {
    const std::int64_t token =
        next_token(tiny.last_logits(prompt), options.sampling,
                   {.sequence = sequence, .position = static_cast<std::int64_t>(prompt.size())});
    if (std::ranges::count(options.ends, token) > 0) break;
    tokens.push_back(token);
    prompt.push_back(token);
  }
  return tokens;
}

TEST(Generate, GivesTheTokensOfOneRank) {
  const TinyModel tiny;
  const std::vector<Tokens> prompts{TinyModel::text(33), TinyModel::text(5, 1)};
  for (const Sampling& sampling :
       {Sampling{}, Sampling{.temperature = 0.9, .top_k = 20, .top_p = 0.9, .seed = 3}}) {
    const GenerateOptions options{.tokens = 12, .sampling = sampling};
    for (const int world : {1, 2, 3, 4}) {
      for (const std::int64_t chunk : {0, 6}) {
        const std::vector<Tokens> tokens = generate_on(tiny, world, prompts, options, chunk);
        for (std::size_t i = 0; i < prompts.size(); ++i) {
          EXPECT_EQ(tokens[i], continue_on_one_rank(tiny, prompts[i], options, i))
              << world << " ranks, chunk " << chunk << ", prompt " << i;
        }
      }
    }
  }
}

TEST(Generate, EndsBehindATokenAndWhenItIsStopped) {
  const TinyModel tiny;
  const std::vector<Tokens> prompts{TinyModel::text(20)};
  const Tokens whole = generate_on(tiny, 2, prompts, {.tokens = 8}, 0)[0];
  ASSERT_EQ(whole.size(), 8U);
  const std::vector<Tokens> ended =
      generate_on(tiny, 2, prompts, {.tokens = 8, .ends = {whole[3]}}, 0);
  EXPECT_LE(ended[0].size(), 3U);
  EXPECT_EQ(ended[0], Tokens(whole.begin(), whole.begin() + static_cast<int>(ended[0].size())));
  // Rank 0 alone is asked between two tokens.
  std::atomic<int> questions = 0;
  const GenerateOptions later{.tokens = 8, .stops = [&] { return ++questions > 3; }};
  EXPECT_EQ(generate_on(tiny, 2, prompts, later, 0)[0], Tokens(whole.begin(), whole.begin() + 3));
  const GenerateOptions stops{.progress = [](std::int64_t, std::int64_t) { return false; }};
  EXPECT_TRUE(generate_on(tiny, 2, prompts, stops, 0)[0].empty());
}

/// The rule of arXiv:2411.01783 flips at 2 G / H of all tokens, with Q alone; ours counts results.
TEST(ContextSide, FlipsWithTheBytes) {
  const auto side = [](std::int64_t new_tokens) {
    return cheaper_side({.new_tokens = new_tokens,
                         .cached_tokens = 128'000,
                         .heads = 128,
                         .kv_heads = 8,
                         .head_dim = 128,
                         .value_dim = 128,
                         .element_bytes = 2});
  };
  // 128,000 * 8 * 512 bytes against n * 128 * (256 + 516).
  EXPECT_EQ(bytes_of_side({.cached_tokens = 128'000,
                           .kv_heads = 8,
                           .head_dim = 128,
                           .value_dim = 128,
                           .element_bytes = 2},
                          ContextSide::KeysAndValues),
            524'288'000);
  EXPECT_EQ(side(5'305), ContextSide::Queries);
  EXPECT_EQ(side(5'306), ContextSide::KeysAndValues);
}

}  // namespace
}  // namespace armillary::serve
