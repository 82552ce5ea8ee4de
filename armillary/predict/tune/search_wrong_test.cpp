// search_wrong_test.cpp: a strategy that was added and whose plan is wrong: it is never chosen, and
// is no reason to choose nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/testing/without_a_send.h"
#include "armillary/predict/tune/explain.h"
#include "armillary/predict/tune/search.h"
#include "armillary/predict/tune/testing/questions.h"

namespace armillary::tune {
namespace {

using ::testing::HasSubstr;

constexpr int kWorld = 5;  // No other test of this program has as many ranks.

/// Adds it to the registry once.
std::string wrong_strategy() {
  static const std::string name = [] {
    plan::testing::add_strategy_without_a_send("without_a_send",
                                               {plan::Pass::Forward, plan::Pass::Backward}, kWorld);
    return "without_a_send";
  }();
  return name;
}

TEST(SearchWrong, IsNotChosenAndStopsNoSearch) {
  Question question = testing::question("c7", kWorld, "causal", 8190);
  const Answer whole = search(question);
  const std::string name = wrong_strategy();
  question.against = {plan::parse_strategy(name)};
  for (const bool exhaustively : {false, true}) {
    question.names = exhaustively ? std::vector<std::string>{name, "ring"} : question.names;
    const Answer answer = exhaustively ? search_exhaustively(question) : search(question);
    EXPECT_EQ(parse_answer(to_json(answer)), answer);
    if (!exhaustively) {
      EXPECT_EQ(answer.choice(), whole.choice());
    }
    const auto wrong = std::ranges::find_if(answer.evaluations, [&](const Evaluation& evaluation) {
      return evaluation.candidate.strategy.name == name && !evaluation.error.empty();
    });
    ASSERT_NE(wrong, answer.evaluations.end());
    EXPECT_EQ(wrong->outcome, Outcome::Wrong);
    EXPECT_FALSE(wrong->simulated());
    EXPECT_THAT(wrong->error, HasSubstr("has no send to meet"));
    const auto explained = explain(question, answer);
    EXPECT_TRUE(std::ranges::any_of(explained, [&](const Explanation& one) {
      return one.candidate.starts_with(name) && one.lost == "its plan is wrong" &&
             one.change == wrong->error;
    }));
  }
}

TEST(SearchWrong, AloneIsAnErrorOfItsPlan) {
  Question question = testing::question("c7", kWorld, "causal", 8190);
  question.names = {wrong_strategy()};
  for (const auto search_it : {search, search_exhaustively}) {
    try {
      search_it(question);
      FAIL();
    } catch (const PlanError& error) {
      EXPECT_THAT(error.what(), HasSubstr("has no send to meet"));
    }
  }
}

}  // namespace
}  // namespace armillary::tune
