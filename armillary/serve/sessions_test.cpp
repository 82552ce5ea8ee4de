// sessions_test.cpp: logits over ranks are those of whole sequences on one rank, for every layout,
// chunk and number of ranks, with forks, aborts and relayouts in between. Claims I1 to I7, I10 and
// I13 of the project.
#include "armillary/serve/sessions.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/comm/mesh.h"
#include "armillary/comm/watched_communicator.h"
#include "armillary/core/error.h"
#include "armillary/core/testing/expect_error.h"
#include "armillary/serve/testing/tiny_model.h"
#include "armillary/train/tensor_parallel_over_ranks.h"

namespace armillary::serve {
namespace {

using plan::relayout::CacheLayout;
using plan::relayout::one_extent;

constexpr std::int64_t kPage = 4;

const TinyModel& tiny() {
  static const TinyModel model;
  return model;
}

SessionsOptions options_of(const std::string& layout, std::int64_t chunk) {
  return {
      .layout = plan::parse_layout(layout), .chunk = chunk, .cache = {.page = kPage, .pages = 64}};
}

/// Runs `body` on every rank with sessions of its own.
void on_ranks(int world, const SessionsOptions& options,
              const std::function<void(comm::Communicator&, Sessions&)>& body) {
  comm::run_ranks(world, [&](comm::Communicator& comm) {
    const std::unique_ptr<model::Model> model = tiny().make();
    Sessions sessions(comm, *model, tiny().use(), options);
    body(comm, sessions);
  });
}

at::Tensor decode_one(Sessions& sessions, SessionId session, std::int64_t token) {
  const NextToken next{session, token};
  return sessions.decode(std::span(&next, 1))[0];
}

at::Tensor prefill_one(Sessions& sessions, SessionId session, const Tokens& tokens) {
  const Prompt prompt{session, tokens};
  return sessions.prefill(std::span(&prompt, 1))[0];
}

class SessionsOnRanks : public testing::TestWithParam<int> {};

TEST_P(SessionsOnRanks, ReadAndContinueAsOneRank) {
  const Tokens prompt = TinyModel::text(37);
  const Tokens more = TinyModel::text(5, 3);
  const at::Tensor expected = tiny().logits(joined(prompt, more));
  for (const std::string layout : {"contiguous", "zigzag", "striped:1", "striped:4"}) {
    for (const std::int64_t chunk : {0, 1, 7, 16, 100}) {
      const std::string where = fmt::format("{} ranks, {}, chunk {}", GetParam(), layout, chunk);
      on_ranks(GetParam(), options_of(layout, chunk), [&](comm::Communicator&, Sessions& sessions) {
        const SessionId session = sessions.open();
        expect_close(prefill_one(sessions, session, prompt), expected[36], where);
        EXPECT_EQ(sessions.tokens(session), 37);
        for (std::int64_t i = 0; i < 5; ++i) {
          const at::Tensor logits =
              decode_one(sessions, session, more[static_cast<std::size_t>(i)]);
          expect_close(logits, expected[37 + i], fmt::format("{}, token {}", where, i));
        }
        EXPECT_EQ(sessions.tokens(session), 42);
      });
    }
  }
}

TEST_P(SessionsOnRanks, ReadSeveralPromptsAtOnce) {
  for (const std::int64_t chunk : {0, 5, 16}) {
    on_ranks(GetParam(), options_of("zigzag", chunk), [&](comm::Communicator&, Sessions& sessions) {
      // Prompts of 1, 19 and 33 tokens, behind 0, 3 and 22 that were read before.
      std::vector<Prompt> prompts;
      std::vector<Tokens> whole;
      for (const auto& [before, length] :
           std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {3, 19}, {22, 33}}) {
        const SessionId session = sessions.open();
        const Tokens first = TinyModel::text(before, length);
        if (before > 0) prefill_one(sessions, session, first);
        prompts.push_back({session, TinyModel::text(length, before)});
        whole.push_back(joined(first, prompts.back().tokens));
      }
      const at::Tensor logits = sessions.prefill(prompts);
      for (std::int64_t i = 0; i < 3; ++i) {
        expect_close(logits[i], tiny().last_logits(whole[static_cast<std::size_t>(i)]),
                     fmt::format("{} ranks, chunk {}, prompt {}", GetParam(), chunk, i));
      }
      // All of them go on in one step.
      std::vector<NextToken> next;
      for (std::size_t i = 0; i < 3; ++i) {
        next.push_back({prompts[i].session, static_cast<std::int64_t>(i)});
        whole[i].push_back(static_cast<std::int64_t>(i));
      }
      const at::Tensor decoded = sessions.decode(next);
      for (std::int64_t i = 0; i < 3; ++i) {
        expect_close(decoded[i], tiny().last_logits(whole[static_cast<std::size_t>(i)]),
                     fmt::format("{} ranks, chunk {}, next of {}", GetParam(), chunk, i));
      }
    });
  }
}

/// Fills everything with NaN that the session does not have.
void poison_all_but(const Sessions& sessions, SessionId session, int rank) {
  const KvCache& cache = sessions.cache();
  for (int layer = 0; layer < cache.layers(); ++layer) {
    const std::int64_t all = 64 * kPage;
    std::int64_t begin = 0;
    std::vector<plan::Interval> rows = cache.rows(session, {0, cache.tokens(session, rank)});
    std::ranges::sort(rows, {}, &plan::Interval::begin);
    rows.push_back({all, all});
    for (const plan::Interval& range : rows) {
      const plan::Interval free{begin, range.begin};
      cache.k(layer, free).fill_(std::numeric_limits<float>::quiet_NaN());
      cache.v(layer, free).fill_(std::numeric_limits<float>::quiet_NaN());
      begin = range.end;
    }
  }
}

TEST_P(SessionsOnRanks, ForksShareWhatWasRead) {
  on_ranks(
      GetParam(), options_of("contiguous", 0), [&](comm::Communicator& comm, Sessions& sessions) {
        const Tokens prompt = TinyModel::text(21);
        const SessionId parent = sessions.open();
        prefill_one(sessions, parent, prompt);
        const std::int64_t free = sessions.cache().free_pages(comm.rank());
        const SessionId child = sessions.fork(parent);
        EXPECT_EQ(sessions.cache().free_pages(comm.rank()), free);
        // Both go on differently, in one step and apart.
        const std::vector<NextToken> next{{parent, 3}, {child, 5}};
        const at::Tensor logits = sessions.decode(next);
        expect_close(logits[0], tiny().last_logits(joined(prompt, {3})), "parent");
        expect_close(logits[1], tiny().last_logits(joined(prompt, {5})), "child");
        sessions.release(parent);
        poison_all_but(sessions, child, comm.rank());
        expect_close(decode_one(sessions, child, 8), tiny().last_logits(joined(prompt, {5, 8})),
                     "child alone");
        sessions.release(child);
        EXPECT_EQ(sessions.cache().free_pages(comm.rank()), 64);
        EXPECT_THAT(error_of([&] { sessions.tokens(child); }), testing::HasSubstr("is not open"));
      });
}

TEST_P(SessionsOnRanks, StopInTheMiddleOfAPrompt) {
  on_ranks(GetParam(), options_of("zigzag", 16), [&](comm::Communicator& comm, Sessions& sessions) {
    const Tokens text = TinyModel::text(40);
    const SessionId session = sessions.open();
    const Prompt prompt{session, text};
    std::vector<std::int64_t> steps;
    const at::Tensor none =
        sessions.prefill(std::span(&prompt, 1), [&](std::int64_t tokens, std::int64_t of) {
          EXPECT_EQ(of, 40);
          steps.push_back(tokens);
          return tokens < 32;
        });
    EXPECT_FALSE(none.defined());
    EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 16, 32}));
    EXPECT_EQ(sessions.tokens(session), 32);
    // Another session uses what was read, after the first is gone.
    const SessionId other = sessions.fork(session);
    sessions.release(session);
    poison_all_but(sessions, other, comm.rank());
    expect_close(prefill_one(sessions, other, Tokens(text.begin() + 32, text.end())),
                 tiny().last_logits(text), "the rest");
  });
}

