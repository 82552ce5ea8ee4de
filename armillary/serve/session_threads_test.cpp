// session_threads_test.cpp: a caller that is no rank gets the logits of one rank; what all ranks
// refuse leaves them as they were, and any other error ends them with its reason.
#include "armillary/serve/session_threads.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/process_stat.h"
#include "armillary/core/testing/expect_error.h"
#include "armillary/serve/testing/tiny_model.h"

namespace armillary::serve {
namespace {

const TinyModel& model_of_threads() {
  static const TinyModel model;
  return model;
}

SessionThreadsOptions three_ranks() {
  return {.ranks = 3, .sessions = {.chunk = 16, .cache = {.page = 4, .pages = 32}}};
}

/// The logits on rank 0 behind a prompt.
at::Tensor logits_behind(SessionThreads& threads, const Tokens& tokens) {
  at::Tensor logits_V;
  threads.run([&](ModelSessions& sessions, int rank) {
    const SessionId session = sessions.sessions().open();
    const Prompt prompt{session, tokens};
    const at::Tensor read_BV = sessions.prefill(std::span(&prompt, 1));
    sessions.sessions().release(session);
    if (rank == 0) logits_V = read_BV[0];
  });
  return logits_V;
}

TEST(SessionThreads, GiveTheLogitsOfOneRank) {
  SessionThreads threads(model_of_threads().open(), three_ranks());
  for (const std::int64_t length : {37, 1, 20}) {
    const Tokens text = TinyModel::text(length, length);
    expect_close(logits_behind(threads, text), model_of_threads().last_logits(text), "read");
  }
}

/// Two ranks have a head of keys and values each; four have copies.
TEST(SessionThreads, ShareMatricesAlongTp) {
  for (const int tp : {2, 4}) {
    SessionThreadsOptions options = three_ranks();
    options.ranks = 4;
    SessionThreads threads(model_of_threads().open(tp), options);
    for (const std::int64_t length : {37, 1}) {
      const Tokens text = TinyModel::text(length, length);
      expect_close(logits_behind(threads, text), model_of_threads().last_logits(text),
                   "tp " + std::to_string(tp));
    }
  }
}

TEST(SessionThreads, RefuseAndGoOn) {
  SessionThreads threads(model_of_threads().open(), three_ranks());
  const auto decode = [&] {
    threads.run([](ModelSessions& sessions, int) {
      const NextToken next{77, 1};
      sessions.decode(std::span(&next, 1));
    });
  };
  EXPECT_THAT(error_of(decode), testing::HasSubstr("session 77 given, which is not open"));
  const Tokens text = TinyModel::text(20);
  expect_close(logits_behind(threads, text), model_of_threads().last_logits(text), "afterwards");
}

TEST(SessionThreads, EndWithARankThatFails) {
  SessionThreads threads(model_of_threads().open(), three_ranks());
  const auto error_of_run = [&](const SessionThreads::Action& action) -> std::string {
    try {
      threads.run(action);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of_run([](ModelSessions&, int rank) {
              if (rank == 1) throw Error("rank 1 is lost");
            }),
            "rank 1 is lost");
  EXPECT_EQ(error_of_run([](ModelSessions&, int) {}),
            "sessions: the ranks have ended: rank 1 is lost; new sessions are required");
}

/// A strategy that three ranks cannot have is found in the first pass that is spread, on all ranks.
TEST(SessionThreads, EndWithARefusalInAPass) {
  SessionThreadsOptions options = three_ranks();
  options.sessions.strategy = "double_ring:window=2";
  SessionThreads threads(model_of_threads().open(), options);
  const std::string refusal = error_of([&] { logits_behind(threads, TinyModel::text(20)); });
  EXPECT_THAT(refusal, testing::HasSubstr("window=2 with world 3"));
  std::string later = "no error";
  try {
    threads.run([](ModelSessions&, int) {});
  } catch (const CommError& error) {
    later = error.what();
  }
  EXPECT_EQ(later, "sessions: the ranks have ended: " + refusal + "; new sessions are required");
}

TEST(SessionThreads, RefuseOptionsThatCannotBe) {
  const auto error_with = [](const SessionThreadsOptions& options) {
    return error_of([&] { const SessionThreads threads(model_of_threads().open(), options); });
  };
  SessionThreadsOptions options = three_ranks();
  options.ranks = 0;
  EXPECT_EQ(error_with(options), "sessions: 0 ranks given; 1 to 1024 are required");
  options.ranks = 1'000'000;
  EXPECT_EQ(error_with(options), "sessions: 1000000 ranks given; 1 to 1024 are required");
  options = three_ranks();
  options.sessions.layout = plan::parse_layout("balanced");
  EXPECT_THAT(error_with(options), testing::HasSubstr("layout balanced given"));
  EXPECT_EQ(
      error_of([&] { const SessionThreads threads(model_of_threads().open(2), three_ranks()); }),
      "sessions: tensor_parallel 2 given for 3 ranks; a divisor is required; nearest: 1");
}

/// Keys of 2 layers, 2 heads of 8 and 4 bytes: a token has 256 bytes with its values, and half of
/// them on each of two ranks along tp.
TEST(SessionThreads, RefuseACacheWithoutMemory) {
  const model::ModelOptions model = model_of_threads().open()[0]->options;
  const auto error_with = [&](const KvCacheOptions& cache, const WeightOptions& part, int ranks) {
    return error_of([&] { check_cache_memory(model, part, cache, ranks); });
  };
  const std::int64_t tokens = physical_memory_bytes() / 256;
  EXPECT_EQ(error_with({.page = 4, .pages = tokens / 4}, {}, 1), "no error");
  EXPECT_THAT(error_with({.page = 4, .pages = tokens / 4 + 1}, {}, 1),
              testing::HasSubstr(fmt::format("; at most {} are required", tokens / 4)));
  EXPECT_THAT(error_with({.page = 4, .pages = tokens / 4 + 1}, {}, 1),
              testing::HasSubstr(fmt::format(" pages of 4 tokens given, {0:.1f} GiB on 1 rank of "
                                             "this machine, which has {0:.1f}; ",
                                             static_cast<double>(tokens) / (1 << 22))));
  const WeightOptions half{.tp_ranks = 2, .dtype = at::kBFloat16};
  EXPECT_THAT(error_with({.page = 1, .pages = tokens * 4}, half, 3),
              testing::HasSubstr(
                  fmt::format("at most {} are required", physical_memory_bytes() / (64 * 3))));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(error_with({.page = kMost, .pages = kMost}, {}, 1),
              testing::HasSubstr(fmt::format("a page of at most {} tokens is required", tokens)));
  EXPECT_EQ(error_with({.page = kMost, .pages = -1}, {}, 1), "no error");
}

}  // namespace
}  // namespace armillary::serve
