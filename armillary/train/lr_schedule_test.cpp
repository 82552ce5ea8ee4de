// lr_schedule_test.cpp: rates of schedules that were worked out by hand, and what a run that goes
// on by another schedule says about them.
#include "armillary/train/lr_schedule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace armillary::train {
namespace {

std::vector<double> factors(const LrScheduleOptions& scheduler, std::int64_t steps) {
  std::vector<double> all;
  for (std::int64_t step = 1; step <= steps; ++step) {
    all.push_back(lr_factor(scheduler, steps, step));
  }
  return all;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 1e-12) << "step " << i + 1;
}

// Expected values are those of torchtitan's linear_warmup_stable_decay.
TEST(LrFactor, WarmsUpStaysAndDecaysLinearly) {
  expect_near(
      factors({.warmup_steps = 2, .decay_ratio = 0.4, .decay_type = "linear", .min_lr_factor = 0.0},
              10),
      {0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25});
}

TEST(LrFactor, MinimumIsTheFloorOfTheDecay) {
  expect_near(
      factors({.warmup_steps = 0, .decay_ratio = 1.0, .decay_type = "linear", .min_lr_factor = 0.2},
              4),
      {1, 0.8, 0.6, 0.4});
}

TEST(LrFactor, CosineAndSqrt) {
  expect_near(
      factors({.warmup_steps = 0, .decay_ratio = 1.0, .decay_type = "cosine", .min_lr_factor = 0.0},
              2),
      {1, 0.5});
  expect_near(
      factors({.warmup_steps = 0, .decay_ratio = 1.0, .decay_type = "sqrt", .min_lr_factor = 0.0},
              4),
      {1, 0.5, 1 - std::sqrt(0.5), 1 - std::sqrt(0.75)});
}

TEST(LrFactor, WarmUpMayBeLongerThanTheRun) {
  expect_near(
      factors(
          {.warmup_steps = 10, .decay_ratio = 1.0, .decay_type = "cosine", .min_lr_factor = 0.0},
          3),
      {0.1, 0.2, 0.3});
}

TEST(LrFactor, NoDecay) {
  expect_near(
      factors({.warmup_steps = 1, .decay_ratio = 0.0, .decay_type = "cosine", .min_lr_factor = 0.0},
              3),
      {1, 1, 1});
}

TEST(LrFactor, WhatWarmsUpDoesNotDecay) {
  expect_near(
      factors({.warmup_steps = 2, .decay_ratio = 1.0, .decay_type = "linear", .min_lr_factor = 0.0},
              6),
      {0.5, 1, 1, 0.75, 0.5, 0.25});
}

TEST(LrFactor, StepsThatDecayAreRounded) {
  expect_near(  // 0.3 of 5 steps are 2
      factors({.warmup_steps = 0, .decay_ratio = 0.3, .decay_type = "linear", .min_lr_factor = 0.0},
              5),
      {1, 1, 1, 1, 0.5});
}

/// A schedule of ten steps of warm-up, then decay to nothing: rates are plain fractions.
RunRates linear(std::int64_t steps, double lr = 1) {
  return {.rates = {.peak = lr,
                    .schedule = {.warmup_steps = 10,
                                 .decay_ratio = 1.0,
                                 .decay_type = "linear",
                                 .min_lr_factor = 0.0},
                    .steps = steps},
          .settings = {fmt::format("training.steps = {}", steps),
                       fmt::format("optimizer.lr = {:.1f}", lr), "training.seed = 0"}};
}

TEST(RateChange, SaysTheScheduleThatWasAndIs) {
  // 10 steps of decay behind 10 of warm-up; step 11 is the one at the peak.
  EXPECT_EQ(describe_rate_change(linear(20), linear(30), 15),
            "checkpoint: learning rates are not those of the run so far; was training.steps = 20: "
            "0.6 in step 15, 0.5 in step 16, 0.1 in step 20; is training.steps = 30: 0.8 in step "
            "15, 0.75 in step 16, 0.05 in step 30");
  EXPECT_EQ(describe_rate_change(linear(20), linear(30), 20),
            "checkpoint: learning rates are not those of the run so far; was training.steps = 20: "
            "0.1 in step 20; is training.steps = 30: 0.55 in step 20, 0.5 in step 21, 0.05 in step "
            "30")
      << "a run that was over";
  EXPECT_EQ(describe_rate_change(linear(20), linear(20, 0.5), 3),
            "checkpoint: learning rates are not those of the run so far; was optimizer.lr = 1.0: "
            "0.3 in step 3, 0.4 in step 4, 0.1 in step 20; is optimizer.lr = 0.5: 0.15 in step 3, "
            "0.2 in step 4, 0.05 in step 20");
}

TEST(RateChange, SaysNothingWhereNoRateDiffers) {
  EXPECT_EQ(describe_rate_change(linear(20), linear(20), 15), std::nullopt);
  EXPECT_EQ(describe_rate_change(linear(4), linear(8), 4), std::nullopt) << "all of it warm-up";
  RunRates constant = linear(20);
  constant.rates.schedule.decay_ratio = 0;
  RunRates longer = constant;
  longer.rates.steps = 50;
  EXPECT_EQ(describe_rate_change(constant, longer, 20), std::nullopt);
}

}  // namespace
}  // namespace armillary::train
