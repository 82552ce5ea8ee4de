#include "armillary/train/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace armillary::train {
namespace {

std::vector<double> factors(const Recipe::LrScheduler& scheduler, std::int64_t steps) {
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

}  // namespace
}  // namespace armillary::train
