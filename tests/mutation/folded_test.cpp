// folded_test.cpp: the proof of one rank of each class has the verdict of the proof of all ranks.
//
// A plan is changed in the same way on all ranks of a class: the program of the representative is
// mutated, and those of the others are made of it. ARMILLARY_TEST_ALL=1 judges all worlds up to 64
// and every mutation; without it, few worlds and few mutations of each plan, by a printed seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "armillary/plan/mutate.h"
#include "armillary/plan/verify/verify.h"
#include "armillary/plan/verify/verify_folded.h"
#include "tests/mutation/cases.h"

namespace armillary::mutation {
namespace {

/// A problem in which all blocks see each other, in shards of one length.
plan::Problem alike_problem(const StrategySpread& spread, bool causal) {
  const std::int64_t tokens = std::int64_t{2} * spread.world;
  return {.world = spread.world,
          .heads = std::max(4, spread.u + spread.u % 2),
          .kv_heads = 2,
          .head_dim = 2,
          .value_dim = 3,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::parse_mask(causal ? "causal" : "full", {tokens, tokens}),
          .layout = plan::parse_layout(causal ? "striped:1" : "zigzag"),
          .return_lse = causal};
}

/// The plan with the program of `rank` as that of its whole class.
plan::Plan spread_over_class(plan::Plan plan, const plan::Fold& fold, plan::Rank rank) {
  const plan::RankProgram relative = fold.relative(plan.ranks[rank]);
  for (plan::Rank other = 0; other < fold.world(); ++other) {
    if (fold.class_of(other) == fold.class_of(rank)) {
      plan.ranks[other] = fold.absolute(relative, other);
    }
  }
  return plan;
}

/// Mutations of representatives, all of them or some of each kind.
std::vector<plan::Mutation> of_representatives(const plan::Plan& plan, const plan::Fold& fold,
                                               std::mt19937& random) {
  std::vector<plan::Mutation> all = mutations(plan);
  std::erase_if(all, [&](const plan::Mutation& mutation) {
    return fold.representative(fold.class_of(mutation.rank)) != mutation.rank;
  });
  if (test_all()) return all;
  std::shuffle(all.begin(), all.end(), random);
  std::map<plan::MutationKind, int> taken;
  std::erase_if(all, [&](const plan::Mutation& mutation) { return ++taken[mutation.kind] > 1; });
  return all;
}

class FoldedTest : public ::testing::TestWithParam<int> {
 protected:
  static void judge(const Case& example, std::mt19937& random) {
    const plan::Planner planner(example.problem, example.strategy);
    const std::optional<plan::Fold> fold = planner.fold(example.pass);
    if (!fold) return;
    const plan::Plan plan = example.plan();
    const plan::FoldedProof proof = verify_folded(plan, *fold);
    ASSERT_EQ(proof.diagnostics, std::vector<plan::Diagnostic>{}) << example.name;
    EXPECT_EQ(proof.classes, fold->classes()) << example.name;
    for (const plan::Mutation& mutation : of_representatives(plan, *fold, random)) {
      const plan::Plan mutant = spread_over_class(apply(plan, mutation), *fold, mutation.rank);
      const std::vector<plan::Diagnostic> unfolded = verify(mutant, 1);
      const plan::FoldedProof folded = verify_folded(mutant, *fold, 1);
      ASSERT_EQ(unfolded.empty(), folded.diagnostics.empty())
          << example.name << ": " << to_string(mutation) << ": "
          << (unfolded.empty() ? folded.diagnostics : unfolded)[0].text;
      unfolded.empty() ? ++accepted() : ++caught();
      if (folded.classes == fold->classes()) ++of_classes();
    }
    ++plans();
  }
  static void TearDownTestSuite() {
    fmt::print("{} plans; mutants: {} caught, {} as good; {} judged by class\n", plans(), caught(),
               accepted(), of_classes());
    EXPECT_GT(plans(), 0);
    EXPECT_GT(caught(), 0);
    EXPECT_GT(of_classes(), caught() / 2) << "hardly any mutant was judged by class";
  }

 private:
  static int& count(int which) {
    static std::array<int, 4> counts{};
    return counts.at(which);
  }
  static int& plans() { return count(0); }
  static int& caught() { return count(1); }
  static int& accepted() { return count(2); }
  static int& of_classes() { return count(3); }
};

TEST_P(FoldedTest, HasTheVerdictOfAllRanks) {
  const int world = GetParam();
  std::mt19937 random(test_seed() + static_cast<unsigned>(world));
  std::vector<Case> examples;
  for (const StrategySpread& spread : spreads(world)) {
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward, plan::Pass::Replay}) {
      for (const bool lowered : {false, true}) {
        const bool causal = lowered != (pass == plan::Pass::Backward);
        plan::Problem problem = alike_problem(spread, causal);
        examples.push_back({problem, plan::parse_strategy(spread.strategy), pass, lowered,
                            fmt::format("world {}, {}, {}{}", world, spread.strategy,
                                        to_string(pass), lowered ? ", lowered" : "")});
      }
    }
  }
  // Large worlds have many strategies, whose plans are large.
  constexpr std::size_t kSampled = 48;
  if (!test_all() && world > 8) {
    std::shuffle(examples.begin(), examples.end(), random);
    examples.resize(std::min(examples.size(), world > 16 ? kSampled / 8 : kSampled));
  }
  for (const Case& one : examples) {
    judge(one, random);
    if (HasFatalFailure()) return;
  }
}

std::vector<int> worlds() {
  if (!test_all()) return {2, 4, 6, 12, 16, 64};
  std::vector<int> all;
  for (int world = 2; world <= 64; ++world) all.push_back(world);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Worlds, FoldedTest, ::testing::ValuesIn(worlds()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace armillary::mutation
