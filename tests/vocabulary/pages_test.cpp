// pages_test.cpp: the machine reads a vocabulary that is not attention: it is printed, written as
// JSON, proved, broken and simulated by the code that does so for attention.
#include "tests/vocabulary/pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "armillary/plan/program/grid.h"
#include "armillary/plan/program/mutate.h"
#include "armillary/plan/program/program_json.h"
#include "armillary/predict/sim/cluster.h"
#include "armillary/predict/sim/engine.h"

namespace armillary::pages {
namespace {

using plan::World;

const Table kTable{.world = 3, .pages = 7, .columns = 2, .rows = 4};

std::vector<plan::RankProgram> gather(const Table& table) {
  std::vector<plan::RankProgram> ranks;
  ranks.reserve(table.world);
  for (plan::Rank rank = 0; rank < table.world; ++rank) ranks.push_back(gather(table, rank));
  return ranks;
}

std::vector<plan::Diagnostic> prove(const Table& table,
                                    const std::vector<plan::RankProgram>& ranks) {
  const plan::Measures measures = measures_of(table);
  return prove(table, World{measures, ranks});
}

TEST(Pages, AreProvedForAllWorlds) {
  for (const int world : {1, 2, 3, 4, 5, 8, 13}) {
    const Table table{.world = world, .pages = 2 * world + 1, .columns = 3, .rows = 5};
    EXPECT_EQ(prove(table, gather(table)), std::vector<plan::Diagnostic>{}) << world;
  }
}

TEST(Pages, ArePrintedInTheirOwnWords) {
  const Table table{.world = 2, .pages = 3, .columns = 2, .rows = 4};
  const std::vector<plan::RankProgram> ranks = gather(table);
  const plan::Measures measures = measures_of(table);
  const plan::Diagnostic at{.rank = 1, .op = 3, .rule = "undefined", .text = "page 0"};
  EXPECT_EQ(to_string(World{measures, ranks}, &at),
            "          rank 0                             rank 1\n"
            "step 0    put(page{0,2})                     put(page1)\n"
            "step 1    page{0,2}>r1 page1<r1 put(page1)   page1>r0 page{0,2}<r0 put(page{0,2})"
            "   <-- HERE rank 1: page 0\n");
}

TEST(Pages, ComeBackFromJson) {
  for (const plan::RankProgram& program : gather(kTable)) {
    const std::string text = to_json(program);
    EXPECT_THAT(text, testing::HasSubstr(R"({"op":"put","lane":0,"step":0,"operands":{"to":{)"));
    EXPECT_EQ(plan::parse_program_json(text, kWords), program);
  }
}

/// The tables of all ranks, played op by op without the machine: a number is its page and column,
/// -1 where none was written. Nothing if a rank waits for ever.
using Memory = std::map<std::tuple<plan::Rank, int, int, int>, int>;  // Rank, slot, page, column.
std::optional<std::vector<std::vector<int>>> play(const Table& table,
                                                  const std::vector<plan::RankProgram>& ranks) {
  Memory memory;
  std::map<std::tuple<plan::Rank, plan::Rank, int>, std::deque<std::vector<int>>> messages;
  const auto at = [&](const plan::RankProgram& p, const plan::View& view, int page,
                      int column) -> int& {
    return memory.try_emplace({p.rank, p.tiles[view.tile].slot, page, column}, -1).first->second;
  };
  const auto each = [](const plan::View& view, const auto& visit) {
    for (const int page : view.blocks) {
      for (int c = view.heads.begin; c < view.heads.end; ++c) visit(page, c);
    }
  };
  for (const plan::RankProgram& p : ranks) {
    const plan::View own{0, p.tiles[0].heads, p.tiles[0].blocks};
    each(own, [&](int page, int c) { at(p, own, page, c) = page * table.columns + c; });
  }
  std::vector<std::size_t> next(ranks.size());
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const plan::RankProgram& p = ranks[r];
      for (; next[r] < p.ops.size(); ++next[r], moves = true) {
        const plan::Op& op = p.ops[next[r]];
        std::vector<int> values;
        if (op.kind == plan::kRecv) {
          auto& queue = messages[{op.peer, p.rank, op.lane}];
          if (queue.empty()) break;
          values = queue.front();
          queue.pop_front();
        } else {
          each(op.views.back(),
               [&](int page, int c) { values.push_back(at(p, op.views.back(), page, c)); });
        }
        if (op.kind == plan::kSend) {
          messages[{p.rank, op.peer, op.lane}].push_back(values);
          continue;
        }
        std::size_t i = 0;
        each(op.views.front(),
             [&](int page, int c) { at(p, op.views.front(), page, c) = values.at(i++); });
      }
    }
  }
  std::vector<std::vector<int>> tables;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (next[r] < ranks[r].ops.size()) return std::nullopt;
    const plan::View whole{1, {0, table.columns}, ranks[r].tiles[1].blocks};
    std::vector<int>& values = tables.emplace_back();
    each(whole, [&](int page, int c) { values.push_back(at(ranks[r], whole, page, c)); });
  }
  return tables;
}

