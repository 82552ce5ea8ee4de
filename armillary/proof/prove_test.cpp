#include "armillary/proof/prove.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "armillary/plan/verify/verify.h"
#include "armillary/proof/testing/changed_programs.h"

namespace armillary::proof {
namespace {

using testing::HasSubstr;

plan::Planner ring_of(int world) {
  return {{.world = world,
           .heads = 2,
           .kv_heads = 2,
           .head_dim = 8,
           .value_dim = 8,
           .mask = plan::causal_mask({16, 16}, plan::Align::Start)},
          plan::parse_strategy("ring")};
}

std::array<PassProof, kPasses.size()> prove_all(const plan::Planner& planner,
                                                const ProgramSource& source = {}) {
  return {prove(planner, kPasses[0], source), prove(planner, kPasses[1], source),
          prove(planner, kPasses[2], source)};
}

TEST(Prove, NamesTheProgramsThatRun) {
  const plan::Planner planner = ring_of(4);
  const Digest blocks = digest_of(planner.blocks());
  for (const plan::Pass pass : kPasses) {
    const PassProof proof = prove(planner, pass);
    EXPECT_EQ(proof.wrong, "");
    ASSERT_EQ(proof.programs.size(), 4U);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(proof.programs[rank], digest_of(runnable(planner, pass, rank), blocks));
    }
  }
  EXPECT_EQ(first_wrong(planner, prove_all(planner)), "");
}

TEST(Prove, SaysWhatIsWrong) {
  const ProgramSource broken = changed_programs([](plan::Pass pass, plan::RankProgram& program) {
    if (pass == plan::Pass::Backward && program.rank == 2) program.ops.pop_back();
  });
  const plan::Planner planner = ring_of(4);
  EXPECT_EQ(prove(planner, plan::Pass::Forward, broken).wrong, "");
  EXPECT_THAT(prove(planner, plan::Pass::Backward, broken).wrong,
              HasSubstr("ring backward: rank "));
  EXPECT_EQ(first_wrong(planner, prove_all(planner, broken), broken),
            prove(planner, plan::Pass::Backward, broken).wrong);
}

TEST(Prove, PassesMustAgreeInWhatIsSaved) {
  const plan::Planner planner = ring_of(2);
  const std::array<PassProof, kPasses.size()> passes = prove_all(planner);
  for (const plan::Pass wrong : {plan::Pass::Backward, plan::Pass::Replay}) {
    const ProgramSource changed =
        changed_programs([&](plan::Pass pass, plan::RankProgram& program) {
          if (pass == wrong && program.rank == 1) std::swap(program.saved[1], program.saved[2]);
        });
    EXPECT_EQ(first_wrong(planner, passes, changed),
              fmt::format("rank 1: {} does not find what forward saves", to_string(wrong)));
  }
}

TEST(ProgramSource, OfNoneIsTheStrategyLowered) {
  const plan::Planner planner = ring_of(2);
  EXPECT_EQ(program_of({}, planner, plan::Pass::Forward, 1),
            runnable(planner, plan::Pass::Forward, 1));
  const ProgramSource empty =
      changed_programs([](plan::Pass, plan::RankProgram& program) { program.ops.clear(); });
  EXPECT_TRUE(program_of(empty, planner, plan::Pass::Forward, 1).ops.empty());
}

}  // namespace
}  // namespace armillary::proof
