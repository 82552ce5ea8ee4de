// storage_test.cpp: bytes at rest and at most against the formulas of ZeRO, with uneven shards, and
// types of gradients.
#include "armillary/plan/step/storage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "armillary/core/checked.h"
#include "armillary/plan/step/step_program.h"
#include "armillary/plan/step/testing/step_shapes.h"
#include "armillary/plan/step/types.h"

namespace armillary::plan::step {
namespace {

/// Values of four units, none of a size that 3 divides.
const std::vector<std::int64_t> kValues{100, 40, 70, 35};

StepShape uneven(int zero, int microbatches = 1) {
  StepShape shape{.mesh = {.cp = 3}, .microbatches = microbatches, .zero = zero};
  for (const std::int64_t values : kValues) {
    shape.units.push_back({.name = "unit", .split = values});
  }
  return shape;
}

TEST(StepBytes, AtRestAreThoseOfTheStage) {
  for (const int zero : {0, 1, 2, 3}) {
    const StepProgram step = build_step(uneven(zero));
    for (const RankProgram& program : step.ranks) {
      std::int64_t all = 0;
      std::int64_t shard = 0;
      for (const std::int64_t values : kValues) {
        all += values;
        shard += (program.rank + 1) * values / 3 - program.rank * values / 3;
      }
      const std::vector<std::int64_t> formulas{16 * all, 8 * all + 8 * shard, 4 * all + 12 * shard,
                                               16 * shard};
      EXPECT_EQ(resting_bytes(step.tables, program.rank), formulas[zero]) << zero;
      EXPECT_EQ(bytes_of(step.tables, program).rest, formulas[zero]) << zero;
    }
  }
}

TEST(StepBytes, AtRestSumUpOverAllRanks) {
  const StepProgram step = build_step(small_step({.dp = 2, .cp = 2, .tp = 2}, 3, 1, false));
  std::int64_t total = 0;
  for (const RankProgram& program : step.ranks) total += bytes_of(step.tables, program).rest;
  // Split values once, others on both ranks of tp.
  EXPECT_EQ(total, 16 * (23 + 31 + 17 + 2 * (5 + 2 + 3)));
}

/// In backward of unit i: its weight and the next one's, its gradient and the last one's.
TEST(StepBytes, AtMostAreFourUnitsInStageThree) {
  const int last = static_cast<int>(kValues.size()) - 1;
  const auto values = [&](int unit) { return unit < 0 || unit > last ? 0 : kValues[unit]; };
  for (const int microbatches : {1, 2}) {
    const StepProgram two = build_step(uneven(2, microbatches));
    const StepProgram three = build_step(uneven(3, microbatches));
    for (int rank = 0; rank < 3; ++rank) {
      std::int64_t stage2 = 0;
      std::int64_t stage3 = 0;
      for (int i = 0; i <= last; ++i) {
        // The second microbatch adds to the shard of the gradient that is summed.
        const std::int64_t next = values(i + 1);
        const std::int64_t added = microbatches == 1 ? 0 : (rank + 1) * next / 3 - rank * next / 3;
        stage2 = std::max(stage2, 4 * (values(i) + next + added));
        stage3 = std::max(stage3, 4 * (2 * values(i) + values(i - 1) + next + added));
      }
      // In backward of unit 0 the weight of unit 1 stays for the second microbatch.
      if (microbatches > 1) stage3 = std::max(stage3, 8 * (values(0) + values(1)));
      EXPECT_EQ(bytes_of(two.tables, two.ranks[rank]).peak,
                resting_bytes(two.tables, rank) + stage2);
      EXPECT_EQ(bytes_of(three.tables, three.ranks[rank]).peak,
                resting_bytes(three.tables, rank) + stage3);
    }
  }
  const StepProgram zero = build_step(uneven(0));
  EXPECT_EQ(bytes_of(zero.tables, zero.ranks[0]).peak, resting_bytes(zero.tables, 0));
}

/// Weights that stay after forward are all there when backward begins.
TEST(StepBytes, AtMostAreAllWeightsWithoutReshard) {
  StepShape shape = uneven(3);
  shape.reshard_after_forward = false;
  const StepProgram step = build_step(shape);
  // Backward of unit 2: units 0 to 2 are there, gradients are of units 2 and 3.
  const std::int64_t head = std::int64_t{4} * (100 + 40 + 70 + 35 + 35);
  const std::int64_t third = std::int64_t{4} * (100 + 40 + 70 + 70 + 35);
  const std::int64_t second = std::int64_t{4} * (100 + 40 + 40 + 70);
  const std::int64_t first = std::int64_t{4} * (100 + 100 + 40);
  EXPECT_EQ(bytes_of(step.tables, step.ranks[0]).peak,
            resting_bytes(step.tables, 0) + std::max({head, third, second, first}));
}

TEST(StepTypes, OfGradientsFollowFromUse) {
  using enum AxisType;
  EXPECT_EQ(gradient_type(Replicated, Sharded), Partial);
  EXPECT_EQ(gradient_type(Replicated, Replicated), Replicated);
  EXPECT_EQ(gradient_type(Sharded, Replicated), Sharded);
  const StepTables tables(small_step({.dp = 2, .cp = 1, .tp = 2}, 0, 1, false));
  EXPECT_EQ(to_string(gradient_type(tables, TpUse::Split)), "dp partial; tp sharded");
  EXPECT_EQ(to_string(gradient_type(tables, TpUse::Summed)), "dp, tp partial");
  EXPECT_EQ(to_string(gradient_type(tables, TpUse::Alike)), "dp partial");
  EXPECT_EQ(to_string(border_type(tables)), "dp, tp sharded");
  EXPECT_EQ(to_string(loss_type(tables)), "dp, tp partial");
  EXPECT_EQ(to_string(parameter_type(tables, TpUse::Alike)), "replicated");
}

/// Every value of a rank is in one shard, however shards are cut.
TEST(StepBytes, AreThoseOfTheGivenShards) {
  for (const StepShape& shape : grouped_steps()) {
    const StepProgram step = build_step(shape);
    for (const RankProgram& program : step.ranks) {
      const StepBytes bytes = bytes_of(step.tables, program);
      EXPECT_EQ(bytes.rest, resting_bytes(step.tables, program.rank)) << name_of(shape);
      EXPECT_GE(bytes.peak, bytes.rest);
      EXPECT_EQ(bytes.peak > bytes.rest, step.tables.zero() >= 2) << name_of(shape);
    }
  }
  StepShape uneven_shards = uneven(3);
  for (UnitShape& unit : uneven_shards.units) {
    unit.shards = {UseShards{std::vector<std::int64_t>{unit.split - 2, 0, 2},
                             {0, 0, 0},
                             {0, 0, 0},
                             {0, 0, 0},
                             {0, 0, 0}}};
  }
  const StepTables tables(uneven_shards);
  EXPECT_EQ(resting_bytes(tables, 0), 16 * (100 + 40 + 70 + 35 - 8));
  EXPECT_EQ(resting_bytes(tables, 1), 0);
  EXPECT_EQ(resting_bytes(tables, 2), 16 * 8);
}

/// bf16 weights with fp32 masters, and fp64.
TEST(StepBytes, AreThoseOfTheirDtypes) {
  for (int zero = 0; zero <= 3; ++zero) {
    StepShape shape = uneven(zero);
    const StepBytes fp32 = bytes_of(StepTables(shape), build_step(shape).ranks[1]);
    shape.bytes = {.weight = 8, .master = 8};
    const StepBytes fp64 = bytes_of(StepTables(shape), build_step(shape).ranks[1]);
    EXPECT_EQ(fp64, (StepBytes{2 * fp32.rest, 2 * fp32.peak})) << zero;
    shape.bytes = {.weight = 2, .master = 4};
    const StepTables tables(shape);
    std::int64_t shard = 0;
    for (int part = 0; part < 4; ++part) shard += tables.values(part, 1, tables.own_shard(0, 1));
    constexpr std::int64_t kAll = 100 + 40 + 70 + 35;
    const std::vector<std::int64_t> formulas{18 * kAll, 6 * kAll + 12 * shard,
                                             2 * kAll + 16 * shard, 16 * shard};
    EXPECT_EQ(resting_bytes(tables, 1), formulas[zero]);
    EXPECT_EQ(bytes_of(tables, build_step(shape).ranks[1]).rest, formulas[zero]);
  }
}

/// State on the host: two units' at most are in buffers, one behind the other.
TEST(StepBytes, OfStateOnTheHostAreInTwoBuffers) {
  for (const int weight : {2, 4}) {
    for (const int zero : {0, 1, 3}) {
      StepShape shape = uneven(zero);
      shape.bytes = {.weight = weight, .master = 4};
      const StepTables tables(shape);
      const StepBytes device = bytes_of(tables, build_step(shape).ranks[1]);
      shape.state_on_host = true;
      const StepTables on_host(shape);
      const StepBytes host = bytes_of(on_host, build_step(shape).ranks[1]);
      const std::int64_t value = weight == 2 && zero < 3 ? 12 : 8;
      const auto state = [&](int part) {
        return value * tables.values(part, 1, state_shards(tables, tables.parts()[part].unit, 1));
      };
      EXPECT_EQ(host.host, state(0) + state(1) + state(2) + state(3));
      EXPECT_EQ(host.host, host_bytes(on_host, 1));
      EXPECT_EQ(host_bytes(tables, 1), 0);
      EXPECT_EQ(host.rest + host.host, device.rest);
      const std::int64_t buffers =
          std::max({state(0) + state(1), state(1) + state(2), state(2) + state(3)});
      EXPECT_EQ(host.peak, host.rest + std::max(buffers, device.peak - device.rest));
    }
  }
}

TEST(StepTables, CopiesAndSharersAreAxes) {
  StepShape shape = small_step({.dp = 4, .tp = 4}, 1, 1, false);
  shape.copies = shape.sharers = 2;
  const StepTables tables(shape);
  // rank = tp + 4 dp.
  EXPECT_EQ(tables.shards(0), 2);
  EXPECT_EQ(tables.axis_sets().size(), 15U);
  EXPECT_EQ(tables.group(kSharersAxis, 5), (std::vector<Rank>{4, 5}));
  EXPECT_EQ(tables.group(bit(MeshAxis::Tp), 5), (std::vector<Rank>{5, 7}));
  EXPECT_EQ(tables.group(tables.tp_axis(), 5), (std::vector<Rank>{4, 5, 6, 7}));
  EXPECT_EQ(tables.group(tables.replica_axes(), 5), (std::vector<Rank>{1, 5}));
  EXPECT_EQ(tables.group(tables.copies_axis(), 5), (std::vector<Rank>{5, 13}));
  EXPECT_EQ(tables.replica(0, 13), 1);
  EXPECT_EQ(axis_names(tables.tp_axis() | tables.copies_axis()), "tp, copies, sharers");
  EXPECT_EQ(to_string(gradient_type(tables, TpUse::Shared)),
            "dp, copies, sharers partial; tp sharded");
  EXPECT_EQ(to_string(parameter_type(tables, TpUse::Shared)), "tp sharded");
}

/// Ep takes tp and a half of cp; the other half, and dp, have the same experts.
TEST(StepTables, EpIsAViewOfOtherAxes) {
  StepShape shape = small_step({.dp = 2, .cp = 4, .tp = 2}, 3, 1, false);
  add_experts(shape, 4);
  const StepTables tables(shape);
  // rank = tp + 2 cp + 8 dp, cp = ep part + 2 rest.
  EXPECT_EQ(tables.group(tables.ep_axes(), 5), (std::vector<Rank>{4, 5, 6, 7}));
  EXPECT_EQ(tables.ep_index(5), 1);
  EXPECT_EQ(tables.group(tables.expert_replica_axes(), 5), (std::vector<Rank>{1, 5, 9, 13}));
  EXPECT_EQ(axis_names(tables.expert_replica_axes()), "dp, rest");
  EXPECT_EQ(axis_names(tables.replica_axes()), "dp, cp, rest");
  const int experts = 2;
  EXPECT_EQ(tables.own_shard(experts, 5), (Heads{1, 2}));
  EXPECT_EQ(tables.all_shards(experts), (Heads{0, 4}));
  EXPECT_EQ(tables.all_shards(0), (Heads{0, 8}));
  EXPECT_EQ(to_string(gradient_type(tables, TpUse::Experts)), "dp, rest partial; cp, tp sharded");
  EXPECT_EQ(to_string(gradient_type(tables, TpUse::Summed)), "dp, cp, tp, rest partial");
  // Every value lies on one rank of ep, and there in one shard.
  const int part = tables.parts_of(experts).front();
  std::int64_t values = 0;
  for (const Rank rank : {0, 1, 2, 3}) {
    values += tables.values(part, rank, tables.all_shards(experts));
  }
  EXPECT_EQ(values, shape.units[experts].experts);
}

TEST(StepTables, GroupsAreAxes) {
  const StepTables tables(small_step({.dp = 2, .cp = 2, .tp = 2}, 1, 1, false));
  EXPECT_EQ(tables.axis_sets().size(), 7U);
  EXPECT_EQ(tables.group(bit(MeshAxis::Tp), 5), (std::vector<Rank>{4, 5}));
  EXPECT_EQ(tables.group(tables.replica_axes(), 5), (std::vector<Rank>{1, 3, 5, 7}));
  EXPECT_EQ(tables.replica(0, 5), 2);
  EXPECT_EQ(tables.own_shard(0, 5), (Heads{2, 3}));
  EXPECT_EQ(axis_names(tables.replica_axes()), "dp, cp");
  EXPECT_EQ(StepTables(small_step({}, 3, 1, true)).zero(), 0);
}

}  // namespace
}  // namespace armillary::plan::step
