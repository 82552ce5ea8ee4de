// mutation_test.cpp: a plan with one op changed is caught by verify, or it is as good as the plan.
//
// For every mutant that verify accepts, also beside the plan's other passes (verify_saved), rules.h
// must give a reason, and playing it (interpreter.h) must give the very sums that the plan gives.
// ARMILLARY_TEST_ALL=1 judges every mutation of every plan; without it, one of each kind per plan,
// and half of the plans from 3 ranks on, chosen by a printed seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "armillary/plan/mutate.h"
#include "armillary/plan/text.h"
#include "armillary/plan/verify/verify.h"
#include "tests/mutation/cases.h"
#include "tests/mutation/interpreter.h"
#include "tests/mutation/rules.h"

namespace armillary::mutation {
namespace {

constexpr std::size_t kSampled = 1;  ///< Mutations of each kind per plan.

/// How many mutants each way of judging settled.
class Tally {
 public:
  void add(plan::MutationKind kind, const std::string& verdict) { ++counts_[kind][verdict]; }
  void print(int plans) const {
    fmt::print("{} plans\n", plans);
    for (const auto& [kind, verdicts] : counts_) {
      fmt::print("  {:<13}", to_string(kind));
      for (const auto& [verdict, count] : verdicts) fmt::print("  {}: {}", verdict, count);
      fmt::print("\n");
    }
  }

 private:
  std::map<plan::MutationKind, std::map<std::string, int>> counts_;
};

/// All mutations, or some of each kind.
std::vector<plan::Mutation> sample(std::vector<plan::Mutation> all, std::mt19937& random) {
  if (test_all()) return all;
  std::shuffle(all.begin(), all.end(), random);
  std::map<plan::MutationKind, std::size_t> taken;
  std::erase_if(all,
                [&](const plan::Mutation& mutation) { return ++taken[mutation.kind] > kSampled; });
  return all;
}

std::string describe(const Case& example, const plan::Plan& plan, const plan::Mutation& mutation) {
  std::string text = fmt::format("{}: {}", example.name, to_string(mutation));
  if (mutation.op >= 0) {
    const plan::Op& op = plan.ranks[mutation.rank].ops[mutation.op];
    text += fmt::format(", {}", to_string(plan, mutation.rank, op));
  }
  return text;
}

class MutationTest : public ::testing::TestWithParam<int> {
 protected:
  static void TearDownTestSuite() { tally().print(plans()); }

  void judge(const Case& example, std::mt19937& random) {
    const plan::Plan plan = example.plan();
    ASSERT_EQ(verify(plan), std::vector<plan::Diagnostic>{}) << example.name;
    const Interpretation expected = interpret(plan);
    ASSERT_TRUE(expected.finished) << example.name;
    if (example.lowered) {
      ASSERT_TRUE(interpret(example.strategy_plan()) == expected) << example.name << ": other sums";
    }
    ++plans();
    plan::Plan mutant = plan;
    std::vector<plan::Rank> broken;
    for (const plan::Mutation& mutation : sample(mutations(plan), random)) {
      for (const plan::Rank rank : broken) mutant.ranks[rank] = plan.ranks[rank];
      broken = changed_ranks(plan, mutation);
      mutate(mutant, mutation);
      if (!verify(mutant, 1).empty() || !verify_saved(plan, mutant, 1).empty()) {
        tally().add(mutation.kind, "caught");
        continue;
      }
      const std::string_view rule = rule_of(plan, mutation, mutant);
      EXPECT_NE(rule, "") << describe(example, plan, mutation)
                          << ": verify accepts it, and no rule says why";
      const Interpretation actual = interpret(mutant);
      EXPECT_TRUE(rule == "other order" ? equal_but_for_rounding(actual, expected)
                                        : actual == expected)
          << describe(example, plan, mutation) << ": verify accepts it by rule '" << rule
          << "', but played it gives other sums";
      tally().add(mutation.kind, std::string(rule));
    }
  }

 private:
  static Tally& tally() {
    static Tally all;
    return all;
  }
  static int& plans() {
    static int count = 0;
    return count;
  }
};

TEST_P(MutationTest, IsCaughtOrAsGoodByARule) {
  std::mt19937 random(test_seed() + static_cast<unsigned>(GetParam()));
  for (const Case& example : cases(GetParam())) {
    if (!test_all() && GetParam() >= 3 && random() % 2 == 0) continue;
    judge(example, random);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, MutationTest, ::testing::Values(1, 2, 3, 4, 5, 7, 8, 13),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace armillary::mutation