TEST_P(SessionsOnRanks, MoveBetweenLayouts) {
  const int world = GetParam();
  const Tokens prompt = TinyModel::text(29);
  const Tokens rest = TinyModel::text(23, 2);
  for (int ranks = 1; ranks <= world; ++ranks) {
    for (const std::string layout : {"contiguous", "zigzag", "striped:1", "striped:4"}) {
      on_ranks(world, options_of("zigzag", 0), [&](comm::Communicator&, Sessions& sessions) {
        const std::string where = fmt::format("{} to {} ranks, {}", world, ranks, layout);
        const SessionId session = sessions.open();
        prefill_one(sessions, session, prompt);
        CacheLayout to = one_extent(29, plan::parse_layout(layout), ranks);
        to.first = world - ranks;
        const std::int64_t bytes = sessions.relayout(session, to);
        if (ranks == 1 && world > 1) {
          EXPECT_GT(bytes, 0) << where;
        }
        EXPECT_EQ(sessions.relayout(session, to), 0) << where;
        for (int rank = 0; rank < to.first; ++rank) {
          EXPECT_EQ(sessions.cache().tokens(session, rank), 0) << where;
        }
        expect_close(decode_one(sessions, session, 7), tiny().last_logits(joined(prompt, {7})),
                     where);
        // A long prompt is read by all ranks again.
        expect_close(prefill_one(sessions, session, rest),
                     tiny().last_logits(joined(joined(prompt, {7}), rest)), where + ", the rest");
      });
    }
  }
}

