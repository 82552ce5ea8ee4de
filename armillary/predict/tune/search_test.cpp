// search_test.cpp: the search against an exhaustive one, and the parts of questions that it must
// keep to: freedom, memory, names of strategies. Also the space, placements, and answers as JSON.
#include "armillary/predict/tune/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/predict/tune/evaluator.h"
#include "armillary/predict/tune/space.h"
#include "armillary/predict/tune/testing/questions.h"
#include "tests/seed.h"

namespace armillary::tune {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The message of the error of a search.
std::string refusal(const Question& question) {
  try {
    search(question);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Search, ChoosesWhatIsFastestInSimulation) {
  const Question question = testing::question("c7", 4, "causal", 8192);
  const Answer answer = search(question);
  const Evaluation& choice = answer.choice();
  EXPECT_EQ(choice.outcome, Outcome::Chosen);
  for (const Evaluation& evaluation : answer.evaluations) {
    if (evaluation.simulated()) {
      const bool other = evaluation.candidate.layout.kind == plan::LayoutKind::Balanced ||
                         evaluation.candidate.layout.kind == plan::LayoutKind::Striped;
      EXPECT_GE(evaluation.times.total_s * (other ? 1.02 : 1), choice.times.total_s);
    }
    EXPECT_LE(evaluation.bound_s,
              evaluation.simulated() ? evaluation.times.total_s * (1 + 1e-9) : 1e9);
  }
  EXPECT_LE(answer.floor_s, choice.times.total_s);
  EXPECT_EQ(search(question), answer);
}

// Ulysses is 5 us of 22 ms faster here than what would be found without it.
TEST(Search, IsNoSlowerThanAPlainStrategy) {
  Question question = testing::question("c6", 8, "causal", 131072);
  question.passes = {plan::Pass::Forward};
  const double chosen_s = search(question).choice().times.total_s;
  question.against = {plan::parse_strategy("ulysses")};
  EXPECT_EQ(chosen_s, search(question).choice().times.total_s);
}

// All 200 problems take minutes, for each is hundreds of simulations: a sample is taken unless
// ARMILLARY_TEST_ALL asks for all.
TEST(Search, IsWithinFivePercentOfAnExhaustiveOne) {
  const std::vector<Question> grid = testing::grid_of_200();
  ASSERT_EQ(grid.size(), 200);
  double worst = 1;
  const std::size_t step = test_all() ? 1 : 67;
  for (std::size_t q = 0; q < grid.size(); q += step) {
    const Answer answer = search(grid[q]);
    const Answer best = search_exhaustively(grid[q]);
    const double regret = answer.choice().times.total_s / best.choice().times.total_s;
    worst = std::max(worst, regret);
    EXPECT_LE(regret, 1.05) << q << ": " << to_string(answer.choice().candidate) << " instead of "
                            << to_string(best.choice().candidate);
  }
  RecordProperty("worst_regret", std::to_string(worst));
}

// On two hosts joined by 1 Gbit/s `balanced` was 0.5 % faster in simulation and 7 % slower
// measured.
TEST(Search, ALayoutThatGainsLittleIsNotChosen) {
  Question question = testing::question("c6", 2, "causal", 1 << 16);
  question.free.layout = false;
  const auto fastest_s = [&](const std::string& layout) {
    question.problem.layout = plan::parse_layout(layout);
    return search(question).choice().times.total_s;
  };
  const double gain = fastest_s("zigzag") / fastest_s("balanced") - 1;
  EXPECT_GT(gain, 0);
  EXPECT_LT(gain, 0.02);
  question.free.layout = true;
  EXPECT_EQ(to_string(search(question).choice().candidate.layout), "zigzag");
}

TEST(Search, KeepsToThePartsThatAreNotFree) {
  Question question = testing::question("c4:nodes=2", 8, "causal", 8192);
  question.free = {.layout = false, .transfer_dtype = true, .placement = false};
  question.problem.layout = plan::parse_layout("striped:4");
  question.names = {"usp", "ring"};
  for (const Evaluation& evaluation : search(question).evaluations) {
    EXPECT_EQ(to_string(evaluation.candidate.layout), "striped:4");
    EXPECT_EQ(evaluation.candidate.placement.stride, 1);
    EXPECT_TRUE(evaluation.candidate.strategy.name == "usp" ||
                evaluation.candidate.strategy.name == "ring");
  }
  question.names = {"ulysses"};
  question.problem.heads = question.problem.kv_heads = 4;
  EXPECT_THAT(refusal(question),
              StartsWith("tune: strategy: ulysses spreads heads 8 ways but there are 4"));
}

TEST(Search, RespectsMemory) {
  Question question = testing::question("c6", 4, "causal", 1 << 16);
  std::int64_t most = 0;
  for (const Evaluation& evaluation : search(question).evaluations)
    most = std::max(most, evaluation.memory_bytes);
  question.cluster.device.memory_bytes = static_cast<double>(most) - 1;
  const Answer answer = search(question);
  EXPECT_LT(answer.choice().memory_bytes, most);
  EXPECT_EQ(answer.evaluations.back().outcome, Outcome::TooLarge);
  question.cluster.device.memory_bytes = 1e8;
  EXPECT_THAT(refusal(question), HasSubstr("does not fit: needs 0."));
  EXPECT_THAT(refusal(question), HasSubstr(", has 0.09, the longest sequence that fits is "));
  question.with_length = nullptr;
  EXPECT_THAT(refusal(question), ::testing::EndsWith("has 0.09"));
}

TEST(Search, RefusesMoreRanksThanDevices) {
  EXPECT_THAT(refusal(testing::question("c8", 5, "full", 100)), HasSubstr("5"));
}

TEST(Search, RefusesMoreRanksThanItCanSimulate) {
  EXPECT_THAT(refusal(testing::question("c1:nodes=1024", 8192, "causal", 1 << 20)),
              StartsWith("tune: 8192 ranks; at most 4096"));
}

TEST(Search, TakesOneRankAndNoTokens) {
  EXPECT_EQ(search(testing::question("c8", 1, "causal", 1000)).choice().sent_bytes, 0);
  EXPECT_EQ(search(testing::question("c8", 4, "full", 0)).choice().candidate.placement.stride, 1);
}

TEST(Space, NeighboursAreLegalAndDifferent) {
  const Question question = testing::question("c4:nodes=2", 8, "causal", 4096);
  for (const Candidate& first : first_candidates(question)) {
    for (const Candidate& other : neighbours(question, first)) {
      EXPECT_NO_THROW(check_legal(problem_of(question, other), other.strategy));
      EXPECT_FALSE(other == first);
    }
  }
  EXPECT_GT(whole_space(question).size(), first_candidates(question).size());
}

TEST(Space, LayoutsFollowTheMask) {
  const auto names = [](const Question& question, LayoutChoice choice) {
    std::vector<std::string> names;
    for (const plan::Layout& layout : layouts(question, choice)) {
      names.push_back(to_string(layout));
    }
    return names;
  };
  using ::testing::ElementsAre;
  const Question full = testing::question("c6", 8, "full", 8192);
  EXPECT_THAT(names(full, LayoutChoice::All), ElementsAre("contiguous"));
  const Question causal = testing::question("c6", 8, "causal", 8192);
  EXPECT_THAT(names(causal, LayoutChoice::First), ElementsAre("contiguous", "zigzag"));
  EXPECT_THAT(names(causal, LayoutChoice::All),
              ElementsAre("contiguous", "zigzag", "balanced", "striped:1"));
  const Question large = testing::question("c1:nodes=16", 128, "causal", 1 << 16);
  EXPECT_THAT(names(large, LayoutChoice::All), ElementsAre("zigzag"));
  const Question documents = testing::question("c6", 8, "documents:6000,2192", 8192);
  EXPECT_THAT(names(documents, LayoutChoice::First), ::testing::Contains("balanced"));
}

// The work of zigzag is as even as can be here, but striped leaves less waiting: 3.6 and 4.8 ms.
TEST(Search, FindsALayoutOfEqualWorkThatIsFaster) {
  Question question = testing::question("c7", 7, "causal", 4096);
  question.problem.heads = 9;
  question.problem.kv_heads = 3;
  const Candidate choice = search(question).choice().candidate;
  EXPECT_EQ(to_string(choice.layout), "striped:1") << to_string(choice);
}

TEST(Placement, PutsNeighboursAStrideApart) {
  EXPECT_EQ(devices({1}, 4), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(devices({2}, 4), (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(to_string(Placement{1}), "by_node");
  EXPECT_EQ(to_string(Placement{8}), "stride:8");
}

TEST(Answer, IsItsJson) {
  const Answer answer = search(testing::question("c8", 4, "causal", 4096));
  EXPECT_EQ(parse_answer(to_json(answer)), answer);
  const std::string text = to_json(answer);
  for (const std::string& broken :
       {std::string("{}"), std::string("["), text.substr(0, text.size() / 2),
        std::string(R"({"floor_s":1,"evaluations":[]})"), std::string("null")}) {
    EXPECT_THROW(parse_answer(broken), InvalidArgument) << broken;
  }
}

TEST(SimulateAll, FillsTimesThatTheSearchDidNotNeed) {
  const Question question = testing::question("c8", 4, "causal", 4096);
  Answer answer = search(question);
  Evaluation& evaluation = answer.evaluations.back();
  evaluation.times = {};
  std::vector<std::size_t> indices{0, answer.evaluations.size() - 1};
  const Times before = answer.choice().times;
  simulate_all(question, answer, indices);
  EXPECT_EQ(indices.size(), 2U);
  EXPECT_EQ(answer.choice().times, before);
  EXPECT_TRUE(answer.evaluations.back().simulated());
  Question small = question;
  small.cluster.device.memory_bytes = 1;
  answer.evaluations.back().times = {};
  simulate_all(small, answer, indices);
  EXPECT_EQ(indices, std::vector<std::size_t>{0});
  EXPECT_EQ(answer.evaluations.back().outcome, Outcome::TooLarge);
}

}  // namespace
}  // namespace armillary::tune
