// joint_test.cpp: joint ops of a vocabulary of one: every rank of a group comes to each of them, in
// one order; they are printed with their ranks and come back from JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/program/check.h"
#include "armillary/plan/program/grid.h"
#include "armillary/plan/program/mutate.h"
#include "armillary/plan/program/program_json.h"

namespace armillary::plan {
namespace {

constexpr Operand kMeetingOperands[] = {{.name = "sum", .access = Access::Update}};
constexpr KindWord kMeetingKinds[] = {
    kSendWord, kRecvWord,
    kind_word(
        {.name = "sum", .operands = kMeetingOperands, .form = "sum(% over @)", .joint = true})};
constexpr TensorWord kMeetingTensors[] = {{.name = "t"}};
constexpr SideWord kMeetingSides[] = {{.name = "t", .plural = "ts"}};
constexpr Vocabulary kMeetingWords{
    .name = "meeting", .kinds = kMeetingKinds, .tensors = kMeetingTensors, .sides = kMeetingSides};
constexpr Kind kSumOverRanks{2};

const Measures kMeetingMeasures(kMeetingWords, 1, {TensorMeasure{}}, {{1, 1}});

/// A program of two tiles, of blocks 0 and 1, in slots of their own. Groups: all three ranks, and
/// ranks 0 and 1.
RankProgram meeting_program(Rank rank) {
  RankProgram program{.words = &kMeetingWords,
                      .rank = rank,
                      .slots = {{.bytes = 4}, {.bytes = 4}},
                      .tiles = {{.heads = {0, 1}, .blocks = {0}, .slot = 0},
                                {.heads = {0, 1}, .blocks = {1}, .slot = 1}},
                      .groups = {{0, 1, 2}}};
  if (rank < 2) program.groups.push_back({0, 1});
  return program;
}

/// A sum of tile `tile` on a lane, over a group.
Op meeting_op(int tile, Lane lane = 1, int group = 0, int step = 0) {
  return {.kind = kSumOverRanks,
          .lane = lane,
          .step = step,
          .peer = group,
          .views = {{tile, {0, 1}, {tile}}}};
}

std::vector<RankProgram> meetings() {
  std::vector<RankProgram> ranks;
  for (const Rank rank : {0, 1, 2}) {
    ranks.push_back(meeting_program(rank));
    ranks.back().ops = {meeting_op(0), meeting_op(1)};
    if (rank < 2) ranks.back().ops.push_back(meeting_op(0, 2, 1));
  }
  return ranks;
}

std::string meeting_fault(const std::function<void(std::vector<RankProgram>&)>& change) {
  std::vector<RankProgram> ranks = meetings();
  change(ranks);
  Diagnostics diagnostics(20);
  const bool holds = check(World{kMeetingMeasures, ranks}, diagnostics).has_value();
  const std::vector<Diagnostic> faults = diagnostics.take();
  EXPECT_EQ(holds, faults.empty());
  return faults.empty() ? "" : faults[0].rule + ": " + faults[0].text;
}

TEST(JointOps, AreActionsOfAllRanksAtOnce) {
  const std::vector<RankProgram> ranks = meetings();
  Diagnostics diagnostics(20);
  const auto actions = check(World{kMeetingMeasures, ranks}, diagnostics);
  ASSERT_TRUE(actions);
  ASSERT_EQ(actions->size(), 8U);
  std::vector<std::size_t> sizes;
  for (std::size_t a = 0; a < actions->size(); ++a) {
    EXPECT_FALSE((*actions)[a].is_message());
    if (a > 0 && (*actions)[a].joint == (*actions)[a - 1].joint) {
      ++sizes.back();
    } else {
      sizes.push_back(1);
    }
  }
  EXPECT_THAT(sizes, testing::UnorderedElementsAre(3, 3, 2));
}

TEST(JointOps, MustMeet) {
  EXPECT_EQ(meeting_fault([](auto&) {}), "");
  EXPECT_EQ(meeting_fault([](auto& ranks) { ranks[2].ops.pop_back(); }),
            "match: rank 2 does not come to this sum");
  EXPECT_EQ(meeting_fault([](auto& ranks) { ranks[1].ops[2].peer = 0; }),
            "match: rank 1 does not come to this sum");
}

/// Two lanes whose ops wait for each other in other orders on two ranks.
TEST(JointOps, InCrossedOrdersAreADeadlock) {
  const auto cross = [](std::vector<RankProgram>& ranks) {
    for (RankProgram& program : ranks) {
      program.ops = {meeting_op(0)};
      const Op other = meeting_op(0, 2, 1);
      if (program.rank == 0) program.ops.push_back(other);
      if (program.rank == 1) program.ops.insert(program.ops.begin(), other);
    }
  };
  EXPECT_THAT(meeting_fault(cross), testing::HasSubstr("order: deadlock: sum waits for rank"));
}

TEST(JointOps, AreWellFormed) {
  EXPECT_EQ(meeting_fault([](auto& ranks) { ranks[0].ops[0].lane = kCompute; }),
            "well_formed: sum on the compute lane");
  EXPECT_EQ(meeting_fault([](auto& ranks) { ranks[0].ops[0].peer = 2; }),
            "well_formed: sum in group 2 of 2");
  EXPECT_EQ(meeting_fault([](auto& ranks) {
              ranks[2].groups[0] = {0, 1};
            }),
            "well_formed: group 0 is of ranks 0,1; ranks that ascend below 3, this one among them, "
            "are required");
  EXPECT_THAT(meeting_fault([](auto& ranks) {
                ranks[0].groups[1] = {1, 0};
              }),
              testing::HasSubstr("well_formed: group 1 is of ranks 1,0"));
}

TEST(JointOps, ArePrintedAndComeBackFromJson) {
  const std::vector<RankProgram> ranks = meetings();
  EXPECT_THAT(to_string(World{kMeetingMeasures, ranks}),
              testing::HasSubstr("sum(t0 over r{0-2}) sum(t1 over r{0-2})"));
  for (const RankProgram& program : ranks) {
    EXPECT_EQ(parse_program_json(to_json(program), kMeetingWords), program);
  }
}

TEST(JointOps, GoOverOtherGroupsInMutants) {
  const std::vector<RankProgram> ranks = meetings();
  int count = 0;
  for (const Mutation& mutation : mutations(World{kMeetingMeasures, ranks})) {
    if (mutation.kind != MutationKind::OtherPeer) continue;
    ++count;
    std::vector<RankProgram> mutant = ranks;
    mutate(kMeetingMeasures, mutant, mutation);
    Diagnostics diagnostics(1);
    EXPECT_FALSE(check(World{kMeetingMeasures, mutant}, diagnostics)) << mutation.op;
  }
  EXPECT_EQ(count, 6);
}

TEST(JointOps, AreRefusedByReadersOfMessages) {
  const std::vector<RankProgram> ranks = meetings();
  EXPECT_THAT([&] { expect_no_joint_ops("run", ranks[1]); },
              testing::ThrowsMessage<InvalidArgument>(
                  "run: rank 1 has sum, an op of a group of ranks; sends and receives are "
                  "required"));
  RankProgram without = ranks[1];
  without.ops.clear();
  expect_no_joint_ops("run", without);
}

}  // namespace
}  // namespace armillary::plan
