// hand_over_test.cpp: K and V that prefill ranks hand over to decode ranks: as many bytes as
// planned, of a layer before the next one is read, and sessions that go on in both ways.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
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

using plan::relayout::CacheLayout;

const TinyModel& model_of_hand_over() {
  static const TinyModel model;
  return model;
}

SessionsOptions options_of_hand_over(std::vector<std::int64_t> windows = {}) {
  return {.chunk = 20, .cache = {.page = 4, .pages = 64}, .windows = std::move(windows)};
}

/// Ranks 2 and 3 of four.
CacheLayout decode_ranks() {
  return {.extents = {}, .ranks = 2, .first = 2};
}

/// Bytes that all ranks have outgoing before the last pass reads a unit.
using UnitBytes = std::array<std::atomic<std::int64_t>, TinyModel::kLayers + 2>;

/// Bytes of a prompt of 60 tokens in three passes, with a hand-over or without. Returns those of
/// the hand-over.
std::int64_t read_counting(bool hands_over, UnitBytes& bytes) {
  std::atomic<std::int64_t> moved = 0;
  comm::run_ranks(4, [&](comm::Communicator& inner) {
    std::int64_t outgoing = 0;
    std::array<std::int64_t, TinyModel::kLayers + 2> before{};
    comm::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
      if (message.direction == comm::Direction::Send) outgoing += comm::total_bytes(message.parts);
    });
    const std::unique_ptr<model::Model> model = model_of_hand_over().make();
    const auto use = [&](int unit) {
      before.at(static_cast<std::size_t>(unit)) = outgoing;
      return model_of_hand_over().use()(unit);
    };
    Sessions sessions(comm, *model, use, options_of_hand_over());
    const Prompt prompt{sessions.open(), TinyModel::text(60)};
    if (hands_over) {
      moved =
          sessions
              .prefill_to(prompt, decode_ranks(), {.kind = plan::LayoutKind::Striped, .stripe = 4})
              .bytes;
    } else {
      sessions.prefill(std::span(&prompt, 1));
    }
    for (std::size_t unit = 0; unit < before.size(); ++unit) bytes.at(unit) += before.at(unit);
  });
  return moved;
}

TEST(HandOver, MovesTheBytesOfItsPlan) {
  UnitBytes with{};
  UnitBytes without{};
  const std::int64_t moved = read_counting(true, with);
  read_counting(false, without);
  // Zigzag pieces of three passes, and stripes of 4 in turn on ranks 2 and 3.
  CacheLayout from{.extents = {}, .ranks = 4};
  const CacheLayout to = {
      .extents = {{.tokens = 60, .layout = {.kind = plan::LayoutKind::Striped, .stripe = 4}}},
      .ranks = 2};
  for (int pass = 0; pass < 3; ++pass) {
    from.extents.push_back({.tokens = 20, .layout = {.kind = plan::LayoutKind::Zigzag}});
  }
  std::int64_t stay = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    stay += plan::count_common(token_runs(from)[rank + 2], token_runs(to)[rank]);
  }
  constexpr std::int64_t kTokenBytes = TinyModel::kKvHeads * 2 * TinyModel::kHeadDim * 4;
  EXPECT_EQ(moved, TinyModel::kLayers * (60 - stay) * kTokenBytes);
  // A layer has left before the next unit is read.
  for (std::size_t unit = 1; unit < with.size(); ++unit) {
    EXPECT_EQ(with.at(unit) - without.at(unit),
              static_cast<std::int64_t>(unit - 1) * moved / TinyModel::kLayers)
        << unit;
  }
}

/// Prompts whose last pass is spread, and is not; with windows and without; behind others.
TEST(HandOver, SessionsGoOn) {
  for (const std::vector<std::int64_t>& windows :
       std::vector<std::vector<std::int64_t>>{{0}, {8}, {8, 0}}) {
    for (const std::int64_t length : {60, 45}) {
      comm::run_ranks(4, [&](comm::Communicator& comm) {
        const std::string where = fmt::format("windows {}, {}", fmt::join(windows, " "), length);
        const std::unique_ptr<model::Model> model = model_of_hand_over().make();
        Sessions sessions(comm, *model, model_of_hand_over().use(), options_of_hand_over(windows));
        const SessionId session = sessions.open();
        Tokens all;
        const auto read_to_decode_ranks = [&](const Tokens& tokens) {
          all = joined(all, tokens);
          const Sessions::PrefillResult read =
              sessions.prefill_to({session, tokens}, decode_ranks(), {});
          expect_close(read.logits_BV[0], model_of_hand_over().last_logits(all, windows), where);
          EXPECT_GT(read.bytes, 0) << where;
          EXPECT_EQ(sessions.cache().tokens(session, 0), 0) << where;
          EXPECT_EQ(sessions.tokens(session), static_cast<std::int64_t>(all.size())) << where;
        };
        read_to_decode_ranks(TinyModel::text(length));
        for (const std::int64_t token : {7, 2}) {
          all.push_back(token);
          const NextToken next{session, token};
          expect_close(sessions.decode(std::span(&next, 1))[0],
                       model_of_hand_over().last_logits(all, windows), where + ", next");
        }
        read_to_decode_ranks(TinyModel::text(40, 3));
      });
    }
  }
}

/// A layout that cannot be is refused before the prompt is read.
TEST(HandOver, RefusesLayouts) {
  comm::run_ranks(2, [](comm::Communicator& comm) {
    const std::unique_ptr<model::Model> model = model_of_hand_over().make();
    Sessions sessions(comm, *model, model_of_hand_over().use(), options_of_hand_over());
    const SessionId session = sessions.open();
    EXPECT_NE(error_of([&] {
                sessions.prefill_to({session, TinyModel::text(20)}, decode_ranks(), {});
              }),
              "no error");
    CacheLayout groups{.extents = {}, .ranks = 2, .head_groups = 2};
    EXPECT_THAT(error_of([&] {
                  sessions.prefill_to({session, TinyModel::text(20)}, groups, {});
                }),
                testing::HasSubstr("2 head groups and 1 stages given"));
    EXPECT_EQ(sessions.tokens(session), 0);
  });
}

}  // namespace
}  // namespace armillary::serve
