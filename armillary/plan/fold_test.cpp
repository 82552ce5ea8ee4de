// fold_test.cpp: classes of ranks and the rotations between them, by strategy; proofs of large
// worlds by class, and what they refuse. That verdicts are those of all ranks is in
// tests/mutation/folded_test.cpp.
#include "armillary/plan/fold.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "armillary/core/error.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/verify/verify_folded.h"
#include "tests/sanitized.h"

namespace armillary::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Problem alike_problem(int world, const char* mask = "full", const char* layout = "zigzag") {
  const std::int64_t tokens = std::int64_t{4} * world;
  return {.world = world,
          .heads = 8,
          .kv_heads = 2,
          .head_dim = 4,
          .value_dim = 4,
          .mask = parse_mask(mask, {tokens, tokens}),
          .layout = parse_layout(layout)};
}

std::optional<Fold> fold_of(const Problem& problem, const char* strategy, Pass pass) {
  return Planner(problem, parse_strategy(strategy)).fold(pass);
}

TEST(Fold, CountsClasses) {
  for (const auto& [strategy, classes] : {std::pair{"ring", 1},
                                          {"usp:u=4", 4},
                                          {"tokenring", 1},
                                          {"tokenring:nodes=4", 1},
                                          {"double_ring:window=8", 1},
                                          {"attention2d:rows=8", 8},
                                          {"startrail:c=1", 1},
                                          {"startrail:c=4", 16},
                                          {"startrail:c=8,placement=p2p_intra", 8},
                                          {"grid:rk=8,rq=4,u=2", 2}}) {
    for (const Pass pass : {Pass::Forward, Pass::Backward, Pass::Replay}) {
      const std::optional<Fold> fold = fold_of(alike_problem(64), strategy, pass);
      ASSERT_TRUE(fold.has_value()) << strategy;
      EXPECT_EQ(fold->classes(), classes) << strategy;
    }
  }
}

TEST(Fold, NeedsBlocksThatSeeEachOtherAndShardsOfOneLength) {
  EXPECT_FALSE(fold_of(alike_problem(8, "causal"), "ring", Pass::Forward));
  EXPECT_TRUE(fold_of(alike_problem(8, "causal", "striped:1"), "ring", Pass::Forward));
  EXPECT_FALSE(fold_of(alike_problem(16), "startrail:c=2", Pass::Forward));
  EXPECT_FALSE(fold_of(alike_problem(8), "attention2d:rows=2", Pass::Forward));
  Problem uneven = alike_problem(8);
  uneven.mask = full_mask({33, 33});
  EXPECT_FALSE(fold_of(uneven, "ring", Pass::Forward));
}

/// Rotations are a group that moves every rank, and takes the representative to all of its class.
TEST(Fold, RotationsReachEachRankOfAClassOnce) {
  for (const char* strategy : {"ring", "usp:u=4", "attention2d:rows=4", "grid:rk=2,rq=4,u=2",
                               "grid:nest=rk-u-rq,rk=4,rq=2,u=2"}) {
    const Fold fold = fold_of(alike_problem(16), strategy, Pass::Forward).value();
    std::set<Rank> reached;
    for (Rank rank = 0; rank < 16; ++rank) {
      const Fold::Rotation rotation = fold.rotation_to(rank);
      const Rank from = fold.representative(fold.class_of(rank));
      EXPECT_EQ(fold.rotated(from, rotation), rank) << strategy;
      EXPECT_EQ(fold.rotated(rank, fold.inverse(rotation)), from) << strategy;
      for (Rank first = 0; first < 16; ++first) {
        const int together = fold.moved_together(first, rotation);
        ASSERT_GE(together, 1);
        for (Rank next = first; next < first + together; ++next) {
          EXPECT_EQ(fold.rotated(next, rotation), fold.rotated(first, rotation) + next - first)
              << strategy;
        }
      }
      reached.insert(rank);
    }
    EXPECT_EQ(reached.size(), 16U);
  }
}

TEST(Fold, AProgramIsThatOfItsClass) {
  const Planner planner(alike_problem(16), parse_strategy("grid:rk=2,rq=4,u=2"));
  const Fold fold = planner.fold(Pass::Backward).value();
  for (Rank rank = 0; rank < 16; ++rank) {
    const RankProgram program = planner.program(Pass::Backward, rank);
    const RankProgram relative = fold.relative(program);
    EXPECT_EQ(relative, fold.relative(planner.program(Pass::Backward,
                                                      fold.representative(fold.class_of(rank)))));
    EXPECT_EQ(fold.relative(fold.absolute(relative, rank)), relative);
  }
}

