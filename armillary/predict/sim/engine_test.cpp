// engine_test.cpp: simulated plans: closed forms of a ring, bytes equal to the plan's, times that
// add up, memory over time, the same bits from run to run, and programs that hang.
#include "armillary/predict/sim/engine.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/predict/sim/testing/clusters.h"

namespace armillary::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

plan::Problem full_problem(int world, std::int64_t tokens) {
  return {.world = world,
          .heads = 8,
          .kv_heads = 8,
          .head_dim = 64,
          .value_dim = 64,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::full_mask({tokens, tokens})};
}

plan::Plan lowered(const plan::Problem& problem, const std::string& strategy,
                   plan::Pass pass = plan::Pass::Forward) {
  return plan::lower(plan::make_plan(problem, plan::parse_strategy(strategy), pass));
}

/// Seconds of one block of a ring: kernel at 1 TFLOP/s, message at 1 GB/s.
double block_compute_s(const plan::Problem& p) {
  const double n = static_cast<double>(p.mask.q_len()) / p.world;
  return 4 * n * n * p.heads * p.head_dim / 1e12;
}
double block_message_s(const plan::Problem& p) {
  const double n = static_cast<double>(p.mask.q_len()) / p.world;
  return 2 * 2 * n * p.kv_heads * p.head_dim / 1e9;
}

// Each of the P steps takes the longer of the kernel and the message; the last has no message.
TEST(Engine, ARingOnAFlatClusterHasItsClosedForm) {
  for (const std::int64_t tokens : {1 << 12, 1 << 14, 1 << 16}) {
    for (const int world : {1, 2, 3, 8}) {
      const plan::Problem problem = full_problem(world, tokens * world);
      const Timeline timeline = simulate(lowered(problem, "ring"), testing::flat(world));
      const double step = std::max(block_compute_s(problem), block_message_s(problem));
      EXPECT_NEAR(timeline.end_s, (world - 1) * step + block_compute_s(problem),
                  1e-9 * timeline.end_s)
          << world << " " << tokens;
    }
  }
}

/// Compares a run with one that has each message by itself.
void expect_groups_to_change_nothing(const plan::Planner& planner, plan::Pass pass,
                                     const Cluster& cluster, bool fold) {
  const Timeline grouped = simulate(planner, pass, cluster, {.fold = fold});
  const Timeline apart =
      simulate(planner, pass, cluster, {.record = {.flows = true}, .fold = fold});
  EXPECT_EQ(grouped.flow_events, apart.flow_events);
  const auto expect_near = [](double a, double b) { EXPECT_NEAR(a, b, 1e-9 * b); };
  ASSERT_EQ(grouped.ranks.size(), apart.ranks.size());
  for (std::size_t r = 0; r < apart.ranks.size(); ++r) {
    expect_near(grouped.ranks[r].end_s, apart.ranks[r].end_s);
    expect_near(grouped.ranks[r].compute_s, apart.ranks[r].compute_s);
    expect_near(grouped.ranks[r].messages_s, apart.ranks[r].messages_s);
    EXPECT_EQ(grouped.ranks[r].sent_bytes, apart.ranks[r].sent_bytes);
  }
  ASSERT_EQ(grouped.channels.size(), apart.channels.size());
  for (std::size_t c = 0; c < apart.channels.size(); ++c) {
    expect_near(grouped.channels[c].bytes, apart.channels[c].bytes);
  }
}

// Messages that are alike are one flow unless each is recorded (LaneInput::group).
TEST(Engine, GroupsOfMessagesTakeTheTimeOfTheirMessages) {
  plan::Problem problem = full_problem(8, 1 << 15);
  problem.kv_heads = 4;
  problem.mask = plan::causal_mask({1 << 15, 1 << 15}, plan::Align::Start);
  problem.layout = plan::parse_layout("zigzag");
  for (const std::string& cluster :
       {std::string("c1"), std::string("c7"), std::string("c4:nodes=2")}) {
    const Cluster described = load_cluster(cluster);
    for (const std::string& strategy : plan::every_strategy(problem)) {
      const plan::Planner planner(problem, plan::parse_strategy(strategy));
      for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
        SCOPED_TRACE(fmt::format("{} {}", cluster, strategy));
        expect_groups_to_change_nothing(planner, pass, described, false);
      }
    }
  }
}

