// traffic_test.cpp: bytes that move under masks that hide much, and the balance of work. Each
// number is worked by hand from the problem, not read from the program.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/plan/testing/grid_plan.h"
#include "tests/sanitized.h"

namespace armillary::plan {
namespace {

constexpr int kKvHeads = 2;
constexpr int kHeadDim = 8;
constexpr int kValueDim = 4;
/// Bytes per token of K and V, and of dK and dV as partial sums.
constexpr std::int64_t kKvBytes = std::int64_t{2} * kKvHeads * (kHeadDim + kValueDim);
constexpr std::int64_t kSumBytes = std::int64_t{4} * kKvHeads * (kHeadDim + kValueDim);

Problem make_problem(int world, std::int64_t length, const std::string& mask,
                     const std::string& layout = "contiguous") {
  return {.world = world,
          .heads = 4,
          .kv_heads = kKvHeads,
          .head_dim = kHeadDim,
          .value_dim = kValueDim,
          .dtype = Dtype::Bf16,
          .mask = parse_mask(mask, {length, length}),
          .layout = parse_layout(layout)};
}

std::vector<Traffic> traffic_per_rank(const Problem& problem, const std::string& strategy,
                                      Pass pass) {
  const Plan plan = make_plan(problem, parse_strategy(strategy), pass);
  std::vector<Traffic> traffics;
  traffics.reserve(plan.ranks.size());
  for (const RankProgram& program : plan.ranks) {
    traffics.push_back(traffic(problem, plan.blocks, program));
  }
  return traffics;
}

std::int64_t sent_by_all(const Problem& problem, const std::string& strategy, Pass pass) {
  return traffic_of_all(make_plan(problem, parse_strategy(strategy), pass)).sent_bytes;
}

/// `documents:` with `count` documents of `length` tokens.
std::string documents(int count, std::int64_t length) {
  std::string text = "documents:";
  for (int i = 0; i < count; ++i) text += fmt::format("{}{}", i == 0 ? "" : ",", length);
  return text;
}

/// Steps that have messages on the lane of the head exchange, before the first attention.
std::set<int> exchanges(const RankProgram& program) {
  std::set<int> steps;
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::Attend) break;
    if (op.collective == Collective::AllToAll) steps.insert(op.step);
  }
  return steps;
}

TEST(Traffic, PackedQkvTakesOneExchangeInsteadOfThreeForTheSameBytes) {
  const Problem problem = make_problem(4, 64, "causal", "zigzag");
  for (const std::string strategy : {"ulysses:qkv=", "usp:u=2,qkv="}) {
    const Plan separate = make_plan(problem, parse_strategy(strategy + "separate"), Pass::Forward);
    const Plan packed = make_plan(problem, parse_strategy(strategy + "packed"), Pass::Forward);
    EXPECT_EQ(traffic_of_all(packed).sent_bytes, traffic_of_all(separate).sent_bytes);
    for (int rank = 0; rank < problem.world; ++rank) {
      EXPECT_EQ(exchanges(separate.ranks[rank]).size(), 3u) << strategy;
      EXPECT_EQ(exchanges(packed.ranks[rank]), std::set<int>{0}) << strategy;
    }
  }
}

/// True if the strategy sends tokens whatever the mask: to the ranks of their head groups (u > 1),
/// to the transposed place (attention2d), or to the team and the group that it seeds (startrail).
bool moves_tokens_anyway(const std::string& strategy) {
  const bool trades_heads = strategy.find("u=") != std::string::npos &&  // not of grids with u=1
                            strategy.find("u=1") == std::string::npos;
  return trades_heads || strategy.starts_with("ulysses") || strategy.starts_with("attention2d") ||
         (strategy.starts_with("startrail") && !strategy.starts_with("startrail:c=1"));
}