/// Other sessions in a step change logits by rounding at most.
TEST_P(SessionsOnRanks, DecodeAloneAndInABatch) {
  on_ranks(GetParam(), options_of("zigzag", 0), [&](comm::Communicator&, Sessions& sessions) {
    const SessionId session = sessions.open();
    prefill_one(sessions, session, TinyModel::text(18));
    const SessionId again = sessions.fork(session);
    const SessionId other = sessions.open();
    prefill_one(sessions, other, TinyModel::text(9, 4));
    const at::Tensor alone = decode_one(sessions, session, 11);
    const std::vector<NextToken> next{{other, 2}, {again, 11}};
    expect_close(sessions.decode(next)[1], alone, "in a batch");
  });
}

/// Queries that are gathered give the logits of those that are not.
TEST_P(SessionsOnRanks, GatherQueries) {
  SessionsOptions options = options_of("zigzag", 7);
  options.gather_queries = true;
  on_ranks(GetParam(), options, [&](comm::Communicator&, Sessions& sessions) {
    for (const std::int64_t count : {1, 2, 5}) {
      std::vector<Prompt> prompts;
      std::vector<NextToken> next;
      for (std::int64_t i = 0; i < count; ++i) {
        prompts.push_back({sessions.open(), TinyModel::text(3 + 4 * i, i)});
        next.push_back({prompts.back().session, i});
      }
      const at::Tensor read = sessions.prefill(prompts);
      const at::Tensor decoded = sessions.decode(next);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::string where = fmt::format("{} ranks, session {} of {}", GetParam(), i, count);
        const Tokens& prompt = prompts[static_cast<std::size_t>(i)].tokens;
        expect_close(read[i], tiny().last_logits(prompt), where);
        expect_close(decoded[i], tiny().last_logits(joined(prompt, {i})), where + ", next");
        sessions.release(prompts[static_cast<std::size_t>(i)].session);
      }
    }
  });
}