TEST(Engine, GroupsOfMessagesChangeNothingForFoldedRanks) {
  for (const char* strategy : {"ring", "usp:u=2", "grid:u=1,rq=4,rk=4", "tokenring"}) {
    SCOPED_TRACE(strategy);
    const plan::Planner planner(full_problem(16, 1 << 14), plan::parse_strategy(strategy));
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      expect_groups_to_change_nothing(planner, pass, load_cluster("c1:nodes=2"), true);
    }
  }
}

TEST(Engine, BytesAreThoseOfThePlan) {
  const plan::Problem problem = full_problem(4, 4096);
  for (const plan::Strategy& strategy : plan::legal_strategies(problem)) {
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      const plan::Plan plan = lowered(problem, to_string(strategy), pass);
      const Timeline timeline = simulate(plan, testing::flat(4));
      double sent_bytes = 0;
      for (int r = 0; r < 4; ++r) {
        const plan::Traffic traffic = plan::traffic(problem, plan.blocks, plan.ranks[r]);
        EXPECT_EQ(timeline.ranks[r].sent_bytes, traffic.sent_bytes) << to_string(strategy);
        EXPECT_EQ(timeline.ranks[r].received_bytes, traffic.received_bytes);
        EXPECT_EQ(timeline.ranks[r].slot_bytes, traffic.peak_slot_bytes);
        sent_bytes += static_cast<double>(traffic.sent_bytes);
      }
      // Every byte crosses one channel to the switch and one from it.
      double moved = 0;
      for (const ChannelUse& channel : timeline.channels) moved += channel.bytes;
      EXPECT_NEAR(moved, 2 * sent_bytes, 1) << to_string(strategy);
    }
  }
}

TEST(Engine, AProgramIsThatOfItsPlan) {
  const plan::Problem problem = full_problem(8, 1 << 14);
  for (const std::string strategy : {"ring", "usp:u=4", "tokenring"}) {
    const plan::Planner planner(problem, plan::parse_strategy(strategy));
    const Timeline of_planner = simulate(planner, plan::Pass::Backward, testing::two_level(2, 4));
    const Timeline of_plan =
        simulate(lowered(problem, strategy, plan::Pass::Backward), testing::two_level(2, 4));
    EXPECT_EQ(to_json(of_planner), to_json(of_plan)) << strategy;
  }
}

TEST(Engine, TimesOfARankAddUp) {
  const plan::Problem problem = full_problem(8, 1 << 14);
  const Timeline timeline =
      simulate(lowered(problem, "usp:u=4"), testing::two_level(2, 4), {.record = {true, true}});
  for (const RankTimeline& rank : timeline.ranks) {
    EXPECT_GT(rank.compute_s, 0);
    EXPECT_NEAR(rank.compute_s + rank.exposed_s + rank.idle_s, rank.end_s, 1e-12);
    EXPECT_GE(rank.messages_s, rank.exposed_s);
    EXPECT_LE(rank.peak_bytes, rank.slot_bytes);
    EXPECT_GT(rank.peak_bytes, 0);
    for (const OpTime& op : rank.ops) EXPECT_LE(op.start_s, op.end_s);
  }
  EXPECT_EQ(timeline.flow_events, 2 * static_cast<std::int64_t>(timeline.flows.size()));
  for (const Flow& flow : timeline.flows) {
    EXPECT_LE(flow.matched_s, flow.start_s);
    EXPECT_LT(flow.start_s, flow.end_s);
    double bytes = 0;
    for (std::size_t i = 0; i < flow.rates.size(); ++i) {
      const double end = i + 1 < flow.rates.size() ? flow.rates[i + 1].time_s : flow.end_s;
      bytes += flow.rates[i].bytes_per_s * (end - flow.rates[i].time_s);
    }
    EXPECT_NEAR(bytes, static_cast<double>(flow.bytes), 1e-3);
  }
}

