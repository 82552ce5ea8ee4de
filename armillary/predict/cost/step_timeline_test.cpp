// step_timeline_test.cpp: simulated steps against times that are known: by hand, without compute,
// without messages; and against the closed form that prices a step.
#include "armillary/predict/cost/step_timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/step/words.h"
#include "armillary/predict/cost/known_models.h"

namespace armillary::cost {
namespace {

using plan::step::build_step;
using plan::step::StepProgram;
using plan::step::StepShape;

/// Eight devices on a switch, without latency. A ring of two moves half of a buffer.
sim::Cluster on_a_switch(double bytes_per_s) {
  sim::Cluster cluster = sim::load_cluster("c6");
  cluster.messages.latency_s = 0;
  cluster.links = {{.from = "device", .to = "switch", .bytes_per_s = bytes_per_s}};
  return cluster;
}

/// Two units on two replicas; at 1,000 bytes/s gathers take 1 and 3 s, sums 2 and 6.
StepShape two_units(int zero) {
  return {.units = {{.name = "a", .split = 1000}, {.name = "b", .split = 3000}},
          .mesh = {.dp = 2},
          .zero = zero};
}
std::vector<UnitTime> two_times() {
  return {{.forward = 2, .backward = 4, .gather = 1, .sum = 2, .update = 0.5},
          {.forward = 5, .backward = 10, .gather = 3, .sum = 6, .update = 0.25}};
}

StepTimeline simulated(const StepShape& shape, const StepMachine& machine) {
  return simulate(build_step(shape), 0, machine);
}

/// Loss and norm: an all-reduce of 8 bytes each.
constexpr double kNumbers = 0.016;

TEST(StepTimeline, TwoUnitsByHand) {
  const StepMachine machine{.cluster = on_a_switch(1000), .units = two_times()};
  const StepTimeline sharded = simulated(two_units(3), machine);
  // gather a 0..1, b 1..4; forward 1..3, 4..9; backward 9..19, 19..23; sums 19..25, 25..27.
  EXPECT_NEAR(sharded.end_s, 27.75 + kNumbers, 1e-9);
  EXPECT_NEAR(sharded.compute_s, 21.75, 1e-9);
  EXPECT_NEAR(sharded.busy_s[0], 4, 1e-9);
  EXPECT_NEAR(sharded.busy_s[1], 8 + kNumbers, 1e-9);
  EXPECT_NEAR(sharded.exposed_s[0], 1 + 1, 1e-9);
  EXPECT_NEAR(sharded.exposed_s[1], 2 + 2 + kNumbers, 1e-9);
  // Backward 7..17, 17..21; sums 17..23, 23..25; updates, and gathers of 1 and 3 s behind them.
  const StepTimeline first = simulated(two_units(1), machine);
  EXPECT_NEAR(first.end_s, 7 + 10 + 6 + 2 + kNumbers + 0.5 + 1 + 3, 1e-9);
  // Sums of b 17..23, of a beside the gather of b 23..27, its rest 27..31, that of a 31..33.
  const StepTimeline whole = simulated(two_units(0), machine);
  EXPECT_NEAR(whole.end_s, 33.75 + kNumbers / 2, 1e-9);
  EXPECT_NEAR(whole.compute_s, 21.75, 1e-9);
  EXPECT_NEAR(whole.busy_s[0], 0, 1e-9);
  EXPECT_NEAR(whole.busy_s[1], 16 + kNumbers / 2, 1e-9);
  EXPECT_NEAR(whole.exposed_s[1], 12 + kNumbers / 2, 1e-9);
  EXPECT_NEAR(overlapped(two_times(), 1, 0).end, 33.75, 1e-9);
  EXPECT_NEAR(overlapped(two_times(), 1, 0).collectives, 16, 1e-9);
  EXPECT_NEAR(overlapped(two_times(), 1, 3).end, 27.75, 1e-9);
  EXPECT_NEAR(overlapped(two_times(), 1, 1).end, 29.5, 1e-9);
  EXPECT_NEAR(overlapped(two_times(), 1, 1).collectives, 12, 1e-9);
}

/// Values that both ranks along tp use on their own tokens: all-reduces of 2 and 6 s, beside which
/// nothing runs.
TEST(StepTimeline, SumsAlongTpAreWaitedFor) {
  const StepShape shape{.units = {{.name = "a", .split = 1000, .summed = 500},
                                  {.name = "b", .split = 3000, .summed = 1500}},
                        .mesh = {.tp = 2}};
  const StepTimeline timeline =
      simulated(shape, {.cluster = on_a_switch(1000), .units = two_times()});
  // Backward b 7..17, its sum 17..23; backward a 23..27, its sum 27..29.
  EXPECT_NEAR(timeline.end_s, 29.75 + kNumbers, 1e-9);
  EXPECT_NEAR(timeline.compute_s, 21.75, 1e-9);
  EXPECT_NEAR(timeline.exposed_s[1], 8 + kNumbers, 1e-9);
  EXPECT_NEAR(timeline.busy_s[1], 8 + kNumbers, 1e-9);
  std::vector<UnitTime> times = two_times();
  times[0].sum = times[1].sum = 0;
  times[0].along_tp = 2;
  times[1].along_tp = 6;
  EXPECT_NEAR(overlapped(times, 1, 0).end, 29.75, 1e-9);
  EXPECT_NEAR(overlapped(times, 1, 0).collectives, 8, 1e-9);
}

/// Moves of 8 bytes a value of a shard: 4 and 12 s, to the device and back.
TEST(StepTimeline, MovesOfStateByHand) {
  StepShape shape = two_units(1);
  shape.state_on_host = true;
  sim::Cluster cluster = on_a_switch(1000);
  cluster.device.host_bytes_per_s = 1000;
  const StepTimeline timeline = simulated(shape, {.cluster = cluster, .units = two_times()});
  // Sums end at 25, that of the loss behind them; fetch a 25..29, b 29..41; back a 41..45,
  // b 45..57; updates at 29 and 41.
  EXPECT_NEAR(timeline.end_s, 57 + kNumbers / 2, 1e-9);
  EXPECT_NEAR(timeline.busy_s[2], 32, 1e-9);
  EXPECT_NEAR(timeline.compute_s, 21.75, 1e-9);
  EXPECT_GT(timeline.exposed_s[2], 28);
  // In one memory what is copied is read and written.
  cluster.device.host_bytes_per_s = 0;
  cluster.device.memory_bytes_per_s = 1000;
  EXPECT_NEAR(simulated(shape, {.cluster = cluster, .units = two_times()}).end_s,
              25 + kNumbers / 2 + 64, 1e-9);
  cluster.device.host_bytes_per_s = 1e18;
  EXPECT_NEAR(simulated(shape, {.cluster = cluster, .units = two_times()}).end_s,
              simulated(two_units(1), {.cluster = cluster, .units = two_times()}).end_s, 1e-6);
}

/// Ring of 5 s of which 4 fill the link: the gather beside it has a fifth of it.
TEST(StepTimeline, MessagesOfTheRunGoFirst) {
  std::vector<UnitTime> times = two_times();
  times[0].forward = 5;
  times[0].forward_link = 4;
  const StepTimeline timeline =
      simulated(two_units(3), {.cluster = on_a_switch(1000), .units = times});
  // gather a 0..1; forward a 1..6 beside 1 s of gather b, whose other 2 s follow.
  EXPECT_NEAR(timeline.exposed_s[0], 1 + 2, 1e-9);
  EXPECT_NEAR(timeline.end_s, 1 + 5 + 2 + 5 + 10 + 6 + 2 + 0.75 + kNumbers, 1e-9);
  EXPECT_NEAR(overlapped(times, 1, 3).end, timeline.end_s - kNumbers, 1e-9);
}

TEST(StepTimeline, AFastNetworkLeavesCompute) {
  for (int zero = 0; zero <= 3; ++zero) {
    StepShape shape = two_units(zero);
    shape.microbatches = 3;
    const StepTimeline timeline =
        simulated(shape, {.cluster = on_a_switch(1e18), .units = two_times()});
    EXPECT_NEAR(timeline.end_s, 3 * 21 + 0.75, 1e-9) << zero;
    EXPECT_NEAR(timeline.compute_s, timeline.end_s, 1e-9) << zero;
  }
}

TEST(StepTimeline, AUnitWithoutValuesTakesItsTime) {
  const StepShape shape{
      .units = {{.name = "a", .split = 1000}, {.name = "plain"}, {.name = "b", .split = 3000}},
      .mesh = {.dp = 2},
      .zero = 3};
  std::vector<UnitTime> times = two_times();
  times.insert(times.begin() + 1, {.forward = 7, .backward = 8});
  const StepTimeline timeline = simulated(shape, {.cluster = on_a_switch(1e18), .units = times});
  EXPECT_NEAR(timeline.compute_s, 21.75 + 15, 1e-9);
}

TEST(StepTimeline, WithoutComputeCollectivesFollowEachOther) {
  const StepMachine machine{.cluster = on_a_switch(1000), .units = std::vector<UnitTime>(2)};
  const std::vector<double> seconds{16, 12, 12, 1 + 3 + 8};
  for (int zero = 0; zero <= 3; ++zero) {
    const StepTimeline timeline = simulated(two_units(zero), machine);
    EXPECT_NEAR(timeline.end_s, seconds[zero] + kNumbers / (zero == 0 ? 2 : 1), 1e-9) << zero;
    EXPECT_NEAR(timeline.exposed_s[0] + timeline.exposed_s[1], timeline.end_s, 1e-9) << zero;
  }
}

/// Four equal units of 10 s without sums: all gathers but the first are hidden if, and only if, one
/// takes no longer than a run.
TEST(StepTimeline, AGatherIsHiddenIfItIsShorterThanARun) {
  const StepShape shape{.units = {{.name = "a", .split = 1000},
                                  {.name = "b", .split = 1000},
                                  {.name = "c", .split = 1000},
                                  {.name = "d", .split = 1000}},
                        .mesh = {.dp = 2},
                        .zero = 3};
  const auto exposed = [&](double gather_s) {
    return simulated(shape, {.cluster = on_a_switch(1000 / gather_s),
                             .units = std::vector<UnitTime>(4, {.forward = 10, .backward = 10}),
                             .rates = {.gradient_bytes = 0}})
        .exposed_s[0];
  };
  EXPECT_NEAR(exposed(9), 9, 1e-9);
  EXPECT_NEAR(exposed(10), 10, 1e-9);
  // Three forward, two backward: the gather behind the last unit has two runs.
  EXPECT_NEAR(exposed(11), 11 + 5, 1e-9);
}

TEST(StepTimeline, ExposedIsNoMoreThanBusyAndFallsWithBandwidth) {
  for (int zero = 0; zero <= 3; ++zero) {
    double last = 1e30;
    for (const double rate : {100.0, 500.0, 1000.0, 2000.0, 1e6}) {
      const StepTimeline timeline =
          simulated(two_units(zero), {.cluster = on_a_switch(rate), .units = two_times()});
      EXPECT_LE(timeline.end_s, last) << zero << " " << rate;
      last = timeline.end_s;
      double exposed = 0;
      for (std::size_t k = 0; k < kStepTransfers; ++k) {
        EXPECT_LE(timeline.exposed_s[k], timeline.busy_s[k] + 1e-9);
        exposed += timeline.exposed_s[k];
      }
      EXPECT_NEAR(timeline.compute_s + exposed, timeline.end_s, 1e-9 * timeline.end_s);
    }
  }
}

/// The step of a model, in the units of unit_times().
StepShape shape_of(const Step& step, const Parallelism& parallelism) {
  const ModelCost& model = step.model;
  const std::int64_t head = model.matmul_parameters - model.layer_matmul_parameters;
  StepShape shape{
      .units = {{.name = "embedding", .split = model.parameters - model.layer_parameters - head}},
      .mesh = parallelism.mesh,
      .microbatches = microbatches(step, parallelism),
      .zero = parallelism.zero};
  for (int layer = 0; layer < model.attention.layers; ++layer) {
    shape.units.push_back({.name = "layer" + std::to_string(layer),
                           .split = model.layer_parameters / model.attention.layers});
  }
  shape.units.push_back({.name = "head", .split = head});
  return shape;
}

/// The closed form is the price of advise; the simulation is what the programs do.
TEST(StepTimeline, IsThePriceOfAStep) {
  const ModelCost model = cost_of(parse_shape("llama2-7b"));
  for (const char* name : {"c5", "c3"}) {
    const sim::Cluster cluster = sim::load_cluster(name);
    for (const MeshShape& mesh : std::vector<MeshShape>{{.dp = 8},
                                                        {.cp = 8},
                                                        {.dp = 4, .cp = 4},
                                                        {.cp = 16},
                                                        {.cp = 4, .tp = 2},
                                                        {.dp = 2, .cp = 4, .tp = 2}}) {
      for (const std::int64_t in_turn : {1, 3}) {
        const Step step{.model = model, .seq = 16384, .batch = mesh.dp * in_turn};
        for (int zero = 0; zero <= 3; ++zero) {
          const Parallelism parallelism{.mesh = mesh, .zero = zero};
          const AttentionTime attention{.forward = 0.004, .backward = 0.01, .link_share = 0.5};
          const StepMachine machine{.cluster = cluster,
                                    .units = unit_times(step, parallelism, cluster, attention)};
          const StepTimeline timeline = simulated(shape_of(step, parallelism), machine);
          const StepTime price = step_time(step, parallelism, cluster, attention);
          EXPECT_NEAR(price.total() / timeline.end_s, 1, 0.02)
              << name << " dp " << mesh.dp << " cp " << mesh.cp << " tp " << mesh.tp << " ZeRO-"
              << zero << ", " << in_turn << " microbatches: " << price.total();
          EXPECT_GE(price.hidden, 0);
          EXPECT_LE(price.hidden, price.gradients);
        }
      }
    }
  }
}

/// GPT-3 13B on 128 ranks.
TEST(StepTimeline, ALargeModelOnManyRanks) {
  const sim::Cluster cluster = sim::load_cluster("c1:nodes=16");
  const Step step{.model = cost_of(parse_shape("gpt3-13b")), .seq = 131072};
  const Parallelism parallelism{.mesh = {.cp = 128}, .zero = 3};
  const AttentionTime attention{.forward = 0.05, .backward = 0.1, .link_share = 0.9};
  const StepTimeline timeline =
      simulated(shape_of(step, parallelism),
                {.cluster = cluster, .units = unit_times(step, parallelism, cluster, attention)});
  EXPECT_GT(timeline.end_s, 40 * attention.total());
  EXPECT_NEAR(step_time(step, parallelism, cluster, attention).total() / timeline.end_s, 1, 0.02);
}

/// Seconds of gathers and sums of three microbatches.
TEST(StepTime, StagesMoveInEveryMicrobatch) {
  const sim::Cluster cluster = on_a_switch(1e9);
  const Step step{.model = cost_of(parse_shape("llama2-7b")), .seq = 4096, .batch = 3};
  const auto gradients = [&](int zero) {
    return step_time(step, {.mesh = {.cp = 8}, .zero = zero}, cluster, {}).gradients;
  };
  const double values = 7.0 / 8 * static_cast<double>(step.model.parameters) / 1e9;
  EXPECT_NEAR(gradients(0), (4 + 4) * values, 1e-6 * values);
  EXPECT_NEAR(gradients(1), (4 + 2) * values, 1e-6 * values);
  EXPECT_NEAR(gradients(2), (3 * 4 + 2) * values, 1e-6 * values);
  // The head and the last layer are gathered once a microbatch, the embedding and the first layer
  // for backward and once before.
  const double one = 7.0 / 8 * 32000 * 4096 / 1e9;
  const double layer = 7.0 / 8 * static_cast<double>(step.model.layer_parameters) / 32 / 1e9;
  EXPECT_NEAR(gradients(3), (3 * 4 + 3 * 2 * 2) * values - 2 * (3 + 2) * (one + layer),
              1e-6 * values);
}

TEST(StepTimeline, RefusesWhatHasNoPrice) {
  const auto expect_refused = [](const StepProgram& step, const StepMachine& machine,
                                 const std::string& text) {
    try {
      simulate(step, 0, machine);
      FAIL() << text;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(), text);
    }
  };
  StepMachine machine{.cluster = on_a_switch(1000), .units = two_times()};
  StepProgram step = build_step(two_units(0));
  machine.units.pop_back();
  expect_refused(step, machine, "simulate: prices of 1 unit; a step of 2 units needs as many");
  machine.units = two_times();
  machine.cluster.nodes = machine.cluster.devices_per_node = 1;
  expect_refused(step, machine,
                 "simulate: a step of 2 ranks; cluster c6 has 1 device, as many are required");
  machine.cluster = on_a_switch(1000);
  plan::Op message = step.ranks[0].ops.back();
  message.kind = plan::kSend;
  step.ranks[0].ops.push_back(message);
  expect_refused(step, machine, "simulate: op send of a step has no price");
}

TEST(StepTimeline, IsATrace) {
  const StepProgram step = build_step(two_units(3));
  const StepMachine machine{.cluster = on_a_switch(1000), .units = two_times()};
  const std::string trace = to_trace(step, {simulate(step, 0, machine)});
  for (const char* name : {"\"forward a\"", "\"gather b\"", "\"reduce_scatter b\"", "\"loss\""}) {
    EXPECT_NE(trace.find(name), std::string::npos) << name << " in " << trace.substr(0, 400);
  }
}

}  // namespace
}  // namespace armillary::cost