/// A prompt can be forked between two of its passes; the copy does not see what comes behind.
TEST_P(SessionsOnRanks, ForkWhileAPromptIsRead) {
  on_ranks(GetParam(), options_of("zigzag", 18), [&](comm::Communicator& comm, Sessions& sessions) {
    const Tokens text = TinyModel::text(50);
    const SessionId session = sessions.open();
    std::vector<SessionId> copies;
    const Prompt prompt{session, text};
    const at::Tensor logits =
        sessions.prefill(std::span(&prompt, 1), [&](std::int64_t tokens, std::int64_t) {
          if (tokens == 18 || tokens == 36) copies.push_back(sessions.fork(session));
          return true;
        });
    expect_close(logits[0], tiny().last_logits(text), "the prompt");
    sessions.release(session);
    ASSERT_EQ(copies.size(), 2U);
    for (const SessionId copy : copies) {
      const Tokens rest = TinyModel::text(21, copy);
      const Tokens read(text.begin(), text.begin() + sessions.tokens(copy));
      expect_close(prefill_one(sessions, copy, rest), tiny().last_logits(joined(read, rest)),
                   fmt::format("behind {}", read.size()));
      expect_close(decode_one(sessions, copy, 3),
                   tiny().last_logits(joined(joined(read, rest), {3})),
                   fmt::format("behind {}, next", read.size()));
    }
    for (const SessionId copy : copies) sessions.release(copy);
    EXPECT_EQ(sessions.cache().free_pages(comm.rank()), 64);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SessionsOnRanks, testing::Values(1, 2, 3, 4));

/// The largest error of logits in bf16 against those in fp32, in a prefill of two chunks and in the
/// decode of a token, on so many ranks.
double error_in_bf16(int world) {
  const Tokens prompt = TinyModel::text(40);
  std::atomic<double> error = 0;
  comm::run_ranks(world, [&](comm::Communicator& comm) {
    const std::unique_ptr<model::Model> model = tiny().make(at::kBFloat16);
    Sessions sessions(comm, *model, tiny().use(), options_of("zigzag", 20));
    const SessionId session = sessions.open();
    const at::Tensor read = prefill_one(sessions, session, prompt);
    const at::Tensor decoded = decode_one(sessions, session, 7);
    if (comm.rank() > 0) return;
    const auto distance = [](const at::Tensor& logits, const at::Tensor& expected) {
      return (logits.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item().toDouble();
    };
    error = std::max(distance(read, tiny().last_logits(prompt)),
                     distance(decoded, tiny().last_logits(joined(prompt, {7}))));
  });
  return error;
}

/// The bound of docs/numerics.md: 2.5 times the error of one rank.
TEST(Sessions, InBf16AreAsGoodAsOneRank) {
  const double one = error_in_bf16(1);
  EXPECT_GT(one, 0);
  for (const int world : {2, 4}) EXPECT_LE(error_in_bf16(world), 2.5 * one) << world << " ranks";
}

/// Bytes of a decode step are those of the partial results, however long the session is; there is
/// one exchange a layer.
TEST(Sessions, DecodeBytesDoNotGrow) {
  constexpr int kWorld = 3;
  for (const std::int64_t length : {8, 40}) {
    comm::run_ranks(kWorld, [&](comm::Communicator& inner) {
      std::int64_t bytes = 0;
      int messages = 0;
      comm::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
        if (message.direction != comm::Direction::Send) return;
        bytes += comm::total_bytes(message.parts);
        ++messages;
      });
      const std::unique_ptr<model::Model> model = tiny().make();
      Sessions sessions(comm, *model, tiny().use(), options_of("zigzag", 0));
      const SessionId session = sessions.open();
      prefill_one(sessions, session, TinyModel::text(length));
      bytes = 0;
      messages = 0;
      decode_one(sessions, session, 1);
      EXPECT_EQ(bytes, TinyModel::kLayers * (kWorld - 1) * TinyModel::kHeads *
                           (TinyModel::kHeadDim + 1) * 4)
          << length;
      EXPECT_EQ(messages, TinyModel::kLayers * (kWorld - 1)) << length;
    });
  }
}

/// With gathered queries, Q, K and V of the new tokens and the partial results travel, and at the
/// end the features.
TEST(Sessions, DecodeBytesOfGatheredQueries) {
  constexpr std::int64_t kWorld = 3;
  constexpr std::int64_t kTokens = 2;
  std::atomic<std::int64_t> bytes = 0;
  comm::run_ranks(kWorld, [&](comm::Communicator& inner) {
    bool counts = false;
    comm::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
      if (!counts || message.direction != comm::Direction::Send) return;
      bytes += comm::total_bytes(message.parts);
    });
    const std::unique_ptr<model::Model> model = tiny().make();
    SessionsOptions options = options_of("zigzag", 0);
    options.gather_queries = true;
    Sessions sessions(comm, *model, tiny().use(), options);
    const std::vector<Prompt> prompts{{sessions.open(), TinyModel::text(25)},
                                      {sessions.open(), TinyModel::text(4)}};
    sessions.prefill(prompts);
    counts = true;
    const std::vector<NextToken> next{{prompts[0].session, 1}, {prompts[1].session, 2}};
    sessions.decode(next);
  });
  constexpr std::int64_t kDim = TinyModel::kHeadDim;
  const std::int64_t qkv = (TinyModel::kHeads + 2 * TinyModel::kKvHeads) * kDim;
  const std::int64_t partial = TinyModel::kHeads * (kDim + 1);
  const std::int64_t features = TinyModel::kHeads * kDim;
  EXPECT_EQ(bytes.load(),
            (kWorld - 1) * kTokens * 4 * (TinyModel::kLayers * (qkv + partial) + features));
}

