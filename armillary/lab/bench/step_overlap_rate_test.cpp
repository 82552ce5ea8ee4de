#include "armillary/lab/bench/step_overlap_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

StepOverlapCase tiny(int world, int zero) {
  StepOverlapCase spec;
  spec.world = world;
  spec.zero = zero;
  spec.layers = 2;
  spec.dim = 16;
  spec.heads = 2;
  spec.tokens = 24;
  return spec;
}

// The constructor compares loss and norm with those of one rank.
TEST(StepOverlapRate, TakesTheStepOfOneRankInAllStages) {
  for (const int world : {2, 3}) {
    for (const int zero : {1, 2, 3}) {
      StepOverlapRate rate(tiny(world, zero));
      const TurnSummary turns = take_turns(rate.sides(), {.seconds = 0, .least = 2});
      EXPECT_EQ(turns.medians.size(), 4U);
      EXPECT_GT(rate.facts().loss, 0);
      const StepValues values = rate.facts().values;
      EXPECT_GT(values.lone, 0) << "world " << world << ", stage " << zero;
      EXPECT_LT(values.lone, values.all) << "world " << world << ", stage " << zero;
    }
  }
}

TEST(StepOverlapRate, ALinkTakesTheTimeOfItsBytes) {
  StepOverlapCase spec = tiny(2, 3);
  spec.link_bytes_per_s = 4e6;
  StepOverlapRate rate(spec);
  const TurnSummary turns = take_turns(rate.sides(), {.seconds = 0, .least = 2});
  // Each of the 2 ranks sends half of what moves.
  const double least = static_cast<double>(rate.facts().values.all) * 4 / 2 / 4e6;
  EXPECT_GE(turns.medians.at("step messages"), least * 0.99);
}

// Embedding, two layers and head: stage 3 gathers embedding and first layer twice, but the head and
// the layer before it once. Those two units' gathers before forward and last sums stand alone.
TEST(StepOverlapRate, CountsTheValuesThatTheProgramMoves) {
  const StepOverlapRate all(tiny(2, 3));
  const StepOverlapRate once(tiny(2, 2));  // A sum and a gather of each.
  const StepValues values = all.facts().values;
  EXPECT_EQ(values.all, once.facts().values.all + values.lone / 2);
}

TEST(StepOverlapRate, RefusesWhatHasNoMessages) {
  EXPECT_THAT([] { const StepOverlapRate rate(tiny(1, 3)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("at least 2 is required")));
  EXPECT_THAT([] { const StepOverlapRate rate(tiny(2, 4)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("nearest: 3")));
}

}  // namespace
}  // namespace armillary::bench