/// Every mutant that the proof accepts gives the very tables; hardly any is accepted.
TEST(Pages, BrokenAreRefusedOrAsGood) {
  const std::vector<plan::RankProgram> ranks = gather(kTable);
  const plan::Measures measures = measures_of(kTable);
  const auto expected = play(kTable, ranks);
  ASSERT_TRUE(expected);
  int caught = 0;
  int as_good = 0;
  std::set<plan::MutationKind> kinds;
  for (const plan::Mutation& mutation : mutations(World{measures, ranks})) {
    std::vector<plan::RankProgram> mutant = ranks;
    mutate(measures, mutant, mutation);
    kinds.insert(mutation.kind);
    if (!prove(kTable, mutant).empty()) {
      ++caught;
      continue;
    }
    ++as_good;
    EXPECT_EQ(play(kTable, mutant), expected) << to_string(mutation, kWords);
  }
  EXPECT_GT(caught, 10 * as_good) << as_good << " mutants are accepted";
  EXPECT_GT(as_good, 0) << "a step more or less is as good";
  EXPECT_GE(kinds.size(), 10U);
}

TEST(Pages, WrongMeaningsAreNamed) {
  const auto first = [](const auto& change) {
    std::vector<plan::RankProgram> ranks = gather(kTable);
    change(ranks);
    const std::vector<plan::Diagnostic> diagnostics = prove(kTable, ranks);
    return diagnostics.empty() ? std::string() : diagnostics[0].rule + ": " + diagnostics[0].text;
  };
  EXPECT_EQ(first([](auto& ranks) { ranks[1].ops.pop_back(); }), "complete: pages are missing");
  EXPECT_EQ(first([](auto& ranks) { ranks[1].ops.insert(ranks[1].ops.begin(), ranks[1].ops[0]); }),
            "twice: page 1 was there");
  const auto without_first_message = [](auto& ranks) {
    ranks[2].ops.erase(ranks[2].ops.begin() + 1);
    ranks[0].ops.erase(ranks[0].ops.begin() + 2);
  };
  EXPECT_EQ(first(without_first_message), "undefined: page 2 is not there");
  EXPECT_EQ(first([](auto& ranks) { ranks[0].ops[1].collective = plan::Collective::None; }),
            "match: is of the collective all_gather, but rank 0 sends it in none");
  EXPECT_EQ(first([](auto& ranks) { ranks[2].ops[0].kind = plan::Kind(7); }),
            "well_formed: kind 7 of 3");
}

/// Every rank sends its part to all others, which takes at least the time of the bytes.
TEST(Pages, AreSimulated) {
  const Table table{.world = 8, .pages = 8, .columns = 16, .rows = 1 << 16};
  const std::vector<plan::RankProgram> ranks = gather(table);
  const plan::Measures measures = measures_of(table);
  const double put_s = 1e-6;
  const sim::Timeline timeline =
      simulate(World{measures, ranks}, [&](const auto&, const plan::Op&) { return put_s; },
               sim::load_cluster("c1"), {.record = {.ops = true}});
  const std::int64_t part = std::int64_t{16} * (1 << 16) * 4;
  ASSERT_EQ(timeline.ranks.size(), 8U);
  for (const sim::RankTimeline& rank : timeline.ranks) {
    EXPECT_EQ(rank.sent_bytes, 7 * part);
    EXPECT_EQ(rank.received_bytes, 7 * part);
    EXPECT_EQ(rank.slot_bytes, 2 * part);
    EXPECT_NEAR(rank.compute_s, 8 * put_s, 1e-12);
    EXPECT_EQ(rank.compute_by_kind_s[plan::Kind(PageKind::Put).number()], rank.compute_s);
    EXPECT_GT(rank.end_s, rank.compute_s);
  }
  EXPECT_THAT(to_json(timeline), testing::HasSubstr(R"("compute_by_kind_s":{"put":)"));
}

}  // namespace
}  // namespace armillary::pages