/// Ranks along tp have heads and words of the same tokens; above 2, copies of KV heads.
TEST(Sessions, ShareMatricesAlongTp) {
  const Tokens prompt = TinyModel::text(37);
  for (const MeshShape& shape :
       std::vector<MeshShape>{{.tp = 2}, {.tp = 4}, {.cp = 2, .tp = 2}, {.cp = 3, .tp = 4}}) {
    for (const bool gathers : {false, true}) {
      comm::run_ranks(shape.ranks(), [&](comm::Communicator& world) {
        const std::string where = fmt::format("cp {} x tp {}", shape.cp, shape.tp);
        const comm::Mesh mesh(world, shape);
        const ModelWeights weights = tiny().part(mesh.index(MeshAxis::Tp), shape.tp);
        const std::unique_ptr<model::Model> model = tiny().make();
        SessionsOptions options = options_of("zigzag", 16);
        options.gather_queries = gathers;
        options.tensor_parallel = train::tensor_parallel_over_ranks(mesh.along(MeshAxis::Tp));
        Sessions sessions(
            mesh.along(MeshAxis::Cp), *model, [&](int unit) { return weights.of_unit(unit); },
            options);
        const SessionId session = sessions.open();
        expect_close(prefill_one(sessions, session, prompt), tiny().last_logits(prompt), where);
        const SessionId other = sessions.fork(session);
        const std::vector<NextToken> next{{session, 3}, {other, 5}};
        const at::Tensor decoded = sessions.decode(next);
        expect_close(decoded[0], tiny().last_logits(joined(prompt, {3})), where + ", next");
        expect_close(decoded[1], tiny().last_logits(joined(prompt, {5})), where + ", of the fork");
      });
    }
  }
}

/// Experts are whole on every rank; ranks along tp route tokens of their own, in decode perhaps
/// none.
TEST(Sessions, RouteTokensOnEveryRank) {
  const TinyModel moe("moe");
  const Tokens prompt = TinyModel::text(37);
  for (const MeshShape& shape :
       std::vector<MeshShape>{{}, {.cp = 3}, {.tp = 2}, {.cp = 2, .tp = 2}}) {
    comm::run_ranks(shape.ranks(), [&](comm::Communicator& world) {
      const std::string where = fmt::format("cp {} x tp {}", shape.cp, shape.tp);
      const comm::Mesh mesh(world, shape);
      const ModelWeights weights = moe.part(mesh.index(MeshAxis::Tp), shape.tp);
      const std::unique_ptr<model::Model> model = moe.make();
      SessionsOptions options = options_of("zigzag", 16);
      if (shape.tp > 1) {
        options.tensor_parallel = train::tensor_parallel_over_ranks(mesh.along(MeshAxis::Tp));
      }
      Sessions sessions(
          mesh.along(MeshAxis::Cp), *model, [&](int unit) { return weights.of_unit(unit); },
          options);
      const SessionId session = sessions.open();
      expect_close(prefill_one(sessions, session, prompt), moe.last_logits(prompt), where);
      expect_close(decode_one(sessions, session, 3), moe.last_logits(joined(prompt, {3})),
                   where + ", next");
    });
  }
}

/// New tokens of decode go to ranks page by page in turn, by their position in the session.
TEST(Sessions, DealNewTokensByPage) {
  on_ranks(3, options_of("contiguous", 0), [](comm::Communicator&, Sessions& sessions) {
    const SessionId session = sessions.open();
    for (std::int64_t i = 0; i < 14; ++i) decode_one(sessions, session, i);
    EXPECT_EQ(sessions.cache().tokens(session, 0), 6);  // 0-3, 12, 13
    EXPECT_EQ(sessions.cache().tokens(session, 1), 4);
    EXPECT_EQ(sessions.cache().tokens(session, 2), 4);
    EXPECT_EQ(sessions.cache().layout(session).extents.size(), 1U);
  });
}

