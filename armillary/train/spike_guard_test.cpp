// spike_guard_test.cpp: the verdicts of the guard and the order of batches, by hand.
#include "armillary/train/spike_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace armillary::train {
namespace {

using testing::ElementsAre;

TrainingOptions guarded() {
  TrainingOptions options;
  options.spike_guard = "stop";
  options.spike_window = 4;
  options.spike_loss_factor = 2;
  options.spike_norm_factor = 10;
  return options;
}

TEST(SpikeGuard, ComparesWithTheMedianOfAFullWindow) {
  const TrainingOptions options = guarded();
  SpikeGuard guard(options);
  for (const double loss : {4.0, 2.0, 3.0}) {
    EXPECT_EQ(guard.spike(1000, 1000), "") << "the window is not full";
    guard.take(loss, 1);
  }
  guard.take(100, 1);  // of 2, 3, 4, 100 the median is 3
  EXPECT_EQ(guard.spike(6, 10), "");
  EXPECT_EQ(guard.spike(6.3, 10), "loss 6.3 is 2.1 times the median 3 of the 4 steps before");
  EXPECT_EQ(guard.spike(6, 10.5),
            "grad_norm 10.5 is 10.5 times the median 1 of the 4 steps before");
  for (int i = 0; i < 4; ++i) guard.take(1, 1);
  EXPECT_EQ(guard.spike(2.5, 1), "loss 2.5 is 2.5 times the median 1 of the 4 steps before");
  EXPECT_THAT(guard.recent().losses, ElementsAre(1, 1, 1, 1));
}

TEST(SpikeGuard, IsOffWithoutAModeOrWithAnInfiniteFactor) {
  TrainingOptions options = guarded();
  options.spike_loss_factor = options.spike_norm_factor = std::numeric_limits<double>::infinity();
  SpikeGuard blind(options, {.losses = {1, 1, 1, 1}, .norms = {1, 1, 1, 1}});
  EXPECT_EQ(blind.spike(1e300, 1e300), "");
  options.spike_guard = "none";
  SpikeGuard off(options);
  off.take(1, 1);
  EXPECT_FALSE(off.is_on());
  EXPECT_TRUE(off.recent().losses.empty());
}

// Steps without a target have a loss of 0.
TEST(SpikeGuard, AMedianOfZeroRefusesNothing) {
  const TrainingOptions options = guarded();
  const SpikeGuard guard(options, {.losses = {0, 0, 0, 1}, .norms = {0, 0, 0, 1}});
  EXPECT_EQ(guard.spike(5, 5), "");
}

TEST(SpikeGuard, GoesOnFromTheStepsOfACheckpoint) {
  const TrainingOptions options = guarded();
  SpikeGuard whole(options);
  for (int i = 0; i < 9; ++i) whole.take(1.0 / (1 + i), i);
  const SpikeGuard resumed(options, whole.recent());
  EXPECT_EQ(resumed.spike(3, 1), whole.spike(3, 1));
  EXPECT_NE(resumed.spike(3, 1), "");
  TrainingOptions shorter = options;
  shorter.spike_window = 2;
  EXPECT_THAT(SpikeGuard(shorter, whole.recent()).recent().norms, ElementsAre(7, 8));
}

std::vector<std::int64_t> first_batches(const BatchOrder& order) {
  std::vector<std::int64_t> batches;
  for (std::int64_t step = 1; step <= 6; ++step) batches.push_back(order.batch_of(step));
  return batches;
}

TEST(BatchOrder, LeavesOutBatches) {
  BatchOrder order;
  EXPECT_THAT(first_batches(order), ElementsAre(1, 2, 3, 4, 5, 6));
  order.skip(4, 4);
  EXPECT_THAT(first_batches(order), ElementsAre(1, 2, 3, 5, 6, 7));
  order.skip(5, 6);
  EXPECT_THAT(first_batches(order), ElementsAre(1, 2, 3, 7, 8, 9));
  order.skip(BatchOrder({1, 5, 8}));
  EXPECT_THAT(order.skipped(), ElementsAre(1, 4, 5, 6, 8));
  EXPECT_THAT(first_batches(order), ElementsAre(2, 3, 7, 9, 10, 11));
}

}  // namespace
}  // namespace armillary::train