/// Ranks are read by several threads, and hundreds of flows share links: neither may show.
TEST(Engine, TheSameInputGivesTheSameBits) {
  const plan::Problem problem = full_problem(32, 1 << 15);
  for (const std::string strategy : {"allgather", "tokenring", "grid:rk=4,rq=4,u=2"}) {
    const plan::Planner planner(problem, plan::parse_strategy(strategy));
    const auto text = [&] {
      return to_json(simulate(planner, plan::Pass::Backward, testing::pcie_tree(4),
                              {.record = {.ops = true, .flows = true}}));
    };
    EXPECT_EQ(text(), text()) << strategy;
  }
}

/// Bytes of the tiles beside the caller's that an op has touched, and another will or does touch.
std::int64_t live_bytes(const plan::Plan& plan, const RankTimeline& timeline, int rank, double at) {
  const plan::RankProgram& program = plan.ranks[rank];
  std::int64_t bytes = 0;
  for (std::size_t t = 0; t < program.tiles.size(); ++t) {
    if (program.slots[program.tiles[t].slot].external) continue;
    bool began = false;
    bool ended = true;
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      for (const plan::View& view : program.ops[i].views) {
        if (view.tile != static_cast<int>(t)) continue;
        began = began || timeline.ops[i].start_s <= at;
        ended = ended && timeline.ops[i].end_s <= at;
      }
    }
    if (began && !ended) bytes += bytes_of(plan.problem, plan.blocks, program.tiles[t]);
  }
  return bytes;
}

TEST(Engine, MemoryOverTimeIsThatOfTilesInUse) {
  const plan::Problem problem = full_problem(4, 1 << 12);
  for (const std::string strategy : {"ring", "tokenring", "startrail:c=2"}) {
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      const plan::Plan plan = lowered(problem, strategy, pass);
      const Timeline timeline =
          simulate(plan, testing::two_level(2, 2), {.record = {.ops = true, .flows = false}});
      for (int rank = 0; rank < 4; ++rank) {
        const RankTimeline& of_rank = timeline.ranks[rank];
        ASSERT_FALSE(of_rank.memory.empty()) << strategy;
        std::int64_t most = 0;
        for (const MemoryUse& point : of_rank.memory) {
          EXPECT_EQ(point.bytes, live_bytes(plan, of_rank, rank, point.time_s)) << strategy;
          most = std::max(most, point.bytes);
        }
        EXPECT_EQ(of_rank.memory.back().bytes, 0) << strategy;
        EXPECT_EQ(of_rank.peak_bytes, most) << strategy;
      }
    }
  }
}

// Compute takes 1.5 times as long while a message is in flight.
TEST(Engine, MessagesSlowComputeDown) {
  const plan::Problem problem = full_problem(2, 1 << 17);
  Cluster cluster = testing::flat(2);
  cluster.device.slowdown = {1, 1.5};
  const double compute = block_compute_s(problem);
  const double message = block_message_s(problem);
  ASSERT_GT(compute, message);
  const Timeline timeline = simulate(lowered(problem, "ring"), cluster);
  EXPECT_NEAR(timeline.end_s, 2 * compute + message * (1 - 1 / 1.5), 1e-9);
}

TEST(Engine, LatencyIsAddedToEveryMessage) {
  const plan::Problem problem = full_problem(3, 3072);
  Cluster cluster = testing::flat(3);
  cluster.messages.latency_s = 0.5;
  cluster.links[0].latency_s = 0.25;
  // Two messages one after the other, each over two links, then the last block.
  EXPECT_NEAR(simulate(lowered(problem, "ring"), cluster).end_s,
              2 * (1 + block_message_s(problem)) + block_compute_s(problem), 1e-9);
}