TEST(Sessions, RefuseWithoutRoomAndGoOn) {
  SessionsOptions options = options_of("contiguous", 0);
  options.cache.pages = 4;
  on_ranks(2, options, [](comm::Communicator&, Sessions& sessions) {
    const SessionId first = sessions.open();
    const SessionId second = sessions.open();
    prefill_one(sessions, first, TinyModel::text(20));
    EXPECT_THAT(
        error_of([&] { prefill_one(sessions, second, TinyModel::text(16)); }),
        testing::HasSubstr("2 pages of 4 tokens required on rank 0, where 1 of 4 are free"));
    EXPECT_EQ(sessions.tokens(second), 0);
    EXPECT_EQ(sessions.tokens(first), 20);
    sessions.release(first);
    expect_close(prefill_one(sessions, second, TinyModel::text(16)),
                 tiny().last_logits(TinyModel::text(16)), "after a release");
  });
}

TEST(Sessions, RefuseWhatCannotBe) {
  on_ranks(2, options_of("contiguous", 0), [](comm::Communicator& comm, Sessions& sessions) {
    const SessionId session = sessions.open();
    const auto expect = [](const std::function<void()>& call, const std::string& text) {
      EXPECT_THAT(error_of(call), testing::HasSubstr(text));
    };
    expect([&] { decode_one(sessions, session, TinyModel::kWords); },
           "token 61 given; one from 0 to 60");
    expect([&] { decode_one(sessions, 77, 1); }, "session 77 given, which is not open");
    expect([&] { prefill_one(sessions, session, {}); }, "a prompt without tokens");
    const std::vector<NextToken> twice{{session, 1}, {session, 2}};
    expect([&] { sessions.decode(twice); }, "given twice");
    CacheLayout layout = one_extent(0, {}, 2);
    layout.head_groups = 2;
    expect([&] { sessions.relayout(session, layout); }, "2 head groups and 1 stages given");
    expect([&] { sessions.relayout(session, one_extent(3, {}, 2)); }, "equally many are required");
    const std::unique_ptr<model::Model> model = tiny().make();
    const auto make = [&](const SessionsOptions& options) {
      const Sessions other(comm, *model, tiny().use(), options);
    };
    expect([&] { make(options_of("balanced", 0)); }, "layout balanced given");
    expect([&] { make(options_of("zigzag", -1)); }, "chunk -1 given");
    SessionsOptions options = options_of("zigzag", 0);
    options.strategy = "rink";
    expect([&] { make(options); }, "unknown name 'rink'");
    EXPECT_EQ(sessions.decode({}).size(0), 0);
  });
}

/// A rank that fails ends all of them, in a prefill and in a decode, with its reason; the pass
/// gives its pages back.
TEST(Sessions, EndWithARankThatFails) {
  for (const bool decodes : {false, true}) {
    const auto body = [&](comm::Communicator& comm, Sessions& sessions) {
      const SessionId session = sessions.open();
      if (decodes) prefill_one(sessions, session, TinyModel::text(8));
      if (comm.rank() == 1) throw Error("rank 1 is lost");
      const auto free_pages = [&] {
        std::int64_t pages = 0;
        for (int rank = 0; rank < comm.world(); ++rank) pages += sessions.cache().free_pages(rank);
        return pages;
      };
      const std::int64_t pages = free_pages();
      const std::int64_t tokens = sessions.tokens(session);
      try {
        if (decodes) {
          decode_one(sessions, session, 1);
        } else {
          prefill_one(sessions, session, TinyModel::text(40));
        }
      } catch (const CommError&) {
        EXPECT_EQ(free_pages(), pages);
        EXPECT_EQ(sessions.tokens(session), tokens);
        throw;
      }
    };
    std::string text;
    try {
      on_ranks(3, options_of("zigzag", 16), body);
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_THAT(text, testing::HasSubstr("rank 1 is lost"));
  }
}

}  // namespace
}  // namespace armillary::serve
