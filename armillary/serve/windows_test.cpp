// windows_test.cpp: sessions of models whose layers have windows: logits over ranks are those of
// whole sequences on one rank, and what is behind all windows is neither read nor sent, and its
// pages are free.
#include "armillary/serve/windows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/comm/watched_communicator.h"
#include "armillary/core/testing/expect_error.h"
#include "armillary/serve/sessions.h"
#include "armillary/serve/testing/tiny_model.h"

namespace armillary::serve {
namespace {

using WindowList = std::vector<std::int64_t>;

const TinyModel& windowed() {
  static const TinyModel model;
  return model;
}

SessionsOptions options_with(const WindowList& windows, std::int64_t chunk) {
  return {.chunk = chunk, .cache = {.page = 4, .pages = 64}, .windows = windows};
}

/// Runs `body` on every rank with sessions of its own.
void with_sessions(int world, const SessionsOptions& options,
                   const std::function<void(comm::Communicator&, Sessions&)>& body) {
  comm::run_ranks(world, [&](comm::Communicator& comm) {
    const std::unique_ptr<model::Model> model = windowed().make();
    Sessions sessions(comm, *model, windowed().use(), options);
    body(comm, sessions);
  });
}

at::Tensor read_one(Sessions& sessions, SessionId session, const Tokens& tokens) {
  const Prompt prompt{session, tokens};
  return sessions.prefill(std::span(&prompt, 1))[0];
}

at::Tensor next_one(Sessions& sessions, SessionId session, std::int64_t token) {
  const NextToken next{session, token};
  return sessions.decode(std::span(&next, 1))[0];
}

TEST(Window, SessionsReadAndContinueAsOneRank) {
  const Tokens prompt = TinyModel::text(37);
  const Tokens more = TinyModel::text(5, 3);
  for (const WindowList& windows : std::vector<WindowList>{{8}, {5, 0}, {1, 14}}) {
    const at::Tensor expected = windowed().logits(joined(prompt, more), windows);
    for (const std::string layout : {"contiguous", "zigzag", "striped:1", "striped:4"}) {
      for (const std::int64_t chunk : {0, 5, 16}) {
        for (const int world : {1, 3}) {
          SessionsOptions options = options_with(windows, chunk);
          options.layout = plan::parse_layout(layout);
          options.gather_queries = chunk == 5;
          const std::string where = fmt::format("windows {}, {} ranks, {}, chunk {}",
                                                fmt::join(windows, " "), world, layout, chunk);
          with_sessions(world, options, [&](comm::Communicator&, Sessions& sessions) {
            const SessionId session = sessions.open();
            expect_close(read_one(sessions, session, prompt), expected[36], where);
            for (std::int64_t i = 0; i < 5; ++i) {
              const std::int64_t token = more[static_cast<std::size_t>(i)];
              expect_close(next_one(sessions, session, token), expected[37 + i], where);
            }
          });
        }
      }
    }
  }
}

/// Prompts behind others of several lengths, in passes of parts of several sessions.
TEST(Window, SeveralPromptsAtOnce) {
  with_sessions(3, options_with({8}, 18), [&](comm::Communicator&, Sessions& sessions) {
    std::vector<Prompt> prompts;
    std::vector<Tokens> whole;
    for (const auto& [before, length] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 7}, {30, 19}, {13, 26}}) {
      const SessionId session = sessions.open();
      const Tokens first = TinyModel::text(before, length);
      if (before > 0) read_one(sessions, session, first);
      prompts.push_back({session, TinyModel::text(length, before)});
      whole.push_back(joined(first, prompts.back().tokens));
    }
    const at::Tensor logits = sessions.prefill(prompts);
    for (std::int64_t i = 0; i < 3; ++i) {
      expect_close(logits[i], windowed().last_logits(whole[static_cast<std::size_t>(i)], {8}),
                   fmt::format("prompt {}", i));
    }
  });
}

constexpr std::size_t kChunks = 7;
using ChunkBytes = std::array<std::atomic<std::int64_t>, kChunks + 1>;

/// Counts the bytes that all ranks send in each chunk of 24 tokens.
void count_chunk_bytes(const WindowList& windows, ChunkBytes& bytes) {
  comm::run_ranks(3, [&](comm::Communicator& inner) {
    std::size_t chunk = 0;
    comm::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
      if (message.direction != comm::Direction::Send) return;
      bytes.at(chunk) += comm::total_bytes(message.parts);
    });
    const std::unique_ptr<model::Model> model = windowed().make();
    Sessions sessions(comm, *model, windowed().use(), options_with(windows, 24));
    const Prompt prompt{sessions.open(), TinyModel::text(24 * kChunks)};
    sessions.prefill(std::span(&prompt, 1), [&](std::int64_t tokens, std::int64_t) {
      chunk = static_cast<std::size_t>(tokens / 24);
      return true;
    });
  });
}

TEST(Window, BytesOfAChunkDoNotGrow) {
  ChunkBytes with{};
  ChunkBytes without{};
  count_chunk_bytes({8}, with);
  count_chunk_bytes({}, without);
  // Programs are agreed on in the first two chunks; logits travel in the last.
  EXPECT_GT(with[2], 0);
  for (std::size_t chunk = 3; chunk + 1 < kChunks; ++chunk) {
    EXPECT_EQ(with.at(chunk).load(), with[2].load()) << chunk;
    EXPECT_GT(without.at(chunk).load(), with.at(chunk).load()) << chunk;
  }
}

