// backward_test.cpp: rules of backward plans: the gradient of attention sinks is summed at `delta`,
// and dK and dV are two separate sums.
#include <gtest/gtest.h>

#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/testing/broken_plan.h"

namespace armillary::plan {
namespace {

TEST(VerifyTwice, NoRowPassesDeltaTwice) {
  expect_first(ring_backward(), [](Plan& p) { repeat(p, 0, 4); },
               {0, 5, "twice", "query block 0 passes delta twice: delta{0} heads 0-4"});
}

TEST(VerifyTwice, NoHeadOfARowPassesDeltaTwice) {
  Plan good = ring_backward();
  const auto cut = [](Plan& p, int first_heads_end, int last_heads_begin) {
    repeat(p, 1, 4);
    for (View& view : ops(p, 1)[4].views) view.heads.end = first_heads_end;
    for (View& view : ops(p, 1)[5].views) view.heads.begin = last_heads_begin;
  };
  cut(good, 1, 1);
  EXPECT_EQ(verify(good), std::vector<Diagnostic>{}) << "head 0, then heads 1-4";
  expect_first(ring_backward(), [&](Plan& p) { cut(p, 2, 1); },
               {1, 5, "twice", "query block 1 passes delta twice: delta{1} heads 1-4"});
}

/// Rank 0 sends its rows of dout, out and lse to rank 1, which makes their delta too.
TEST(VerifyTwice, NoRowPassesDeltaOnTwoRanks) {
  const auto share = [](Plan& p) {
    const int dout = add_tile_like(p, 1, 5);
    const int out = add_tile_like(p, 1, 3);
    const int lse = add_tile_like(p, 1, 4);
    const int delta = add_tile_like(p, 1, 6);
    for (const int id : {dout, out, lse, delta}) tile(p, 1, id).blocks = {0};
    for (const auto& [from, to] : {std::pair(5, dout), std::pair(3, out), std::pair(4, lse)}) {
      insert(p, 0, 0, {.kind = OpKind::Send, .lane = 2, .peer = 1, .views = {whole(p, 0, from)}});
      insert(p, 1, 0, {.kind = OpKind::Recv, .lane = 2, .peer = 0, .views = {whole(p, 1, to)}});
    }
    return Views{whole(p, 1, delta), whole(p, 1, dout), whole(p, 1, out), whole(p, 1, lse)};
  };
  Plan good = ring_backward();
  share(good);
  EXPECT_EQ(verify(good), std::vector<Diagnostic>{}) << "before the second delta";
  Plan plan = ring_backward();
  const Views views = share(plan);
  insert(plan, 1, 3, {.kind = OpKind::Delta, .views = views});
  const std::vector<Diagnostic> diagnostics = verify(plan);
  ASSERT_EQ(diagnostics.size(), 1U);
  EXPECT_EQ(diagnostics[0].rule, "twice");
  EXPECT_EQ(diagnostics[0].text, "query block 0 passes delta twice: delta{0} heads 0-4");
}

/// Also rows that see no key, whose delta no op reads.
TEST(VerifyComplete, EveryRowPassesDelta) {
  Problem problem = small_problem(2);
  problem.mask = parse_mask("bands:0-4/0-8/..", {.q = 8, .kv = 8});
  expect_first(make_plan(problem, {.name = "ring"}, Pass::Backward),
               [](Plan& p) {
                 std::erase_if(ops(p, 1), [](const Op& op) { return op.kind == OpKind::Delta; });
               },
               {-1, -1, "complete", "query block 1 heads 0-4 passes delta on no rank"});
}

/// A result is made from partials without a sink, so it may be made any number of times.
TEST(VerifyForward, ARowMayPassFinishTwice) {
  Plan plan = ring_forward();
  repeat(plan, 0, 8);
  EXPECT_EQ(verify(plan), std::vector<Diagnostic>{});
}

/// Place of the n-th add of the plan.
int add_at(Plan& plan, int n) {
  int at = 0;
  for (;; ++at) {
    if (ops(plan, 0)[at].kind == OpKind::Add && n-- == 0) return at;
  }
}

TEST(VerifyGradients, SumsOfDKAndDVAreIndependent) {
  EXPECT_EQ(verify(gradients_apart()), std::vector<Diagnostic>{});
}

TEST(VerifyGradients, EachMustBeWhole) {
  Plan plan = gradients_apart();
  const int last = static_cast<int>(ops(plan, 0).size()) - 1;
  expect_first(gradients_apart(), [](Plan& p) { drop(p, 0, add_at(p, 0)); },
               {0, last - 2, "complete", "partial dk{0} heads 0-1 lacks query block 0"});
  expect_first(gradients_apart(), [](Plan& p) { drop(p, 0, add_at(p, 1)); },
               {0, last - 1, "complete", "partial dv{0} heads 0-1 lacks query block 0"});
}

TEST(VerifyGradients, NeitherCountsAPairTwice) {
  Plan plan = gradients_apart();
  const int adds[] = {add_at(plan, 0), add_at(plan, 1)};
  const auto twice = [&](int at, const char* message) {
    expect_first(gradients_apart(), [&](Plan& p) { repeat(p, 0, at); },
                 {0, at + 1, "twice", message});
  };
  twice(adds[0], "partial dk{0} heads 0-1 and partial dk{0} heads 0-1 share a pair");
  twice(adds[1], "partial dv{0} heads 0-1 and partial dv{0} heads 0-1 share a pair");
  // Once more by the kernel, with new accumulators for dq and for one of dk and dv: the other one
  // has the pair already.
  for (const int i : {0, 1}) {
    SCOPED_TRACE(i == 0 ? "dk" : "dv");
    expect_first(gradients_apart(),
                 [&](Plan& p) {
                   const std::size_t other =
                       i == 0 ? AttendGradOperand::kDV : AttendGradOperand::kDK;
                   Op again = ops(p, 0)[adds[0] - 1];
                   const int dq = add_tile_like(p, 0, again.views[AttendGradOperand::kDQ].tile);
                   const int init = add_tile_like(p, 0, again.views[other].tile);
                   again.views[AttendGradOperand::kDQ].tile = dq;
                   again.views[other].tile = init;
                   insert(p, 0, adds[0], again);
                   for (const int id : {dq, init}) {
                     insert(p, 0, adds[0], {.kind = OpKind::Clear, .views = {whole(p, 0, id)}});
                   }
                 },
                 {0, adds[0] + 2, "twice", "query block 0 and key block 0 are counted twice"});
  }
}

}  // namespace
}  // namespace armillary::plan
