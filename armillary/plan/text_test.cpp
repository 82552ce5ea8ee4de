// text_test.cpp: the printed grid of a plan: rows of steps, columns of ranks, long rows wrapped,
// and the mark of a diagnostic; each picture is compared as a whole.
#include "armillary/plan/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/plan/strategies/strategy.h"

namespace armillary::plan {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

Plan plan_of(const char* strategy, const char* mask, Pass pass, int world = 4) {
  const Problem problem{.world = world,
                        .heads = 4,
                        .kv_heads = 2,
                        .mask = parse_mask(mask, {.q = 16, .kv = 16}),
                        .layout = {}};
  return make_plan(problem, parse_strategy(strategy), pass);
}

TEST(Text, ShowsStepsAsRowsAndRanksAsColumns) {
  EXPECT_EQ(to_string(plan_of("ring", "full", Pass::Forward, 2)),
            "          rank 0                           rank 1\n"
            "step 0    kv0>r1 kv1<r1 clear(o0) q0*kv0   kv1>r0 kv0<r0 clear(o1) q1*kv1\n"
            "step 1    q0*kv1 finish(out0)              q1*kv0 finish(out1)\n");
}

TEST(Text, MarksTheOpOfADiagnostic) {
  const Plan plan = plan_of("ring", "full", Pass::Forward, 2);
  const int last = static_cast<int>(plan.ranks[1].ops.size()) - 1;
  const Diagnostic at{.rank = 1, .op = last, .rule = "complete", .text = "key block 1 is missing"};
  EXPECT_THAT(to_string(plan, &at),
              EndsWith("finish(out1)   <-- HERE rank 1: key block 1 is missing\n"));
}

TEST(Text, MarksTheEndWithoutAnOp) {
  const Plan plan = plan_of("ring", "full", Pass::Forward, 1);
  Diagnostic at{.rank = 0, .op = -1, .rule = "complete", .text = "out is missing"};
  EXPECT_THAT(to_string(plan, &at), EndsWith("\nend   <-- HERE rank 0: out is missing\n"));
  at.rank = -1;
  EXPECT_THAT(to_string(plan, &at), EndsWith("\nend   <-- HERE out is missing\n"));
}

TEST(Text, ShowsIdleRanksAsADot) {
  EXPECT_THAT(to_string(plan_of("ring", "causal", Pass::Forward)), HasSubstr("step 1    .    "));
}

TEST(Text, JoinsSendsOfTheSame) {
  EXPECT_THAT(to_string(plan_of("allgather", "full", Pass::Forward)), HasSubstr("kv0>r{1-3} "));
}

TEST(Text, ShowsHeadsThatAreNotAll) {
  const std::string text = to_string(plan_of("ulysses", "full", Pass::Forward, 2));
  EXPECT_THAT(text, HasSubstr("q0[2:4]>r1 q1[0:2]<r1 copy(q0[0:2])"));
  EXPECT_THAT(text, HasSubstr("q{0,1}[0:2]*kv{0,1}[0:1]"));
}

TEST(Text, ShowsGradients) {
  const std::string text = to_string(plan_of("ring", "full", Pass::Backward, 2));
  EXPECT_THAT(text, HasSubstr("delta0 "));
  EXPECT_THAT(text, HasSubstr("grad(q0*kv0)"));
  EXPECT_THAT(text, HasSubstr("dkv1>r1 dkv0<r1"));
  EXPECT_THAT(text, HasSubstr("copy(dkv0)"));
}

TEST(Text, WrapsLongRowsInsideTheirColumn) {
  const std::string text = to_string(plan_of("allgather", "full", Pass::Backward));
  EXPECT_THAT(text, HasSubstr("\n          "));
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos;
       begin = end + 1, end = text.find('\n', begin)) {
    EXPECT_LE(end - begin, 170U) << text.substr(begin, end - begin);
    EXPECT_NE(text[end - 1], ' ') << text.substr(begin, end - begin);
  }
}

/// A column of one rank is 48 wide, to the letter: nine words of 4 are 44, ten would be 49.
TEST(Text, FillsLinesToTheirWidth) {
  const Op recv{.kind = OpKind::Recv, .lane = 1, .peer = 1};
  const std::string indent(10, ' ');
  const std::string eight = "?<r1 ?<r1 ?<r1 ?<r1 ?<r1 ?<r1 ?<r1 ?<r1";
  Plan plan;
  plan.ranks.resize(1);
  plan.ranks[0].words = &attention_words();
  plan.ranks[0].ops = std::vector<Op>(10, recv);
  EXPECT_EQ(to_string(plan), indent + "rank 0\nstep 0    " + eight + " ?<r1\n" + indent + "?<r1\n");
  plan.ranks[0].ops[0] = {.kind = OpKind::Clear};
  plan.ranks[0].ops.pop_back();
  EXPECT_EQ(to_string(plan), indent + "rank 0\nstep 0    clear(?) " + eight + "\n") << "48 fit";
}

TEST(Text, MarksTheEndForARankThatIsNotThere) {
  const Diagnostic at{.rank = 7, .op = 0, .rule = "well_formed", .text = "no rank 7"};
  EXPECT_THAT(to_string(plan_of("ring", "full", Pass::Forward, 2), &at),
              EndsWith("\nend   <-- HERE rank 7: no rank 7\n"));
}

TEST(Text, PrintsBrokenPlansToo) {
  Plan plan = plan_of("ring", "full", Pass::Forward, 2);
  plan.ranks[0].ops[0].views[0].tile = 99;
  plan.ranks[0].ops[1].views.clear();
  plan.ranks[1].ops[0].peer = -5;
  const std::string text = to_string(plan);
  EXPECT_THAT(text, HasSubstr("?>r1 ?<r1"));
  EXPECT_THAT(text, HasSubstr("k1>r-5"));
}

TEST(Text, GivesTheWordsOfTheGridWithTheirOps) {
  const Plan plan = plan_of("ring", "full", Pass::Forward, 2);
  const std::vector<GridWord> words = grid_words(plan, 0);
  ASSERT_FALSE(words.empty());
  EXPECT_EQ(words[0].text, "kv0>r1");
  EXPECT_EQ(words[0].ops.size(), 2U) << "a send of K and one of V";
  std::size_t ops = 0;
  for (const GridWord& word : words) {
    for (const int op : word.ops) EXPECT_EQ(plan.ranks[0].ops[op].step, word.step);
    ops += word.ops.size();
  }
  EXPECT_EQ(ops, plan.ranks[0].ops.size());
}

TEST(Text, PrintsOneOp) {
  const Plan plan = plan_of("ring", "full", Pass::Forward, 2);
  EXPECT_EQ(to_string(plan, 0, plan.ranks[0].ops[0]), "k0>r1");
}

}  // namespace
}  // namespace armillary::plan