/// A cache of three pages a rank reads 16 pages of tokens, and a fork keeps its own.
TEST(Window, PagesBehindAreFree) {
  SessionsOptions options = options_with({8}, 16);
  options.cache.pages = 3;
  with_sessions(2, options, [&](comm::Communicator& comm, Sessions& sessions) {
    const Tokens prompt = TinyModel::text(64);
    const Tokens more = TinyModel::text(20, 2);
    const SessionId parent = sessions.open();
    expect_close(read_one(sessions, parent, prompt), windowed().last_logits(prompt, {8}), "read");
    EXPECT_EQ(sessions.cache().free_pages(comm.rank()), 2);
    const SessionId child = sessions.fork(parent);
    for (const std::int64_t token : more) next_one(sessions, parent, token);
    expect_close(next_one(sessions, parent, 9),
                 windowed().last_logits(joined(joined(prompt, more), {9}), {8}), "parent");
    expect_close(next_one(sessions, child, 5), windowed().last_logits(joined(prompt, {5}), {8}),
                 "child");
    sessions.release(parent);
    sessions.release(child);
    EXPECT_EQ(sessions.cache().free_pages(comm.rank()), 3);
  });
}

/// A layer without a window needs all pages.
TEST(Window, PagesOfAWholeLayerStay) {
  with_sessions(2, options_with({8, 0}, 16), [](comm::Communicator& comm, Sessions& sessions) {
    read_one(sessions, sessions.open(), TinyModel::text(64));
    EXPECT_EQ(sessions.cache().free_pages(comm.rank()), 64 - 8);
  });
}

/// A relayout moves the 7 tokens that the next one sees; the session goes on in both ways.
TEST(Window, MoveWhatIsInSight) {
  SessionsOptions options = options_with({8}, 0);
  options.layout = plan::parse_layout("contiguous");
  with_sessions(3, options, [](comm::Communicator&, Sessions& sessions) {
    const Tokens prompt = TinyModel::text(60);
    const Tokens rest = TinyModel::text(23, 2);
    const SessionId session = sessions.open();
    read_one(sessions, session, prompt);
    constexpr std::int64_t kTokenBytes =
        TinyModel::kLayers * TinyModel::kKvHeads * 2 * TinyModel::kHeadDim * 4;
    EXPECT_EQ(sessions.relayout(session, plan::relayout::one_extent(60, {}, 1)), 7 * kTokenBytes);
    expect_close(next_one(sessions, session, 7), windowed().last_logits(joined(prompt, {7}), {8}),
                 "next");
    expect_close(read_one(sessions, session, rest),
                 windowed().last_logits(joined(joined(prompt, {7}), rest), {8}), "rest");
  });
}

/// Nothing is in sight of the next token, and a layout of fewer tokens is refused all the same.
TEST(Window, OfOneTokenMovesNothing) {
  with_sessions(2, options_with({1}, 0), [](comm::Communicator&, Sessions& sessions) {
    const Tokens prompt = TinyModel::text(20);
    const SessionId session = sessions.open();
    read_one(sessions, session, prompt);
    EXPECT_THAT(
        error_of([&] { sessions.relayout(session, plan::relayout::one_extent(13, {}, 1)); }),
        testing::HasSubstr("equally many are required"));
    EXPECT_EQ(sessions.relayout(session, plan::relayout::one_extent(20, {}, 1)), 0);
    expect_close(next_one(sessions, session, 7), windowed().last_logits(joined(prompt, {7}), {1}),
                 "next");
  });
}

/// Bands of random positions are the pairs in sight, and no others.
TEST(Window, BandsAreThePairsInSight) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t window = 1 + static_cast<std::int64_t>(random() % 12);
    const auto draw = [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::int64_t> positions;
      for (std::int64_t at = begin; at < end; ++at) {
        if (round % 3 == 0 ? at % 3 == 1 : random() % 2 == 0) positions.push_back(at);
      }
      return positions;
    };
    const std::vector<std::int64_t> queries = draw(30, 50);
    ReachedKeys keys{.places = {}, .positions = draw(10, 30)};
    keys.places = {5, 5 + static_cast<std::int64_t>(keys.positions.size())};
    const std::vector<plan::Band> bands = cached_bands(queries, 2, keys, 3, window);
    const plan::Mask mask(2 + static_cast<std::int64_t>(queries.size()),
                          3 + static_cast<std::int64_t>(keys.positions.size()), bands);
    std::int64_t pairs = 0;
    for (std::size_t q = 0; q < queries.size(); ++q) {
      for (std::size_t k = 0; k < keys.positions.size(); ++k) {
        const bool sees = keys.positions[k] > queries[q] - window;
        EXPECT_EQ(mask.visible(2 + static_cast<std::int64_t>(q), 3 + static_cast<std::int64_t>(k)),
                  sees);
        pairs += sees ? 1 : 0;
      }
    }
    EXPECT_EQ(mask.area(), pairs);
  }
}

TEST(Window, OfLayers) {
  const KeyWindows none({});
  EXPECT_EQ(none.widest(), 0);
  EXPECT_EQ(none.index_of(5), 0U);
  const KeyWindows alternate({4096, 0});
  EXPECT_EQ(alternate.widest(), 0);
  EXPECT_EQ(alternate.distinct()[alternate.index_of(4)], 4096);
  EXPECT_EQ(alternate.distinct()[alternate.index_of(7)], 0);
  EXPECT_EQ(KeyWindows({3, 5, 3}).widest(), 5);
  EXPECT_EQ(KeyWindows({3, 5, 3}).distinct().size(), 2U);
  EXPECT_THAT(error_of([] { KeyWindows({-1}); }), testing::HasSubstr("a window of -1 keys given"));
  EXPECT_EQ(windows_of({.name = "llama", .sliding_window = 32}), WindowList{32});
  EXPECT_EQ(windows_of({.name = "llama"}), WindowList{});
}

}  // namespace
}  // namespace armillary::serve