TEST(Traffic, DocumentsThatAreShardsSendNothing) {
  int silent = 0;
  for (const int world : {2, 3, 5, 8, 12, 16}) {
    for (const std::string within : {"causal", "full"}) {
      const Problem problem =
          make_problem(world, std::int64_t{24} * world, documents(world, 24) + ",within=" + within);
      for (const std::string& strategy : every_strategy(problem)) {
        const std::int64_t sent_bytes = sent_by_all(problem, strategy, Pass::Forward) +
                                        sent_by_all(problem, strategy, Pass::Backward);
        EXPECT_EQ(sent_bytes > 0, moves_tokens_anyway(strategy))
            << strategy << " sends " << sent_bytes << ", world " << world << ", " << within;
        silent += sent_bytes == 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(silent, 100);
}

/// If documents end inside shards, a rank receives the beginning of its first document and no more.
TEST(Traffic, DocumentsMoveOnlyToWhereTheyGoOn) {
  // Ranks of 20 tokens; documents 0-29, 30-35, 36-59: rank 1 needs 0-19, rank 2 needs 36-39.
  const Problem problem = make_problem(3, 60, "documents:30,6,24");
  for (const std::string strategy : {"ring", "allgather"}) {
    const std::vector<Traffic> ranks = traffic_per_rank(problem, strategy, Pass::Forward);
    EXPECT_EQ(ranks[0].received_bytes, 0) << strategy;
    EXPECT_EQ(ranks[1].received_bytes, 20 * kKvBytes) << strategy;
    EXPECT_EQ(ranks[2].received_bytes, 4 * kKvBytes) << strategy;
  }
}

/// One document per super-block of usp: nothing moves on the ring, and the ranks of each
/// super-block send as much as a ulysses of their own.
TEST(Traffic, DocumentsThatAreSuperBlocksMoveOnTheHeadAxisOnly) {
  const Problem whole = make_problem(4, 96, documents(2, 48));
  const Problem half = make_problem(2, 48, "causal");
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    const std::vector<Traffic> ranks = traffic_per_rank(whole, "usp:u=2", pass);
    const std::vector<Traffic> alone = traffic_per_rank(half, "ulysses", pass);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(ranks[rank].sent_bytes, alone[rank % 2].sent_bytes)
          << to_string(pass) << ", rank " << rank;
    }
  }
}

/// Tokens of other ranks that rank r sees under a window of `left` and `right`, with 20 tokens per
/// rank.
std::int64_t halo(std::int64_t r, int world, std::int64_t left, std::int64_t right) {
  return std::min(left, 20 * r) + std::min(right, 20 * (world - 1 - r));
}

struct WindowCase {
  std::int64_t left;
  std::int64_t right;
};

void check_window(const std::string& strategy, int world, const WindowCase& window, Pass pass,
                  const std::function<std::int64_t(std::int64_t rank)>& received) {
  const std::string mask = fmt::format("window:left={},right={}", window.left, window.right);
  const std::vector<Traffic> ranks =
      traffic_per_rank(make_problem(world, std::int64_t{20} * world, mask), strategy, pass);
  for (int r = 0; r < world; ++r) {
    EXPECT_EQ(ranks[r].received_bytes, received(r))
        << strategy << ", " << mask << ' ' << to_string(pass) << ", rank " << r << " of " << world;
  }
}

/// All strategies that move K, V and keep the queries in place.
std::vector<std::string> movers_of_keys(int world) {
  std::vector<std::string> names{"ring", "allgather", "allgather:slices=2", "bidirectional_ring"};
  for (int w = 1; w <= world; ++w) {
    if (world % w == 0) names.push_back(fmt::format("double_ring:window={}", w));
  }
  return names;
}

const std::vector<int> kWindowWorlds =
    kSanitized ? std::vector<int>{5, 8} : std::vector<int>{5, 8, 64};

/// Windows to one side, to both sides, and to both sides further than half of the ring.
constexpr WindowCase kWindows[] = {{0, 0},   {7, 0},   {50, 0},  {0, 7},   {0, 33},  {7, 3},
                                   {20, 20}, {25, 30}, {25, 41}, {90, 90}, {50, 110}};

TEST(Traffic, AWindowMovesItsHaloAndNoMore) {
  for (const int world : kWindowWorlds) {
    for (const std::string& strategy : movers_of_keys(world)) {
      for (const WindowCase& window : kWindows) {
        check_window(strategy, world, window, Pass::Forward, [&](std::int64_t r) {
          return halo(r, world, window.left, window.right) * kKvBytes;
        });
      }
    }
  }
}

/// Backward: the halo again, and as many sums, which is (w + a) (d + e) per token of the halo and
/// KV head. Sums of a gather return directly, so a rank receives one for each of its tokens that
/// another rank sees.
TEST(Traffic, AWindowBringsBackTheSumsOfItsHalo) {
  for (const int world : kWindowWorlds) {
    for (const WindowCase& window : kWindows) {
      check_window("allgather", world, window, Pass::Backward, [&](std::int64_t r) {
        return halo(r, world, window.left, window.right) * kKvBytes +
               halo(world - 1 - r, world, window.left, window.right) * kSumBytes;
      });
      std::int64_t all = 0;
      for (int r = 0; r < world; ++r) all += halo(r, world, window.left, window.right);
      const std::string mask = fmt::format("window:left={},right={}", window.left, window.right);
      const Problem problem = make_problem(world, std::int64_t{20} * world, mask);
      for (const std::string& strategy : movers_of_keys(world)) {
        EXPECT_EQ(sent_by_all(problem, strategy, Pass::Backward), all * (kKvBytes + kSumBytes))
            << strategy << ", " << mask << ", " << world;
      }
    }
  }
}

/// If queries travel, the halo consists of queries, on the other side: Q out, Out and Lse back.
TEST(Traffic, AWindowMovesTheHaloOfQueriesWhereTheyTravel) {
  constexpr std::int64_t kQBytes = std::int64_t{4} * (2 * kHeadDim + 4 * (kValueDim + 1));
  for (const int world : {5, 8}) {
    for (const WindowCase& window : kWindows) {
      std::int64_t all = 0;
      for (int r = 0; r < world; ++r) all += halo(r, world, window.right, window.left);
      const std::string mask = fmt::format("window:left={},right={}", window.left, window.right);
      const Problem problem = make_problem(world, std::int64_t{20} * world, mask);
      EXPECT_EQ(sent_by_all(problem, "tokenring", Pass::Forward), all * kQBytes)
          << mask << ", " << world;
    }
  }
}

/// With a causal mask a quarter of the tiles that a full mask moves is needed by no one under
/// zigzag, and half of them under contiguous, for every world. The same holds for sums.
TEST(Traffic, CausalMasksSaveAQuarterUnderZigzagAndAHalfUnderContiguous) {
  for (const int world : {2, 4, 8, 16}) {
    const std::int64_t length = std::int64_t{64} * world;
    const Problem full = make_problem(world, length, "full", "zigzag");
    for (const std::string strategy :
         {"ring", "ring:backward=q", "allgather", "tokenring", "startrail:c=1"}) {
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        const std::int64_t all = sent_by_all(full, strategy, pass);
        EXPECT_EQ(4 * sent_by_all(make_problem(world, length, "causal", "zigzag"), strategy, pass),
                  3 * all)
            << strategy << ' ' << to_string(pass) << ", world " << world;
        EXPECT_EQ(2 * sent_by_all(make_problem(world, length, "causal"), strategy, pass), all)
            << "contiguous, " << strategy << ' ' << to_string(pass) << ", world " << world;
      }
    }
  }
}

