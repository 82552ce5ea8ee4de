// Calls of a run beside the plan: runs are written down here, and each op of rank r lasts a second,
// from its index + r on.
#include "armillary/lab/report/measured.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/core/testing/expect_error.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"

namespace armillary::report {
namespace {

using ::testing::HasSubstr;

plan::Plan small_plan() {
  const plan::Problem problem{.world = 2, .mask = plan::parse_mask("causal", {64, 64})};
  return plan::lower(plan::make_plan(problem, plan::parse_strategy("ring"), plan::Pass::Forward));
}

/// Adds a whole call of the plan: op i of rank r lasts from i + r to i + r + 1 seconds after
/// `begin_s`.
void add_call(recorder::RecordedRun& run, const plan::Plan& plan, int call, int begin_s) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  for (const plan::RankProgram& program : plan.ranks) {
    recorder::Flight& flight = *run.flights[program.rank];
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const plan::Op& op = program.ops[i];
      const std::int64_t start = begin_s + static_cast<std::int64_t>(i) + program.rank;
      recorder::RecordedOp recorded{.number = flight.ops.size(),
                                    .complete = true,
                                    .start_ns = start * kSecond,
                                    .end_ns = (start + 1) * kSecond,
                                    .step = 7,
                                    .call = call,
                                    .pass = std::string(to_string(plan.pass))};
      recorded.op.kind = op.kind;
      recorded.kind = to_string(op.kind);
      recorded.op.index = static_cast<int>(i);
      if (op.is_comm()) {
        recorded.op.peer = op.peer;
        recorded.op.bytes = bytes_of(plan.problem, plan.blocks, program, op);
      }
      flight.ops.push_back(recorded);
    }
  }
}

recorder::RecordedRun empty_run(int world) {
  recorder::RecordedRun run;
  for (int rank = 0; rank < world; ++rank) {
    run.flights.emplace_back(recorder::Flight{.world = world, .rank = rank});
  }
  return run;
}

TEST(Measured, TakesTheLastWholeCall) {
  const plan::Plan plan = small_plan();
  recorder::RecordedRun run = empty_run(2);
  add_call(run, plan, 1, 100);
  add_call(run, plan, 2, 200);
  add_call(run, plan, 3, 300);
  run.flights[1]->ops.back().complete = false;
  // The clock of the second host is half a second late.
  run.flights[1]->base_wall_ns = 500'000'000;
  const MeasuredPass pass = measured_pass("runs/a", run, plan);
  EXPECT_EQ(pass.step, 7);
  EXPECT_EQ(pass.call, 2);
  EXPECT_DOUBLE_EQ(pass.ranks[0][0].start_s, 0);
  EXPECT_DOUBLE_EQ(pass.ranks[0][1].end_s, 2);
  EXPECT_DOUBLE_EQ(pass.ranks[1][0].start_s, 1.5);
  EXPECT_DOUBLE_EQ(pass.end_s, 1.5 + static_cast<double>(plan.ranks[1].ops.size()));
}

TEST(Measured, CallsOfATimeAreThoseOfTheFirstRank) {
  const plan::Plan plan = small_plan();
  recorder::RecordedRun run = empty_run(2);
  for (const int call : {1, 2, 3}) add_call(run, plan, call, 100 * call);
  constexpr std::int64_t kSecond = 1'000'000'000;
  const recorder::RecordedRun second = calls_between(run, 200 * kSecond, 300 * kSecond);
  EXPECT_EQ(measured_pass("runs/a", second, plan).call, 2);
  EXPECT_TRUE(has_whole_call(second, plan));
  EXPECT_FALSE(has_whole_call(calls_between(run, 301 * kSecond, 900 * kSecond), plan));
  EXPECT_FALSE(has_whole_call(empty_run(3), plan));
  run.flights[1].reset();
  EXPECT_FALSE(has_whole_call(run, plan)) << "rank 1 has no file";
}

TEST(Measured, RefusesRunsOfOtherPlans) {
  const plan::Plan plan = small_plan();
  EXPECT_THAT(error_of([&] { measured_pass("runs/a", empty_run(3), plan); }),
              HasSubstr("the run runs/a has 3 ranks, the plan has 2"));
  EXPECT_THAT(error_of([&] { measured_pass("runs/a", empty_run(2), plan); }),
              HasSubstr("no forward call of runs/a has the ops of the plan"));
  recorder::RecordedRun other = empty_run(2);
  add_call(other, plan, 1, 0);
  for (recorder::RecordedOp& op : other.flights[0]->ops) {
    if (op.is_message()) op.op.bytes += 8;
  }
  EXPECT_THAT(error_of([&] { measured_pass("runs/a", other, plan); }),
              HasSubstr("the flags of the run are required"));
  other.flights[1].reset();
  EXPECT_THAT(error_of([&] { measured_pass("runs/a", other, plan); }),
              HasSubstr("rank 1 of runs/a has no flight file"));
}

}  // namespace
}  // namespace armillary::report
