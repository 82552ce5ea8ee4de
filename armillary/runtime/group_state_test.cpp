#include "armillary/runtime/group_state.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace armillary::runtime {
namespace {

plan::Problem problem_of(int world) {
  return {.world = world};
}

KnownProblem ring_on(int world, const std::string& text) {
  return {.problem = problem_of(world),
          .strategy_texts = {text},
          .strategy = plan::parse_strategy("ring"),
          .key = {},
          .words = std::to_string(world)};
}

TEST(KnownProblems, AreFoundByTextAndProblem) {
  KnownProblems known;
  EXPECT_EQ(known.find(problem_of(2), "auto"), nullptr);
  const auto added = known.add(ring_on(2, "auto"));
  EXPECT_EQ(known.find(problem_of(2), "auto"), added);
  EXPECT_EQ(known.find(problem_of(2), "auto:cluster=c6"), nullptr);
  EXPECT_EQ(known.find(problem_of(3), "auto"), nullptr);
}

// A rank may ask for `auto`, another one for the strategy that it stands for.
TEST(KnownProblems, OneStrategyByTwoTextsIsOne) {
  KnownProblems known;
  const auto first = known.add(ring_on(2, "auto"));
  first->proved.emplace();
  const auto second = known.add(ring_on(2, "ring"));
  EXPECT_EQ(second, first);
  EXPECT_TRUE(second->proved) << "its proof was forgotten";
  EXPECT_EQ(known.find(problem_of(2), "ring"), first);
  EXPECT_EQ(known.find(problem_of(2), "auto"), first);
  EXPECT_NE(known.add(ring_on(3, "ring")), first);
  EXPECT_EQ(known.find(problem_of(3), "auto"), nullptr);
}

// A rank that asks alone keeps the order that all ranks of its group have.
TEST(KnownProblems, ToAskWhetherOneIsProvedIsNoLookUp) {
  KnownProblems known;
  known.add(ring_on(1, "ring"))->proved.emplace();
  known.add(ring_on(2, "ring"));
  EXPECT_TRUE(known.has_proved(problem_of(1), "ring"));
  EXPECT_FALSE(known.has_proved(problem_of(1), "auto"));
  EXPECT_FALSE(known.has_proved(problem_of(2), "ring"));
  EXPECT_FALSE(known.has_proved(problem_of(3), "ring"));
  for (int world = 3; world <= 1025; ++world) {
    known.add(ring_on(world, "ring"));
    known.has_proved(problem_of(1), "ring");
  }
  EXPECT_EQ(known.find(problem_of(1), "ring"), nullptr);
  EXPECT_NE(known.find(problem_of(2), "ring"), nullptr);
}

TEST(KnownProblems, TextsThatNameNoStrategyAreApart) {
  KnownProblems known;
  KnownProblem wrong = ring_on(2, "rnig");
  wrong.strategy = std::nullopt;
  const auto first = known.add(wrong);
  wrong.strategy_texts = {"rign"};
  EXPECT_NE(known.add(wrong), first);
}

TEST(KnownProblems, ThatWereAskedForLongestAgoAreForgotten) {
  KnownProblems known;
  for (int world = 1; world <= 1024; ++world) known.add(ring_on(world, "ring"));
  ASSERT_NE(known.find(problem_of(1), "ring"), nullptr);  // Now the newest.
  known.add(ring_on(1025, "ring"));
  EXPECT_EQ(known.find(problem_of(2), "ring"), nullptr);
  for (const int world : {1, 3, 1024, 1025}) {
    const auto one = known.find(problem_of(world), "ring");
    ASSERT_NE(one, nullptr) << world;
    EXPECT_EQ(one->words, std::to_string(world));
  }
}

}  // namespace
}  // namespace armillary::runtime