Movement way(const Problem& problem) {
  const Grid grid{.rq = problem.world, .column = Movement::Ring};
  const Blocks blocks = make_blocks(problem);
  const Visibility visibility(problem.mask, blocks);
  return with_shorter_rings(blocks, Needs(grid, blocks, visibility), grid).column;
}

TEST(Traffic, ARingWalksToWhereItIsNeeded) {
  using enum Movement;
  const Problem full = make_problem(8, 256, "full");
  const Problem contiguous = make_problem(8, 256, "causal");
  const Problem zigzag = make_problem(8, 256, "causal", "zigzag");
  EXPECT_EQ(way(full), Ring) << "as good as back";
  EXPECT_EQ(way(contiguous), Ring) << "later ranks see earlier ones";
  EXPECT_EQ(way(zigzag), RingBack) << "late pieces are seen by ranks below";
  EXPECT_EQ(way(make_problem(8, 0, "full")), Ring) << "nothing to move";
  const Problem both_ways = make_problem(8, 256, "documents:100,156,within=full");
  EXPECT_EQ(way(both_ways), Bidirectional) << "a document ends inside a rank";
}

/// Tiles and sums make as many hops as those of a gather, whatever the mask, and however many ranks
/// on the way need nothing.
RC_GTEST_PROP(TrafficOfMovements, IsThatOfAGather, ()) {
  using enum Movement;
  const int world = *rc::gen::element(2, 3, 6, 8).as("world");
  const std::string layout =
      *rc::gen::element<std::string>("contiguous", "zigzag", "striped:3", "balanced");
  const std::string mask = *rc::gen::element<std::string>(
      "causal", "window:left=9,right=0", "window:left=2,right=14", "prefix:20", "block_causal:7",
      "documents:20,31,10,29", "bands:0-30/50-90/..;40-90/0-10/..");
  Problem problem = make_problem(world, 90, mask, layout);
  problem.dtype = *rc::gen::element(Dtype::Bf16, Dtype::F32);
  const Pass pass = *rc::gen::element(Pass::Forward, Pass::Backward);
  const Movement movement = *rc::gen::element(Ring, RingBack, Bidirectional, DoubleRing);
  const auto bytes = [&](const Grid& grid) {
    return traffic_of_all(plan_of(problem, grid, pass)).sent_bytes;
  };
  const int window = world % 2 == 0 ? 2 : world;
  RC_ASSERT(bytes({.rq = world, .column = movement, .window = window}) ==
            bytes({.rq = world, .column = Gather}));
  RC_ASSERT(bytes({.rk = world, .row = movement, .home = movement, .window = window}) ==
            bytes({.rk = world, .row = Gather, .home = Gather}));
}

