// Which candidates are measured, what a measurement does to an answer, and one run on threads.
#include "armillary/lab/calibrate/measured_tune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/core/testing/expect_error.h"
#include "armillary/lab/bench/thread_ranks.h"
#include "armillary/predict/tune/search.h"

namespace armillary::calibrate {
namespace {

using ::testing::ElementsAre;

tune::Evaluation evaluation(const std::string& strategy, double simulated_s,
                            tune::Outcome outcome) {
  tune::Evaluation evaluation{.candidate = {.strategy = plan::parse_strategy(strategy),
                                            .layout = plan::parse_layout("zigzag")},
                              .outcome = outcome,
                              .estimate_s = 1};
  evaluation.times.total_s = simulated_s;
  return evaluation;
}

/// Two variants of ring, one of usp, one on other devices, one that is only estimated, but near,
/// and one that does not fit.
tune::Answer answer() {
  tune::Answer answer;
  answer.evaluations = {evaluation("ring", 1, tune::Outcome::Chosen),
                        evaluation("ring", 1.1, tune::Outcome::Slower),
                        evaluation("usp:u=2", 1.2, tune::Outcome::Slower),
                        evaluation("ulysses", 1.3, tune::Outcome::Slower),
                        evaluation("tokenring", 0, tune::Outcome::Estimated),
                        evaluation("allgather", 0, tune::Outcome::TooLarge)};
  answer.evaluations[3].candidate.placement.stride = 2;
  return answer;
}

TEST(MeasuredTune, TakesOtherStrategiesBeforeVariants) {
  EXPECT_THAT(worth_measuring(answer(), 1), ElementsAre(0));
  EXPECT_THAT(worth_measuring(answer(), 2), ElementsAre(0, 2));
  EXPECT_THAT(worth_measuring(answer(), 3), ElementsAre(0, 2, 4));
  EXPECT_THAT(worth_measuring(answer(), 9), ElementsAre(0, 1, 2, 4));
  tune::Answer far = answer();
  far.evaluations[4].estimate_s = 1.6;
  EXPECT_THAT(worth_measuring(far, 3), ElementsAre(0, 1, 2));
}

TEST(MeasuredTune, TakesOtherLayoutsBeforeOtherVariants) {
  tune::Answer reply = answer();
  reply.evaluations.push_back(reply.evaluations[1]);
  reply.evaluations.back().candidate.layout = plan::parse_layout("striped:1");
  reply.evaluations.back().times.total_s = 1.4;
  EXPECT_THAT(worth_measuring(reply, 3), ElementsAre(0, 2, 4));
  EXPECT_THAT(worth_measuring(reply, 4), ElementsAre(0, 2, 4, 6));
}

TEST(MeasuredTune, TakesAPlanWithTwoNamesOnce) {
  tune::Answer reply = answer();
  reply.evaluations[2].times = reply.evaluations[0].times;
  reply.evaluations[4].estimate_s = 1.6;
  EXPECT_THAT(worth_measuring(reply, 2), ElementsAre(0, 1))
      << "usp is ring, so a variant goes first";
}

TEST(MeasuredTune, ChoosesTheFastestThatWasMeasured) {
  const tune::Answer reply = with_measured(answer(), {0, 2}, {3.0, 2.0});
  EXPECT_EQ(to_string(reply.choice().candidate.strategy), "usp:u=2");
  EXPECT_EQ(reply.choice().outcome, tune::Outcome::Chosen);
  EXPECT_EQ(reply.choice().measured_s, 2.0);
  EXPECT_EQ(reply.evaluations[1].outcome, tune::Outcome::Slower);
  EXPECT_EQ(reply.evaluations[1].measured_s, 3.0);
  EXPECT_EQ(reply.evaluations[2].measured_s, 0);
  EXPECT_EQ(tune::parse_answer(to_json(reply)), reply) << "it is kept in the cache";
}

TEST(MeasuredTune, RunsLayersOnRanks) {
  const std::int64_t tokens = 64;
  tune::Question question{.problem = {.world = 2,
                                      .heads = 2,
                                      .kv_heads = 2,
                                      .mask = plan::parse_mask("causal", {tokens, tokens}),
                                      .layout = plan::parse_layout("zigzag")},
                          .cluster = {}};
  tune::Answer answer;
  answer.evaluations = {evaluation("ring", 1, tune::Outcome::Chosen),
                        evaluation("ulysses", 2, tune::Outcome::Slower)};
  MeasuredTune layers(question, answer, {0, 1}, bench::make_thread_ranks);
  for (const bench::Side& side : layers.sides()) EXPECT_GT(side.run(), 0) << side.name;
  question.passes = {plan::Pass::Backward};
  EXPECT_THAT(error_of([&] { MeasuredTune(question, answer, {0}, bench::make_thread_ranks); }),
              ::testing::StartsWith("tune --measure: a pass that is not run alone"));
}

}  // namespace
}  // namespace armillary::calibrate
