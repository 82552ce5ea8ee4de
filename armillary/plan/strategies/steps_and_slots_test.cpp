// steps_and_slots_test.cpp: the number of steps and slots of plans, by formula, for a full mask.
//
// A hop, a departure or a freed slot that comes a step late costs time or memory but changes no
// byte count and no result, so other tests may miss it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/plan/testing/grid_plan.h"
#include "armillary/plan/testing/paper_plan.h"

namespace armillary::plan {
namespace {

constexpr int kLineWorlds[] = {1, 2, 3, 4, 5, 7, 8, 13};

Problem problem_of_world(int world) {
  const std::int64_t length = std::int64_t{6} * world;
  return {.world = world,
          .heads = 16,
          .kv_heads = 16,
          .head_dim = 4,
          .value_dim = 4,
          .mask = full_mask({length, length}),
          .layout = {}};
}

int steps_of(int world, const std::string& strategy, Pass pass) {
  return steps_of(make_plan(problem_of_world(world), parse_strategy(strategy), pass));
}

/// Steps from the departure of a tile until all n members have it.
int span_of(Movement movement, int n) {
  if (movement == Movement::Gather) return std::min(n - 1, 1);
  return movement == Movement::Bidirectional ? n / 2 : n - 1;
}

constexpr Movement kLines[] = {Movement::Gather, Movement::Ring, Movement::RingBack,
                               Movement::Bidirectional};

/// Queries stay: K and V take `span` steps, and sums of dK and dV one more.
TEST(Steps, OfColumns) {
  for (const int world : kLineWorlds) {
    for (const Movement column : kLines) {
      const Grid grid{.rq = world, .column = column};
      const int span = span_of(column, world);
      const Problem problem = problem_of_world(world);
      EXPECT_EQ(steps_of(plan_of(problem, grid, Pass::Forward)), span + 1)
          << to_string(column) << ", world " << world;
      EXPECT_EQ(steps_of(plan_of(problem, grid, Pass::Backward)), world == 1 ? 1 : span + 2)
          << to_string(column) << ", world " << world;
    }
  }
}

/// Keys stay: partial results return one step after the last queries have arrived. In backward
/// queries leave one step later, because Delta is computed first.
TEST(Steps, OfRows) {
  for (const int world : kLineWorlds) {
    for (const Movement row : kLines) {
      const Grid grid{.rk = world, .row = row};
      const int span = span_of(row, world);
      const Problem problem = problem_of_world(world);
      const int alone = world == 1 ? 1 : 0;
      EXPECT_EQ(steps_of(plan_of(problem, grid, Pass::Forward)), span + 2 - alone)
          << to_string(row) << ", world " << world;
      EXPECT_EQ(steps_of(plan_of(problem, grid, Pass::Backward)), span + 3 - 2 * alone)
          << to_string(row) << ", world " << world;
    }
  }
}

/// Both sides travel at once, so a plan has the steps of the longer way.
TEST(Steps, OfGrids) {
  for (const auto& [rq, rk] : {std::pair(2, 2), std::pair(2, 3), std::pair(3, 2), std::pair(5, 3),
                               std::pair(3, 5), std::pair(4, 2), std::pair(2, 7)}) {
    const Problem problem = problem_of_world(rq * rk);
    for (const Movement column : kLines) {
      for (const Movement row : kLines) {
        SCOPED_TRACE(testing::Message() << rq << " x " << rk << ", columns " << to_string(column)
                                        << ", rows " << to_string(row));
        const int down = span_of(column, rq);
        const int along = span_of(row, rk);
        const Grid grid{.rq = rq, .rk = rk, .column = column, .row = row};
        EXPECT_EQ(steps_of(plan_of(problem, grid, Pass::Forward)), std::max(down, along) + 2);
        const int rows_home = std::max(1 + along, down) + 1;
        const int columns_home = 1 + along + span_of(column, rq);
        EXPECT_EQ(steps_of(plan_of(problem, grid, Pass::Backward)),
                  std::max(rows_home, columns_home) + 1);
      }
    }
  }
}

/// Sums that walk a ring behind the queries leave the last member when it has attended all keys.
TEST(Steps, OfSumsThatWalkHome) {
  for (const auto& [rq, rk] :
       {std::pair(1, 2), std::pair(1, 5), std::pair(2, 2), std::pair(2, 5), std::pair(5, 2)}) {
    const Problem problem = problem_of_world(rq * rk);
    const Grid grid{.rq = rq, .rk = rk, .row = Movement::Ring, .home = Movement::Ring};
    EXPECT_EQ(steps_of(plan_of(problem, grid, Pass::Forward)), std::max(1, rq - 1) + rk)
        << rq << " x " << rk;
  }
}

/// Q, K and V leave one after the other, each when it is projected, or together; dOut leaves alone.
TEST(Steps, OfTheExchangeOfHeads) {
  for (const int world : {2, 3, 4, 5, 8, 13}) {
    EXPECT_EQ(steps_of(world, "ulysses", Pass::Forward), 3 + 1 + 1) << world;
    EXPECT_EQ(steps_of(world, "ulysses:qkv=packed", Pass::Forward), 1 + 1 + 1) << world;
    EXPECT_EQ(steps_of(world, "ulysses", Pass::Backward), 1 + 1 + 1) << world;
  }
  for (const auto& [world, u] : {std::pair(4, 2), std::pair(6, 2), std::pair(9, 3),
                                 std::pair(10, 2), std::pair(15, 5), std::pair(16, 4)}) {
    const std::string strategy = "usp:u=" + std::to_string(u);
    const int ring = world / u;
    EXPECT_EQ(steps_of(world, strategy, Pass::Forward), 3 + ring + 1) << strategy << ' ' << world;
    EXPECT_EQ(steps_of(world, strategy, Pass::Backward), 1 + ring + 1 + 1)
        << strategy << ' ' << world;
  }
}

Problem masked_problem(int world, const char* mask) {
  Problem problem = problem_of_world(world);
  problem.mask = parse_mask(mask, {60, 60});
  return problem;
}

constexpr const char* kPruningMasks[] = {"causal", "window:left=3,right=0", "documents:7,20,1,32",
                                         "bands:0-60/0-10/.."};

/// Last step in which a rank exchanges heads; -1 if there is none.
int last_exchange(const RankProgram& program) {
  int last = -1;
  for (const Op& op : program.ops) {
    if (op.collective == Collective::AllToAll) last = std::max(last, op.step);
  }
  return last;
}

/// An all-to-all is in the same step on all ranks, also if the mask leaves some ranks without sums
/// to wait for.
TEST(Steps, OfTheLastExchangeAreTheSameOnAllRanks) {
  for (const char* mask : kPruningMasks) {
    for (const Grid& grid :
         {Grid{.u = 2, .rk = 3}, Grid{.u = 2, .rq = 4}, Grid{.u = 2, .rq = 2, .rk = 2},
          Grid{.u = 3, .rk = 2, .row = Movement::Ring},
          Grid{.u = 2, .rq = 3, .column = Movement::Gather}}) {
      const Problem problem = masked_problem(grid.u * grid.rq * grid.rk, mask);
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        const Plan plan = plan_of(problem, grid, pass);
        for (const RankProgram& program : plan.ranks) {
          EXPECT_EQ(last_exchange(program), last_exchange(plan.ranks[0]))
              << mask << ", " << grid.u << " x " << grid.rq << " x " << grid.rk << ' '
              << to_string(pass) << ", rank " << program.rank;
        }
      }
    }
  }
}

TEST(Steps, OfNamedStrategies) {
  for (const int world : {2, 3, 5, 8, 13}) {
    EXPECT_EQ(steps_of(world, "ring", Pass::Forward), world);
    EXPECT_EQ(steps_of(world, "ring", Pass::Backward), world + 1);
    EXPECT_EQ(steps_of(world, "allgather", Pass::Forward), 2);
    EXPECT_EQ(steps_of(world, "allgather", Pass::Backward), 3);
    EXPECT_EQ(steps_of(world, "allgather:slices=4", Pass::Forward), 4 + 1);
    EXPECT_EQ(steps_of(world, "allgather:slices=4", Pass::Backward), 4 + 2);
    EXPECT_EQ(steps_of(world, "bidirectional_ring", Pass::Forward), world / 2 + 1);
    EXPECT_EQ(steps_of(world, "bidirectional_ring", Pass::Backward), world / 2 + 2);
    EXPECT_EQ(steps_of(world, "tokenring", Pass::Forward), world + 1);
    EXPECT_EQ(steps_of(world, "tokenring", Pass::Backward), world + 2);
  }
  for (const auto& [world, window] : {std::pair(4, 2), std::pair(9, 3), std::pair(10, 5)}) {
    const std::string strategy = "double_ring:window=" + std::to_string(window);
    EXPECT_EQ(steps_of(world, strategy, Pass::Forward), world) << strategy;
    EXPECT_EQ(steps_of(world, strategy, Pass::Backward), world + 1) << strategy;
  }
  // Transpose, gather both, attend, scatter; backward transposes last.
  for (const auto& [rows, columns] : {std::pair(2, 2), std::pair(3, 2), std::pair(2, 5)}) {
    const std::string rows_only = "rows=" + std::to_string(rows);
    const int world = rows * columns;
    EXPECT_EQ(steps_of(world, "attention2d:" + rows_only, Pass::Forward), 4) << rows_only;
    EXPECT_EQ(steps_of(world, "attention2d:" + rows_only, Pass::Backward), 5) << rows_only;
    // K and V walk, then Q, then the last partials go home.
    const std::string overlap = "attention2d:overlap=true," + rows_only;
    EXPECT_EQ(steps_of(world, overlap, Pass::Forward), 1 + (rows - 1) + (columns - 1) + 2)
        << overlap;
    // Queries leave when K and V are there; the last meet K and V tile by tile.
    EXPECT_EQ(steps_of(world, overlap, Pass::Backward), (rows - 1) + (columns - 1) + (rows - 1) + 2)
        << overlap;
  }
}

/// Three steps to gather and hop, then a ring of G = P / C^2; the last tile is attended in C steps,
/// one per member. In backward dQ returns by the ring, the hop and the team.
TEST(Steps, OfStarTrail) {
  for (const auto& [world, c] :
       {std::pair(4, 2), std::pair(8, 2), std::pair(12, 2), std::pair(20, 2), std::pair(9, 3),
        std::pair(27, 3), std::pair(16, 4)}) {
    const std::string strategy = "startrail:c=" + std::to_string(c);
    const int ring = world / (c * c);
    EXPECT_EQ(steps_of(world, strategy, Pass::Forward), 3 + (ring - 1) + c) << strategy;
    const int sums_round = ring == 1 ? 0 : ring;
    EXPECT_EQ(steps_of(world, strategy, Pass::Backward), 3 + (c - 1) + sums_round + 3)
        << strategy << ", world " << world;
  }
}

/// With a window that looks both ways rings need half the steps, and gathers as many as before.
/// StrategyInfo::shortens_rings must be true exactly for the strategies that have such rings.
TEST(Steps, AreFewerUnderAMaskWhereRingsAreShorter) {
  const auto problem = [](const char* mask) {
    Problem problem = problem_of_world(16);
    problem.mask = parse_mask(mask, {96, 96});
    problem.layout = parse_layout("contiguous");
    return problem;
  };
  std::set<std::string> shorter;
  for (const std::string& strategy : every_strategy(problem("full"))) {
    for (const Pass pass : {Pass::Forward, Pass::Backward}) {
      const auto steps = [&](const char* mask) {
        return steps_of(make_plan(problem(mask), parse_strategy(strategy), pass));
      };
      const bool fewer = steps("window:left=7,right=7") < steps("full");
      if (fewer) shorter.insert(parse_strategy(strategy).name);
    }
  }
  for (const StrategyInfo& info : strategies()) {
    if (info.name == "auto") continue;  // another mask may give it another grid
    EXPECT_EQ(info.shortens_rings, shorter.contains(info.name)) << info.name;
  }
}

/// Slots of a tensor without the caller's; the maximum over ranks.
int slots_of(const Plan& plan, Tensor tensor) {
  std::size_t most = 0;
  for (const RankProgram& program : plan.ranks) {
    std::set<int> slots;
    for (const Tile& tile : program.tiles) {
      if (tile.tensor == tensor && !program.slots[tile.slot].external) slots.insert(tile.slot);
    }
    most = std::max(most, slots.size());
  }
  return static_cast<int>(most);
}

/// Tiles of other ranks that are alive at once: one that is read and one that arrives; a gather has
/// one tile for all.
int slots_of_tiles(Movement movement, int n) {
  return std::min(span_of(movement, n), 2);
}

/// Sums that are alive at once. Ring: the rank's own, one being computed, one that leaves and one
/// that arrives; if sums arrive from both sides, one more. Gather: the rank's own, one for all
/// others, and one that arrives from each.
int slots_of_sums(Movement movement, int n) {
  if (n == 1) return 1;
  if (movement == Movement::Gather) return n + 1;
  const bool two_arrive = movement == Movement::Bidirectional;
  return std::min(n + 1, two_arrive ? 5 : 4);
}

TEST(Slots, OfColumns) {
  for (const int world : kLineWorlds) {
    const Problem problem = problem_of_world(world);
    for (const Movement column : kLines) {
      SCOPED_TRACE(testing::Message() << to_string(column) << ", world " << world);
      const Grid grid{.rq = world, .column = column};
      const Plan forward = plan_of(problem, grid, Pass::Forward);
      const Plan backward = plan_of(problem, grid, Pass::Backward);
      for (const Tensor tensor : {Tensor::K, Tensor::V}) {
        EXPECT_EQ(slots_of(forward, tensor), slots_of_tiles(column, world));
        EXPECT_EQ(slots_of(backward, tensor), slots_of_tiles(column, world));
      }
      EXPECT_EQ(slots_of(forward, Tensor::Q), 0);
      EXPECT_EQ(slots_of(forward, Tensor::Out), 1);
      EXPECT_EQ(slots_of(backward, Tensor::DQ), 1);
      for (const Tensor tensor : {Tensor::DK, Tensor::DV}) {
        EXPECT_EQ(slots_of(backward, tensor), slots_of_sums(column, world));
      }
    }
  }
}

TEST(Slots, OfRows) {
  for (const int world : kLineWorlds) {
    const Problem problem = problem_of_world(world);
    for (const Movement row : kLines) {
      SCOPED_TRACE(testing::Message() << to_string(row) << ", world " << world);
      const Grid grid{.rk = world, .row = row};
      const Plan forward = plan_of(problem, grid, Pass::Forward);
      const Plan backward = plan_of(problem, grid, Pass::Backward);
      EXPECT_EQ(slots_of(forward, Tensor::Q), slots_of_tiles(row, world));
      EXPECT_EQ(slots_of(forward, Tensor::K), 0);
      EXPECT_EQ(slots_of(forward, Tensor::Out), slots_of_sums(row, world));
      for (const Tensor tensor : {Tensor::Q, Tensor::DOut, Tensor::Lse}) {
        EXPECT_EQ(slots_of(backward, tensor), slots_of_tiles(row, world)) << to_string(tensor);
      }
      EXPECT_EQ(slots_of(backward, Tensor::DQ), slots_of_sums(row, world));
      EXPECT_EQ(slots_of(backward, Tensor::DK), 1);
    }
  }
}

/// The tile of the next window travels for a whole window of steps: one slot more than on a ring.
TEST(Slots, OfDoubleRings) {
  for (const auto& [world, window] :
       {std::pair(6, 2), std::pair(6, 3), std::pair(9, 3), std::pair(10, 5), std::pair(15, 3)}) {
    const std::string strategy = "double_ring:window=" + std::to_string(window);
    const Problem problem = problem_of_world(world);
    const auto plan = [&](Pass pass) { return make_plan(problem, parse_strategy(strategy), pass); };
    EXPECT_EQ(slots_of(plan(Pass::Forward), Tensor::K), 3) << strategy << ", world " << world;
    EXPECT_EQ(slots_of(plan(Pass::Backward), Tensor::K), 3) << strategy << ", world " << world;
    EXPECT_EQ(slots_of(plan(Pass::Backward), Tensor::DK), 4) << strategy << ", world " << world;
  }
}

/// Tiles that no op touches because of the mask have no slot.
TEST(Slots, AreOfTilesThatOpsTouch) {
  for (const char* mask : kPruningMasks) {
    for (const int world : {4, 5, 8}) {
      const Problem problem = masked_problem(world, mask);
      for (const std::string& strategy : every_strategy(problem)) {
        for (const Pass pass : {Pass::Forward, Pass::Backward}) {
          for (const RankProgram& program :
               make_plan(problem, parse_strategy(strategy), pass).ranks) {
            std::set<int> touched(program.saved.begin(), program.saved.end());
            for (const Op& op : program.ops) {
              for (const View& view : op.views) touched.insert(view.tile);
            }
            for (int id = 0; id < static_cast<int>(program.tiles.size()); ++id) {
              const bool external = program.slots[program.tiles[id].slot].external;
              EXPECT_TRUE(external || touched.contains(id))
                  << strategy << ", world " << world << ", " << mask << ", " << to_string(pass)
                  << ", rank " << program.rank << ": " << to_string(program.tiles[id].tensor);
            }
          }
        }
      }
    }
  }
}

/// Two slices are in memory, not all heads.
TEST(Slots, OfSlices) {
  for (const int world : {2, 3, 8}) {
    for (const int slices : {2, 3, 5, 16}) {
      const std::string strategy = "allgather:slices=" + std::to_string(slices);
      const Plan plan = make_plan(problem_of_world(world), parse_strategy(strategy), Pass::Forward);
      EXPECT_EQ(slots_of(plan, Tensor::K), 2) << strategy << ", world " << world;
    }
  }
}

}  // namespace
}  // namespace armillary::plan