/// Pairs of flows from one rank to another that share some time.
int flows_at_once(const Timeline& timeline) {
  int count = 0;
  std::map<std::pair<int, int>, std::vector<const Flow*>> flows;  // In order of their match.
  for (const Flow& flow : timeline.flows) {
    for (const Flow* earlier : flows[{flow.from, flow.to}]) {
      const bool apart = flow.start_s >= earlier->end_s || flow.end_s <= earlier->start_s;
      count += apart ? 0 : 1;
      EXPECT_LE(earlier->start_s, flow.start_s) << "a later message does not overtake";
    }
    flows[{flow.from, flow.to}].push_back(&flow);
  }
  return count;
}

TEST(Engine, MessagesInOrderFollowEachOther) {
  int at_once = 0;
  const plan::Problem problem = full_problem(8, 1 << 14);
  Cluster cluster = testing::two_level(2, 4);
  cluster.messages.serial = false;
  for (const plan::Strategy& strategy : plan::legal_strategies(problem)) {
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      const plan::Plan plan = lowered(problem, to_string(strategy), pass);
      cluster.messages.in_order = false;
      const Timeline together = simulate(plan, cluster, {.record = {.flows = true}});
      at_once += flows_at_once(together);
      cluster.messages.in_order = true;
      const Timeline in_order = simulate(plan, cluster, {.record = {.flows = true}});
      EXPECT_EQ(flows_at_once(in_order), 0) << to_string(strategy);
      EXPECT_EQ(in_order.flows.size(), together.flows.size());
    }
  }
  EXPECT_GT(at_once, 0) << "K and V, dK and dV";
}

// Two slices of K and V leave at once: four messages, of which the first two are there in half of
// the time if they follow each other.
TEST(Engine, TheFirstSliceInOrderDoesNotWaitForTheSecond) {
  const plan::Problem problem = full_problem(2, 1 << 9);
  Cluster cluster = testing::flat(2);
  cluster.messages.serial = false;
  const double all = block_message_s(problem);
  for (const bool in_order : {false, true}) {
    cluster.messages.in_order = in_order;
    const Timeline timeline =
        simulate(lowered(problem, "allgather:slices=2"), cluster, {.record = {.flows = true}});
    int count = 0;
    for (const Flow& flow : timeline.flows) {
      if (flow.from != 0) continue;
      ++count;
      EXPECT_NEAR(flow.end_s, in_order ? all * count / 4 : all, 1e-9);
    }
    EXPECT_EQ(timeline.flows.size(), 8U);
  }
}

TEST(Engine, APlacementMovesRanks) {
  const plan::Problem problem = full_problem(4, 1 << 9);
  const Cluster cluster = testing::two_level(2, 2);
  const double neighbours = simulate(lowered(problem, "ring"), cluster).end_s;
  const double apart =
      simulate(lowered(problem, "ring"), cluster, {.placement = {0, 2, 1, 3}}).end_s;
  EXPECT_GT(apart, neighbours);
  EXPECT_THROW(simulate(lowered(problem, "ring"), cluster, {.placement = {0, 1, 2}}),
               InvalidArgument);
  EXPECT_THROW(simulate(lowered(problem, "ring"), cluster, {.placement = {0, 1, 2, 2}}),
               InvalidArgument);
}

TEST(Engine, ADroppedReceiveIsADiagnosis) {
  plan::Plan plan = lowered(full_problem(3, 3072), "ring");
  std::vector<plan::Op>& ops = plan.ranks[1].ops;
  const auto recv = std::find_if(ops.begin(), ops.end(),
                                 [](const plan::Op& op) { return op.kind == plan::OpKind::Recv; });
  ops.erase(recv);
  try {
    simulate(plan, testing::flat(3));
    FAIL() << "no error";
  } catch (const PlanError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("simulate: ring forward: "), HasSubstr("1 op waits for ever"),
                      HasSubstr("rank 0 op"), HasSubstr("send to rank 1 on lane 1"),
                      HasSubstr("has no receive to meet")));
  }
}

TEST(Engine, MoreRanksThanDevicesAreRefused) {
  try {
    simulate(lowered(full_problem(9, 900), "ring"), testing::two_level(2, 4));
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "cluster two_level: 9 ranks given; at most its 8 devices (2 x 4) are required; "
                 "nearest: nodes.count = 3 in its file");
  }
}

}  // namespace
}  // namespace armillary::sim
