// Which candidates are measured, what a measurement does to an answer, and one run on threads.
#include "armillary/calibrate/measured_tune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/bench/thread_ranks.h"
#include "armillary/core/testing/expect_error.h"
#include "armillary/tune/search.h"

namespace armillary::calibrate {
namespace {

using ::testing::ElementsAre;

tune::Rival rival(const std::string& strategy, double simulated_s, tune::Fate fate) {
  tune::Rival made{.candidate = {.strategy = plan::parse_strategy(strategy),
                                 .layout = plan::parse_layout("zigzag")},
                   .fate = fate,
                   .estimate_s = 1};
  made.times.total_s = simulated_s;
  return made;
}

/// Two variants of ring, one of usp, one on other devices, one that is only estimated, but near,
/// and one that does not fit.
tune::Answer answer() {
  tune::Answer made;
  made.rivals = {
      rival("ring", 1, tune::Fate::Chosen),         rival("ring", 1.1, tune::Fate::Slower),
      rival("usp:u=2", 1.2, tune::Fate::Slower),    rival("ulysses", 1.3, tune::Fate::Slower),
      rival("tokenring", 0, tune::Fate::Estimated), rival("allgather", 0, tune::Fate::TooLarge)};
  made.rivals[3].candidate.placement.stride = 2;
  return made;
}

TEST(MeasuredTune, TakesOtherStrategiesBeforeVariants) {
  EXPECT_THAT(worth_measuring(answer(), 1), ElementsAre(0));
  EXPECT_THAT(worth_measuring(answer(), 2), ElementsAre(0, 2));
  EXPECT_THAT(worth_measuring(answer(), 3), ElementsAre(0, 2, 4));
  EXPECT_THAT(worth_measuring(answer(), 9), ElementsAre(0, 1, 2, 4));
  tune::Answer far = answer();
  far.rivals[4].estimate_s = 1.6;
  EXPECT_THAT(worth_measuring(far, 3), ElementsAre(0, 1, 2));
}

TEST(MeasuredTune, TakesOtherLayoutsBeforeOtherVariants) {
  tune::Answer given = answer();
  given.rivals.push_back(given.rivals[1]);
  given.rivals.back().candidate.layout = plan::parse_layout("striped:1");
  given.rivals.back().times.total_s = 1.4;
  EXPECT_THAT(worth_measuring(given, 3), ElementsAre(0, 2, 4));
  EXPECT_THAT(worth_measuring(given, 4), ElementsAre(0, 2, 4, 6));
}

TEST(MeasuredTune, TakesAPlanWithTwoNamesOnce) {
  tune::Answer given = answer();
  given.rivals[2].times = given.rivals[0].times;
  given.rivals[4].estimate_s = 1.6;
  EXPECT_THAT(worth_measuring(given, 2), ElementsAre(0, 1))
      << "usp is ring, so a variant goes first";
}

TEST(MeasuredTune, ChoosesTheFastestThatWasMeasured) {
  const tune::Answer found = with_measured(answer(), {0, 2}, {3.0, 2.0});
  EXPECT_EQ(to_string(found.chosen().candidate.strategy), "usp:u=2");
  EXPECT_EQ(found.chosen().fate, tune::Fate::Chosen);
  EXPECT_EQ(found.chosen().measured_s, 2.0);
  EXPECT_EQ(found.rivals[1].fate, tune::Fate::Slower);
  EXPECT_EQ(found.rivals[1].measured_s, 3.0);
  EXPECT_EQ(found.rivals[2].measured_s, 0);
  EXPECT_EQ(tune::parse_answer(to_json(found)), found) << "it is kept in the cache";
}

TEST(MeasuredTune, RunsLayersOnRanks) {
  const std::int64_t tokens = 64;
  tune::Question question{.problem = {.world = 2,
                                      .heads = 2,
                                      .kv_heads = 2,
                                      .mask = plan::parse_mask("causal", {tokens, tokens}),
                                      .layout = plan::parse_layout("zigzag")},
                          .cluster = {}};
  tune::Answer given;
  given.rivals = {rival("ring", 1, tune::Fate::Chosen), rival("ulysses", 2, tune::Fate::Slower)};
  MeasuredTune layers(question, given, {0, 1}, bench::make_thread_ranks);
  for (const bench::Side& side : layers.sides()) EXPECT_GT(side.run(), 0) << side.name;
  question.passes = {plan::Pass::Backward};
  EXPECT_THAT(error_of([&] { MeasuredTune(question, given, {0}, bench::make_thread_ranks); }),
              ::testing::StartsWith("tune --measure: a pass that is not run alone"));
}

}  // namespace
}  // namespace armillary::calibrate
