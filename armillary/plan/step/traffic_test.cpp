#include "armillary/plan/step/traffic.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "armillary/plan/step/step_program.h"
#include "armillary/plan/step/testing/step_shapes.h"

namespace armillary::plan::step {
namespace {

/// Values times rounds of all ops, by tensor and the ranks of a group.
using Sums = std::map<std::pair<StepTensor, int>, std::int64_t>;
Sums sums_of(const StepProgram& step) {
  Sums sums;
  for (const Op& op : step.ranks[0].ops) {
    const StepTraffic traffic = traffic_of(step.tables, step.ranks[0], op);
    if (traffic.rounds > 0) {
      sums[{traffic.tensor, traffic.ranks}] += traffic.rounds * traffic.values;
    }
  }
  return sums;
}

// Three passes.
TEST(TrafficOfStep, IsThatOfTheStage) {
  const std::int64_t embedding = 23;
  const std::int64_t layer = 38;
  const std::int64_t head = 20;
  const std::int64_t all = embedding + layer + head;
  const std::array<std::int64_t, 4> gradients{2 * all, all, 3 * all, 3 * all};
  // Units used twice in a row are gathered once: the head, and between passes the embedding. The
  // layer stays over both.
  const std::array<std::int64_t, 4> weights{0, all, all, 3 * head + (3 + 1) * embedding + layer};
  for (int zero = 0; zero <= 3; ++zero) {
    Sums sums = sums_of(build_step(small_step({.dp = 2, .cp = 2}, zero, 3, false)));
    EXPECT_EQ((sums[{StepTensor::Grad, 4}]), gradients[zero]) << zero;
    EXPECT_EQ((sums[{StepTensor::Weight, 4}]), weights[zero]) << zero;
    EXPECT_EQ((sums[{StepTensor::Loss, 4}]), 2) << zero;
    EXPECT_EQ((sums[{StepTensor::Norm, 4}]), zero == 0 ? 0 : 2) << zero;
  }
}

TEST(TrafficOfStep, OfOneRankIsNone) {
  EXPECT_TRUE(sums_of(build_step(small_step({}, 3, 2, true))).empty());
}

// Gradients that both ranks along tp have in part: 5 of the layer, 3 of the head.
TEST(TrafficOfStep, AlongTpIsThatOfSummedValues) {
  Sums sums = sums_of(build_step(small_step({.tp = 2}, 0, 1, false)));
  EXPECT_EQ((sums[{StepTensor::Grad, 2}]), 2 * (5 + 3));
}

}  // namespace
}  // namespace armillary::plan::step
