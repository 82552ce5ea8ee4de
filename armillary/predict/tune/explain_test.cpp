// Explanations: every evaluation has its reason, and a change that is named was tested: it wins or
// loses as the text says.
#include "armillary/predict/tune/explain.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "armillary/predict/tune/search.h"
#include "armillary/predict/tune/testing/questions.h"

namespace armillary::tune {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The explanation about a strategy.
Explanation about(const std::vector<Explanation>& all, const std::string& name) {
  const auto entry = std::find_if(all.begin(), all.end(), [&](const Explanation& one) {
    return one.candidate.starts_with(name);
  });
  return entry == all.end() ? Explanation{} : *entry;
}

// A ring sends four times as much as an all-to-all over these links.
TEST(Explain, SaysWhyARingLosesAndWhenItWins) {
  Question question = testing::question("c7", 8, "full", 8192);
  question.names = {"ring", "ulysses"};
  const Answer answer = search(question);
  const std::vector<Explanation> all = explain(question, answer);
  const std::string other = answer.choice().candidate.strategy.name == "ring" ? "ulysses" : "ring";
  EXPECT_THAT(about(all, other).lost, HasSubstr(" times as long: "));
  EXPECT_THAT(about(all, other).lost, HasSubstr("exposed messages; sends "));
  EXPECT_THAT(about(all, other).change,
              ::testing::AnyOf(StartsWith("wins with "), StartsWith("loses also with ")));
}

TEST(Explain, NamesStrategiesThatCannotSolveTheProblem) {
  Question question = testing::question("c7", 8, "full", 4096);
  question.problem.heads = question.problem.kv_heads = 2;
  question.names = {"ring", "ulysses"};
  const std::vector<Explanation> all = explain(question, search(question));
  EXPECT_EQ(about(all, "ulysses").lost, "cannot solve the problem");
  EXPECT_THAT(about(all, "ulysses").change, HasSubstr("2 query heads"));
  EXPECT_THAT(to_json(all), StartsWith(R"([{"candidate":")"));
}

// On two ranks the all-to-all degrees of usp are 1 and 2, which are ring and ulysses.
TEST(Explain, NamesStrategiesWhosePlansHaveAnotherName) {
  Question question = testing::question("c7", 2, "full", 4096);
  question.problem.heads = question.problem.kv_heads = 2;
  question.names = {"ring", "ulysses", "usp", "grid", "attention2d"};
  const std::vector<Explanation> all = explain(question, search(question));
  for (const char* name : {"usp", "attention2d"}) {
    EXPECT_EQ(about(all, name).lost, "is no candidate of its own") << name;
    EXPECT_THAT(about(all, name).change,
                StartsWith("it solves the problem, as " + std::string(name)));
  }
}

// A question that no other length is known for, on a cluster of one node.
TEST(Explain, ClaimsOnlyWhatWasTested) {
  Question question = testing::question("c7", 8, "full", 8192);
  question.names = {"ring", "ulysses"};
  question.with_length = {};
  for (const Explanation& one : explain(question, search(question))) {
    EXPECT_THAT(one.change, ::testing::Not(HasSubstr("tokens")));
    EXPECT_THAT(one.change, ::testing::Not(HasSubstr("nodes"))) << "c7 has one node";
    if (one.change.starts_with("loses")) {
      EXPECT_THAT(one.change, HasSubstr("links 2, 1/2, 4, 1/4, 16, 1/16 times as fast"));
      EXPECT_THAT(one.change, HasSubstr("messages and kernels that start at once"));
    }
  }
}

/// StarTrail's C of its paper on 4 nodes of 8: estimates, which are far from the chosen USP, put
/// C = 2 before C = 4.
TEST(Explain, TheBestOfAStrategyIsTheOneThatSimulationsFind) {
  Question question = testing::question("c3", 32, "causal", 131072);
  question.problem.heads = question.problem.kv_heads = 16;
  question.problem.head_dim = question.problem.value_dim = 256;
  question.problem.layout = plan::parse_layout("zigzag");
  question.free = {.layout = false, .transfer_dtype = false, .placement = false};
  question.with_length = {};
  Answer answer = search(question);
  std::erase_if(answer.evaluations, [&](const Evaluation& evaluation) {
    return evaluation.outcome != Outcome::Chosen &&
           evaluation.candidate.strategy.name != "startrail";
  });
  const Explanation startrail = about(explain(question, answer), "startrail");
  EXPECT_THAT(startrail.candidate, StartsWith("startrail:c=4"));
  Question alone = question;
  alone.names = {"startrail"};
  const Answer best = search(alone);
  EXPECT_EQ(best.choice(), search_exhaustively(alone).choice());
  const double ratio = best.choice().times.total_s / answer.choice().times.total_s;
  EXPECT_THAT(startrail.lost, StartsWith(fmt::format("{:.3f} times as long", ratio)));
}

/// Layout balanced gains too little to be chosen, and is the first of its strategy in the table.
TEST(Explain, TheBestOfAStrategyIsTheFirstInTheTable) {
  Question question = testing::question("c3", 32, "causal", 131072);
  question.problem.heads = question.problem.kv_heads = 32;
  question.problem.head_dim = question.problem.value_dim = 64;
  question.with_length = {};
  Answer answer = search(question);
  ASSERT_NE(answer.choice().candidate.strategy.name, "ulysses");
  std::erase_if(answer.evaluations, [&](const Evaluation& evaluation) {
    return evaluation.outcome != Outcome::Chosen && evaluation.candidate.strategy.name != "ulysses";
  });
  ASSERT_TRUE(answer.evaluations.at(1).simulated());
  const Explanation ulysses = about(explain(question, answer), "ulysses");
  EXPECT_EQ(ulysses.candidate, to_string(answer.evaluations.at(1).candidate));
}

TEST(Explain, ListsTestedChangesOnce) {
  const std::string list = "loses also with 8 KV heads";
  const std::string text = to_text({{"ring", "2 times as long", list},
                                    {"allgather", "3 times as long", list},
                                    {"usp", "4 times as long", "wins with 1 KV heads"}});
  EXPECT_EQ(text,
            "ring\n  2 times as long\n  loses also with 8 KV heads\n"
            "allgather\n  3 times as long\n  loses also with every change tested for ring\n"
            "usp\n  4 times as long\n  wins with 1 KV heads\n");
}

TEST(Explain, SaysThatLargeWorldsAreEstimated) {
  Question question = testing::question("c1", 64, "full", 1 << 16);
  question.problem.heads = question.problem.kv_heads = 64;
  question.names = {"ring", "ulysses"};
  question.free = {.layout = false, .transfer_dtype = false, .placement = false};
  const std::vector<Explanation> all = explain(question, search(question));
  EXPECT_FALSE(all.empty());
  for (const Explanation& one : all) {
    EXPECT_THAT(one.change,
                ::testing::AnyOf(::testing::EndsWith(" (estimated)"),
                                 StartsWith("no change is named: estimates"),
                                 HasSubstr("as fast as the chosen one"), HasSubstr("more memory")));
  }
}

// A evaluation that only a measurement found has no simulated times in old answers.
TEST(Explain, DividesByNoTimeThatIsMissing) {
  Question question = testing::question("c7", 8, "full", 8192);
  question.names = {"ring", "ulysses"};
  Answer answer = search(question);
  answer.evaluations.front().times = {};
  answer.evaluations.front().measured_s = 1e-3;
  for (const Explanation& one : explain(question, answer)) {
    EXPECT_THAT(one.lost, ::testing::Not(::testing::AnyOf(HasSubstr("inf "), HasSubstr("nan "))));
  }
}

TEST(Explain, NamesMemoryThatIsMissing) {
  Question question = testing::question("c6", 4, "causal", 1 << 15);
  question.names = {"ring", "allgather"};
  const Answer roomy = search(question);
  std::int64_t most = 0;
  std::int64_t least = roomy.choice().memory_bytes;
  for (const Evaluation& evaluation : roomy.evaluations) {
    most = std::max(most, evaluation.memory_bytes);
    least = std::min(least, evaluation.memory_bytes);
  }
  ASSERT_LT(least, most);
  question.cluster.device.memory_bytes = static_cast<double>(least);
  const std::vector<Explanation> all = explain(question, search(question));
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const Explanation& one) {
    return one.lost.starts_with("does not fit: needs ");
  }));
}

}  // namespace
}  // namespace armillary::tune
