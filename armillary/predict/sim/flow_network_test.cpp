// flow_network_test.cpp: rates of flows that share channels max-min fairly, worked by hand, and
// after every change of a random network equal to a reference.
#include "armillary/predict/sim/flow_network.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "armillary/predict/sim/testing/slow_max_min.h"

namespace armillary::sim {
namespace {

using ::testing::ElementsAre;

constexpr double kNone = std::numeric_limits<double>::infinity();

TEST(MaxMin, AFlowAloneHasTheNarrowestChannel) {
  FlowNetwork network({10, 4, 8});
  const std::vector<Crossing> route{{0}, {1}, {2}};
  const int flow = network.start(1, route, kNone, 20);
  network.settle(1);
  EXPECT_EQ(network.rate(flow), 4);
  EXPECT_EQ(network.next_end(), 6);
}

TEST(MaxMin, TwoFlowsOverOneChannelHaveHalfOfIt) {
  FlowNetwork network({10});
  const std::vector<Crossing> route{{0}};
  const int a = network.start(0, route, kNone, 20);
  network.settle(0);
  const int b = network.start(1, route, kNone, 20);
  network.settle(1);
  EXPECT_EQ(network.rate(a), 5);
  EXPECT_EQ(network.rate(b), 5);
  EXPECT_EQ(network.next_end(), 3);  // a has sent 10 in the first second, and 5 in each after.
  std::vector<int> ended;
  network.end_until(3, ended);
  EXPECT_THAT(ended, ElementsAre(a));
  network.settle(3);
  EXPECT_EQ(network.rate(b), 10);
  EXPECT_EQ(network.next_end(), 4);
  network.end_until(4, ended);
  EXPECT_THAT(network.moved(), ElementsAre(40));
  EXPECT_EQ(network.events(), 4);
}

// Beside a flow with its own limit, and on a channel that is crowded.
TEST(MaxMin, FlowsThatAreCountedAsOneHaveTheRateOfEach) {
  const std::vector<Crossing> route{{0}, {1, 2}};
  const std::vector<Crossing> other{{1}};
  FlowNetwork apart({10, 16}, {0.1, 0.2});
  FlowNetwork together({10, 16}, {0.1, 0.2});
  apart.start(0, other, 3, 100);
  together.start(0, other, 3, 100);
  const int one = apart.start(0, route, kNone, 6);
  apart.start(0, route, kNone, 6);
  apart.start(0, route, kNone, 6);
  const int all = together.start(0, route, kNone, 6, 3);
  apart.settle(0);
  together.settle(0);
  EXPECT_DOUBLE_EQ(together.rate(all), apart.rate(one));
  EXPECT_DOUBLE_EQ(together.next_end(), apart.next_end());
  std::vector<int> ended;
  apart.end_until(apart.next_end(), ended);
  together.end_until(together.next_end(), ended);
  EXPECT_EQ(together.events(), apart.events());
  for (const int channel : {0, 1}) {
    EXPECT_DOUBLE_EQ(together.moved()[channel], apart.moved()[channel]);
  }
}

TEST(MaxMin, FlowsOfACrowdedChannelShareLess) {
  FlowNetwork network({10}, {0.25});
  const std::vector<Crossing> route{{0}};
  const int a = network.start(0, route, kNone, 20);
  network.settle(0);
  EXPECT_EQ(network.rate(a), 10);
  const int b = network.start(1, route, kNone, 20);
  network.settle(1);
  EXPECT_EQ(network.rate(a), 4);  // 10 / 1.25 for both
  EXPECT_EQ(network.rate(b), 4);
  std::vector<int> ended;
  network.end_until(3.5, ended);
  EXPECT_THAT(ended, ElementsAre(a));
  network.settle(3.5);
  EXPECT_EQ(network.rate(b), 10);
}

// Three flows: a over both channels, b over the first, c over the second. The first channel gives 3
// to a and b; c takes what a leaves of the second.
TEST(MaxMin, TheSmallestShareIsGivenFirst) {
  FlowNetwork network({6, 10});
  const std::vector<Crossing> both{{0}, {1}};
  const std::vector<Crossing> first{{0}};
  const std::vector<Crossing> second{{1}};
  const int a = network.start(0, both, kNone, 100);
  const int b = network.start(0, first, kNone, 100);
  const int c = network.start(0, second, kNone, 100);
  network.settle(0);
  EXPECT_EQ(network.rate(a), 3);
  EXPECT_EQ(network.rate(b), 3);
  EXPECT_EQ(network.rate(c), 7);
}

TEST(MaxMin, AFlowWithALimitLeavesTheRestToOthers) {
  FlowNetwork network({10});
  const std::vector<Crossing> route{{0}};
  const int a = network.start(0, route, 2, 100);
  const int b = network.start(0, route, kNone, 100);
  network.settle(0);
  EXPECT_EQ(network.rate(a), 2);
  EXPECT_EQ(network.rate(b), 8);
}

TEST(MaxMin, AFoldedFlowTakesTheRateOfAllItsCopies) {
  FlowNetwork network({12});
  const std::vector<Crossing> two{{0, 2}};
  const std::vector<Crossing> one{{0, 1}};
  const int a = network.start(0, two, kNone, 100);
  const int b = network.start(0, one, kNone, 100);
  network.settle(0);
  EXPECT_EQ(network.rate(a), 4);
  EXPECT_EQ(network.rate(b), 4);
}

TEST(MaxMin, AChannelThatIsNeverFullCouplesNothing) {
  FlowNetwork network({10, 10, 100});
  const std::vector<Crossing> a{{0}, {2}};
  const std::vector<Crossing> b{{1}, {2}};
  network.start(0, a, kNone, 100);
  network.settle(0);
  network.start(1, b, kNone, 100);
  network.settle(1);
  EXPECT_EQ(network.changed().size(), 1U);
}

/// A random network in which flows start and end; after every change all rates are those of the
/// reference.
RC_GTEST_PROP(MaxMin, IsTheReference, ()) {
  const auto channels = *rc::gen::inRange(1, 9);
  std::mt19937 random(*rc::gen::inRange<unsigned>(0, 1U << 30));
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  std::vector<double> capacities(channels);
  for (double& capacity : capacities) capacity = 1 + below(20);
  FlowNetwork network(capacities);
  std::vector<std::vector<Crossing>> routes(24);
  for (std::vector<Crossing>& route : routes) {
    std::vector<int> order(channels);
    for (int c = 0; c < channels; ++c) order[c] = c;
    std::shuffle(order.begin(), order.end(), random);
    const int length = 1 + below(std::min(channels, 4));
    for (int h = 0; h < length; ++h) route.push_back({order[h], below(4) == 0 ? 2.0 : 1.0});
  }
  std::vector<std::pair<int, testing::SlowFlow>> alive;
  double now = 0;
  for (int change = 0; change < 40; ++change) {
    if (below(3) > 0 || alive.empty()) {
      const int starts = 1 + below(3);
      for (int s = 0; s < starts; ++s) {
        const std::vector<Crossing>& route = routes[below(24)];
        const double largest = below(2) == 0 ? kNone : 1 + below(6);
        alive.emplace_back(network.start(now, route, largest, 1 + below(50)),
                           testing::SlowFlow{route, largest});
      }
    } else {
      now = network.next_end();
      std::vector<int> ended;
      network.end_until(now, ended);
      std::erase_if(alive, [&](const auto& flow) {
        return std::find(ended.begin(), ended.end(), flow.first) != ended.end();
      });
    }
    network.settle(now);
    std::vector<testing::SlowFlow> flows;
    flows.reserve(alive.size());
    for (const auto& flow : alive) flows.push_back(flow.second);
    const std::vector<double> expected = testing::slow_max_min(capacities, flows);
    for (std::size_t f = 0; f < alive.size(); ++f) {
      const double rate = network.rate(alive[f].first);
      if (std::abs(rate - expected[f]) > 1e-6 * expected[f]) {
        RC_FAIL(fmt::format("flow {}: {} instead of {}", f, rate, expected[f]));
      }
    }
  }
}

}  // namespace
}  // namespace armillary::sim