/// Worlds whose programs cannot be made together; `compared` is a sample for those with many ops.
TEST(FoldedProof, ProvesLargeWorlds) {
  if (sanitizer_samples()) GTEST_SKIP() << "[SKIP] minutes under a sanitizer";
  for (const char* strategy :
       {"attention2d:rows=64", "grid:rk=64,rq=32,u=2", "usp:u=8", "startrail:c=64"}) {
    const Planner planner(alike_problem(4096), parse_strategy(strategy));
    const ProgramOf program = [&](Pass pass, Rank rank) {
      return lower(planner.problem(), planner.blocks(), planner.program(pass, rank));
    };
    for (const FoldedProof& proof :
         verify_folded(planner, {Pass::Forward, Pass::Backward}, program)) {
      EXPECT_EQ(proof.diagnostics, std::vector<Diagnostic>{}) << strategy;
      EXPECT_LT(proof.classes, 65) << strategy;
      EXPECT_GE(proof.compared, 16) << strategy;
    }
  }
}

TEST(FoldedProof, FindsWhatIsWrongOnAllRanks) {
  const Planner planner(alike_problem(32), parse_strategy("ring"));
  const ProgramOf dropped = [&](Pass pass, Rank rank) {
    RankProgram program = planner.program(pass, rank);
    std::erase_if(program.ops, [](const Op& op) { return attends(op) && op.step == 9; });
    return program;
  };
  const FoldedProof proof = verify_folded(planner, {Pass::Forward}, dropped)[0];
  ASSERT_FALSE(proof.diagnostics.empty());
  EXPECT_EQ(proof.diagnostics[0].rule, "complete");
  EXPECT_THAT(proof.diagnostics[0].text, HasSubstr("it stands for all ranks of its class"));
}

TEST(FoldedProof, RefusesRanksThatAreNotAlike) {
  const Planner planner(alike_problem(32), parse_strategy("ring"));
  const ProgramOf other = [&](Pass pass, Rank rank) {
    RankProgram program = planner.program(pass, rank);
    if (rank == 17) program.ops.pop_back();
    return program;
  };
  EXPECT_THROW(verify_folded(planner, {Pass::Forward}, other), PlanError);
}

/// Ranks of which no two are alike: startrail with groups of other sizes than its teams, masks that
/// tell ranks apart. The verdict is that of verify(), also for a change of one rank.
TEST(FoldedProof, ProvesEachRankWhereNoneAreAlike) {
  for (const auto& [problem, strategy] : {std::pair(alike_problem(32), "startrail:c=2"),
                                          std::pair(alike_problem(128), "startrail:c=4"),
                                          std::pair(alike_problem(32, "causal"), "ring")}) {
    const Planner planner(problem, parse_strategy(strategy));
    const int world = problem.world;
    for (const bool broken : {false, true}) {
      const ProgramOf make = [&](Pass pass, Rank rank) {
        RankProgram program =
            lower(planner.problem(), planner.blocks(), planner.program(pass, rank));
        if (broken && rank == 17) program.ops.pop_back();
        return program;
      };
      const std::vector<FoldedProof> proofs =
          verify_folded(planner, {Pass::Forward, Pass::Backward}, make);
      for (const FoldedProof& proof : proofs) {
        EXPECT_EQ(proof.diagnostics.empty(), !broken) << strategy;
        EXPECT_EQ(proof.classes, world) << strategy;
        EXPECT_EQ(proof.compared, world) << strategy;
      }
      std::vector<Plan> plans = make_plans(problem, planner.strategy(), {Pass::Forward});
      for (RankProgram& program : plans[0].ranks) program = make(Pass::Forward, program.rank);
      EXPECT_EQ(proofs[0].diagnostics, verify(plans[0])) << strategy;
    }
  }
}

/// The refusal of a forward pass; empty if it is proved, by classes alone.
std::string refusal(const Problem& problem, const char* strategy) {
  const Planner planner(problem, parse_strategy(strategy));
  try {
    verify_folded(
        planner, {Pass::Forward}, [&](Pass pass, Rank rank) { return planner.program(pass, rank); },
        20, 0);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(FoldedProof, NamesTheNearestChoice) {
  EXPECT_THAT(refusal(alike_problem(32, "causal"), "ring"),
              AllOf(HasSubstr("ring forward on 32 ranks, layout zigzag: no two ranks are alike"),
                    HasSubstr("nearest: layout striped:1")));
  EXPECT_THAT(refusal(alike_problem(64), "startrail:c=2"), HasSubstr("nearest: startrail:c=4"));
  EXPECT_THAT(refusal(alike_problem(36), "startrail:c=3"), HasSubstr("nearest: startrail:c=6"));
  EXPECT_THAT(refusal(alike_problem(32), "startrail:c=2"), HasSubstr("nearest: ring"));
  EXPECT_THAT(refusal(alike_problem(8), "attention2d:rows=2"), HasSubstr("nearest: ring"));
  Problem uneven = alike_problem(8);
  uneven.mask = full_mask({33, 33});
  EXPECT_THAT(refusal(uneven, "ring"), HasSubstr("nearest: 32 tokens"));
  EXPECT_THAT(refusal(alike_problem(32, "window:left=8,right=0"), "ring"),
              HasSubstr("nearest: mask full"));
  EXPECT_EQ(refusal(alike_problem(64), "startrail:c=4"), "");
}

}  // namespace
}  // namespace armillary::plan
