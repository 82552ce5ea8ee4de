// grid_test.cpp: every strategy makes exact plans, whatever the mask, layout, world, length and
// heads; and the functions of grid.h by themselves.
//
// ARMILLARY_TEST_ALL=1 proves all combinations. Without it each combination of strategy, layout,
// mask and world is proved for some of the lengths and heads, chosen by a printed seed
// (ARMILLARY_TEST_SEED=.. chooses the same again).
#include "armillary/plan/strategies/grid.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/testing/broken_plan.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/plan/testing/grid_plan.h"
#include "tests/sanitized.h"
#include "tests/seed.h"

namespace armillary::plan {
namespace {

constexpr int kGridWorlds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16};

constexpr unsigned kSlower = kSanitized ? 8 : 1;

struct GridHeads {
  int q;
  int kv;
};
constexpr GridHeads kHeads[] = {{4, 4}, {6, 3}, {8, 1}, {8, 2}};

struct GridMask {
  Lengths lengths;
  std::string mask;
};

/// Masks of all kinds over about n tokens.
std::vector<GridMask> masks(std::int64_t n) {
  const std::int64_t a = n / 5;
  const std::int64_t b = n / 2;
  const std::string documents = fmt::format("documents:{},0,{},{}", a, b, n - a - b);
  return {{{n, n}, "full"},
          {{n, n}, "causal"},
          {{n, n}, "window:left=5,right=0"},
          {{n, n}, "window:left=3,right=7"},
          {{n, n}, fmt::format("prefix:{}", n / 3)},
          {{n, n}, "block_causal:4"},
          {{n, n}, documents},
          {{n, n}, documents + ",within=full"},
          {{n, n}, documents + ",within=window,left=6,right=1"},
          {{n, n + 9}, "full"},
          {{n, 0}, "full"},
          {{n, 2 * n + 3}, "causal:align=end"},
          {{2 * n + 3, n}, "causal:align=start"},
          {{2 * n + 3, n}, "window:left=4,right=2,align=end"},
          // Query 3 sees nothing, and keys from n/2 on are seen by two bands.
          {{n + 4, n}, fmt::format("bands:0-3/0-{0}/-2..1;4-{1}/{2}-{0}/..", n, n + 4, n / 2)}};
}

/// Everything sent is received, and all visible pairs are attended to.
void check_totals(const Plan& plan) {
  const Traffic all = traffic_of_all(plan);
  EXPECT_EQ(all.sent_bytes, all.received_bytes);
  EXPECT_EQ(all.visible_pairs, plan.problem.heads * plan.problem.mask.area());
  if (plan.problem.world == 1) {
    EXPECT_EQ(all.sent_bytes, 0) << "a world of 1 communicates";
  }
}

struct Case {
  std::string strategy;
  std::string layout;
  GridHeads heads;
  GridMask masked;
  bool return_lse;
};

std::string describe(const Case& example, int world) {
  return fmt::format("{}, world {}, {}, {} of {} x {}, heads {}/{}, return_lse {}",
                     example.strategy, world, example.layout, example.masked.mask,
                     example.masked.lengths.q, example.masked.lengths.kv, example.heads.q,
                     example.heads.kv, example.return_lse);
}

/// Adds the cases of one strategy, layout and number of heads: a random part unless all are wanted.
void add_cases(std::vector<Case>& cases, const Case& base, int world, std::mt19937& random) {
  for (const std::int64_t n : {0, 1, world - 1, 2 * world + 7, 257}) {
    for (const GridMask& masked : masks(n)) {
      Case example = base;
      example.masked = masked;
      example.return_lse = random() % 2 == 0;
      const unsigned one_in = kSlower * (world > 8 ? 128 : 32);
      if (test_all() || random() % one_in == 0) cases.push_back(example);
    }
  }
}

std::vector<Case> cases(int world) {
  std::mt19937 random(test_seed() + static_cast<unsigned>(world));
  std::vector<Case> examples;
  for (const GridHeads heads : kHeads) {
    const Problem any{.world = world, .heads = heads.q, .kv_heads = heads.kv};
    for (const std::string& strategy : every_strategy(any)) {
      for (const char* layout : {"contiguous", "zigzag", "striped", "striped:8", "balanced"}) {
        add_cases(examples, {.strategy = strategy, .layout = layout, .heads = heads}, world,
                  random);
      }
    }
  }
  return examples;
}

void prove(const Case& example, int world) {
  const Problem problem{
      .world = world,
      .heads = example.heads.q,
      .kv_heads = example.heads.kv,
      .head_dim = 8,
      .value_dim = 4,
      .dtype = Dtype::Bf16,
      .mask = parse_mask(example.masked.mask, example.masked.lengths),
      .layout = parse_layout(example.layout),
      .return_lse = example.return_lse,
      .transfer_dtype = example.return_lse ? TransferDtype::Input : TransferDtype::Accumulator};
  const Strategy strategy = parse_strategy(example.strategy);
  const std::vector<Diagnostic> exact;
  const Plan forward = make_plan(problem, strategy, Pass::Forward);
  const Plan backward = make_plan(problem, strategy, Pass::Backward);
  for (const Plan* plan : {&forward, &backward}) {
    SCOPED_TRACE(to_string(plan->pass));
    EXPECT_EQ(verify(*plan), exact);
    check_totals(*plan);
  }
  EXPECT_EQ(verify_saved(forward, backward), exact);
}

class GridTest : public testing::TestWithParam<int> {};

TEST_P(GridTest, PlansAreExact) {
  const std::vector<Case> all = cases(GetParam());
  for (const Case& example : all) {
    SCOPED_TRACE(describe(example, GetParam()));
    prove(example, GetParam());
    if (HasFailure()) return;
  }
  fmt::print("{} problems\n", all.size());
}

INSTANTIATE_TEST_SUITE_P(Worlds, GridTest, testing::ValuesIn(kGridWorlds),
                         testing::PrintToStringParamName());

TEST(Grid, PlacesAreANumberingOfTheRanks) {
  for (const Grid& grid : {Grid{1, 1, 1}, Grid{1, 5, 1}, Grid{4, 1, 1}, Grid{2, 3, 1},
                           Grid{1, 1, 7}, Grid{2, 3, 5}, Grid{3, 2, 2}}) {
    const int world = grid.u * grid.rq * grid.rk;
    for (Rank rank = 0; rank < world; ++rank) {
      const GridPlace place = place_of(grid, rank);
      EXPECT_EQ(rank_of(grid, place), rank);
      EXPECT_LT(place.h, grid.u);
      EXPECT_LT(place.i, grid.rq);
      EXPECT_LT(place.j, grid.rk);
    }
    EXPECT_EQ(rank_of(grid, {grid.u - 1, grid.rq - 1, grid.rk - 1}), world - 1);
  }
}

TEST(Grid, HeadGroupsPartitionTheHeadsEvenly) {
  for (const int heads : {1, 4, 6, 8, 14}) {
    for (int u = 1; u <= heads; ++u) {
      int next = 0;
      for (int h = 0; h < u; ++h) {
        const Heads group = head_group({.heads = heads}, {.u = u}, h);
        EXPECT_EQ(group.begin, next) << heads << " heads, group " << h << " of " << u;
        EXPECT_GE(group.count(), heads / u);
        EXPECT_LE(group.count(), heads / u + 1);
        next = group.end;
      }
      EXPECT_EQ(next, heads);
    }
  }
}

TEST(Grid, SidesAreExchangedWithTheirMovements) {
  using enum GridAxis;
  const Grid grid{.u = 2,
                  .rq = 6,
                  .rk = 5,
                  .column = Movement::DoubleRing,
                  .row = Movement::Bidirectional,
                  .window = 3,
                  .nesting = {Queries, Heads, Keys}};
  const Grid exchanged = sides_exchanged(grid);
  EXPECT_EQ(exchanged.u, 2);
  EXPECT_EQ(exchanged.rq, 5);
  EXPECT_EQ(exchanged.rk, 6);
  EXPECT_EQ(exchanged.column, Movement::Bidirectional);
  EXPECT_EQ(exchanged.row, Movement::DoubleRing);
  EXPECT_EQ(exchanged.home, Movement::DoubleRing) << "sums visit windows as tiles do";
  EXPECT_EQ(exchanged.nesting, (std::array{Keys, Heads, Queries}));
  EXPECT_EQ(sides_exchanged({.rq = 4, .column = Movement::Ring}).home, Movement::Gather);
}

Grid with_shorter_rings_for(const Grid& grid, const char* mask, Lengths lengths) {
  const Problem problem{.world = grid.u * grid.rq * grid.rk,
                        .mask = parse_mask(mask, lengths),
                        .layout = parse_layout("contiguous")};
  const Blocks blocks = make_blocks(problem);
  const Visibility visibility(problem.mask, blocks);
  return with_shorter_rings(blocks, Needs(grid, blocks, visibility), grid);
}

/// With a causal mask keys go forwards to the ranks after their owner and queries back to those
/// before; sums follow the queries.
TEST(Grid, RingsGoToWhereTilesAreNeeded) {
  const Grid columns =
      with_shorter_rings_for({.rq = 4, .column = Movement::Ring}, "causal", {12, 12});
  EXPECT_EQ(columns.column, Movement::Ring);
  const Grid rows = with_shorter_rings_for({.rk = 4, .row = Movement::Ring, .home = Movement::Ring},
                                           "causal", {12, 12});
  EXPECT_EQ(rows.row, Movement::RingBack);
  EXPECT_EQ(rows.home, Movement::RingBack);
  const Grid straight_home =
      with_shorter_rings_for({.rk = 4, .row = Movement::Ring}, "causal", {12, 12});
  EXPECT_EQ(straight_home.row, Movement::RingBack);
  EXPECT_EQ(straight_home.home, Movement::Gather);
}

/// Rank 0 owns keys 0 to 2. Ranks 1 and 2 need key 0, which passes 2 members forwards or 3 back;
/// ranks 2 and 3 need keys 1 and 2, which pass 3 forwards or 2 back. Both ways at once is no
/// shorter for either.
TEST(Grid, RingsGoTheShorterWayOfMostTokens) {
  const Grid grid{.rq = 4, .column = Movement::Ring};
  EXPECT_EQ(with_shorter_rings_for(grid, "bands:1-2/0-1/..;2-3/0-3/..;3-4/1-3/..", {4, 12}).column,
            Movement::RingBack);
  EXPECT_EQ(with_shorter_rings_for(grid, "bands:1-2/0-2/..;2-3/0-3/..;3-4/2-3/..", {4, 12}).column,
            Movement::Ring);
  const Grid row{.rk = 4, .row = Movement::Ring};
  EXPECT_EQ(with_shorter_rings_for(row, "bands:0-1/1-3/..;1-3/2-4/..", {12, 4}).row,
            Movement::RingBack);
}

void prove_all_movements(Grid grid, const std::string& mask) {
  const Problem problem{.world = grid.u * grid.rq * grid.rk,
                        .heads = 6,
                        .kv_heads = 2,
                        .mask = parse_mask(mask, {41, 41}),
                        .layout = parse_layout("zigzag")};
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    for (int movements = 0; movements < 64; ++movements) {
      grid.column = static_cast<Movement>(movements % 4);
      grid.row = static_cast<Movement>(movements / 4 % 4);
      grid.order = static_cast<GridOrder>(movements / 16);
      SCOPED_TRACE(fmt::format("{} x {} x {}, columns {}, rows {}, order {}, {} {}", grid.u,
                               grid.rq, grid.rk, to_string(grid.column), to_string(grid.row),
                               movements / 16, mask, to_string(pass)));
      const Plan plan = plan_of(problem, grid, pass);
      EXPECT_EQ(verify(plan), std::vector<Diagnostic>{});
      check_totals(plan);
    }
  }
}

/// Every movement on columns and rows in every order, also combinations that no named strategy has.
TEST(Grid, EveryCutOfTheWorldIsExact) {
  for (const Grid& grid :
       {Grid{1, 1, 3}, Grid{1, 2, 2}, Grid{2, 2, 2}, Grid{2, 1, 4}, Grid{1, 3, 2}, Grid{3, 1, 2}}) {
    for (const std::string mask :
         {"full", "causal", "window:left=5,right=1", "documents:9,1,20,11"}) {
      if (kSanitized && mask != "causal") continue;
      prove_all_movements(grid, mask);
    }
  }
}

}  // namespace
}  // namespace armillary::plan