/// Visible pairs: the maximum over ranks divided by the mean.
double imbalance(const Problem& problem, const std::string& strategy) {
  std::int64_t most = 0;
  std::int64_t sum = 0;
  for (const Traffic& one : traffic_per_rank(problem, strategy, Pass::Forward)) {
    most = std::max(most, one.visible_pairs);
    sum += one.visible_pairs;
  }
  return static_cast<double>(most) * problem.world / static_cast<double>(sum);
}

TEST(Traffic, CausalZigzagIsBalanced) {
  for (const int world : {2, 3, 4, 8, 16, 64}) {
    const std::int64_t length = std::int64_t{64} * world + 1;
    const Problem zigzag = make_problem(world, length, "causal", "zigzag");
    EXPECT_LE(imbalance(zigzag, "ring"), 1.02) << "world " << world;
    EXPECT_LE(imbalance(zigzag, "allgather"), 1.02) << "world " << world;
    EXPECT_GE(imbalance(make_problem(world, length, "causal"), "ring"), 1.45)
        << "contiguous, world " << world;
  }
}

/// Work is even also if tokens are left over, and whether a rank keeps its queries or its keys.
TEST(Traffic, EveryStrategySharesCausalWorkEvenly) {
  for (const int world : {2, 3, 4, 6, 9, 16}) {
    for (const int left : {0, 1, world + 1}) {
      for (const char* layout : {"zigzag", "striped"}) {
        Problem problem = make_problem(world, std::int64_t{64} * world + left, "causal", layout);
        problem.heads = 144;  // even head groups for every u
        for (const std::string& strategy : every_strategy(problem)) {
          EXPECT_LE(imbalance(problem, strategy), 1.02)
              << strategy << ' ' << layout << ' ' << world << ", left over " << left;
        }
      }
    }
  }
}

}  // namespace
}  // namespace armillary::plan
