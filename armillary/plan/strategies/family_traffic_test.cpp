// family_traffic_test.cpp: bytes of every member of the family, per rank and to the byte, against
// closed forms for equal shards and a full mask; and bytes that are counted without a plan
// (`sent_bytes`) against those of plans.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "armillary/plan/lower_bound.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/testing/closed_forms.h"
#include "armillary/plan/testing/grid_plan.h"
#include "tests/sanitized.h"

namespace armillary::plan {
namespace {

const std::vector<int> kWorlds =
    kSanitized ? std::vector<int>{4, 8, 16} : std::vector<int>{4, 8, 16, 64};

constexpr std::int64_t kWord = 2;  ///< Bytes of a bf16 element.
constexpr std::int64_t kSum = 4;   ///< Bytes of an element of a partial result, which is fp32.

Problem full_problem(int world, int heads, int kv_heads) {
  return {.world = world,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = 16,
          .value_dim = 12,
          .dtype = Dtype::Bf16,
          .mask = full_mask({std::int64_t{4} * world, std::int64_t{4} * world}),
          .layout = parse_layout("striped")};
}

/// Tokens of a rank, heads and dimensions.
struct RankSizes {
  explicit RankSizes(const Problem& problem)
      : n(problem.mask.q_len() / problem.world),
        hq(problem.heads),
        hk(problem.kv_heads),
        d(problem.head_dim),
        e(problem.value_dim) {}
  std::int64_t n, hq, hk, d, e;
};

struct GridCut {
  std::int64_t u, rq, rk;
};

/// Bytes of a rank on the u axis, its column and its row. A column with its u partners is a world
/// of its own, to which closed_forms.h applies.
std::int64_t grid_bytes(const Problem& problem, const GridCut& cut, Pass pass) {
  const RankSizes s(problem);
  const auto [u, rq, rk] = cut;
  const Problem column = full_problem(static_cast<int>(u * rq), problem.heads, problem.kv_heads);
  const Volumes volumes(column, static_cast<int>(u), Movement::Ring);
  const std::int64_t row = (rk - 1) * s.n * s.hq;
  if (pass == Pass::Forward) {
    return volumes.forward(0).sent_bytes + row * (s.d * kWord + (s.e + 1) * kSum);
  }
  return volumes.backward(0).sent_bytes + row * ((s.d + s.e) * kWord + 2 * kSum + s.d * kSum);
}

/// Ranks that have no hop to make, because they are their own destination, and the bytes they save.
struct WithoutHop {
  std::int64_t saved_bytes = 0;
  int ranks = 0;
};

/// Expects that every rank sends and receives `bytes`, but that exactly `without_hop.ranks` of them
/// do so with less.
void expect_bytes(const Problem& problem, const std::string& strategy, Pass pass,
                  std::int64_t bytes, const WithoutHop& without_hop = {}) {
  const Plan plan = make_plan(problem, parse_strategy(strategy), pass);
  int less = 0;
  for (const RankProgram& program : plan.ranks) {
    const Traffic counts = traffic(problem, plan.blocks, program);
    EXPECT_EQ(counts.sent_bytes, counts.received_bytes) << strategy << " rank " << program.rank;
    if (counts.sent_bytes == bytes - without_hop.saved_bytes && without_hop.saved_bytes > 0) {
      ++less;
    } else {
      EXPECT_EQ(counts.sent_bytes, bytes) << strategy << ' ' << to_string(pass) << " world "
                                          << problem.world << " rank " << program.rank;
    }
  }
  EXPECT_EQ(less, without_hop.ranks) << strategy << ", world " << problem.world;
}

TEST(FamilyTraffic, GridsRingsAndTokenRingSendTheirClosedForms) {
  for (const auto& [heads, kv_heads] : {std::pair(8, 8), std::pair(8, 2), std::pair(8, 1)}) {
    for (const int world : kWorlds) {
      const Problem problem = full_problem(world, heads, kv_heads);
      const auto check = [&](const std::string& strategy, const GridCut& cut) {
        for (const Pass pass : {Pass::Forward, Pass::Backward}) {
          expect_bytes(problem, strategy, pass, grid_bytes(problem, cut, pass));
        }
      };
      const std::string half = std::to_string(world / 2);
      check("ring", {1, world, 1});
      check("allgather:slices=2", {1, world, 1});
      check("bidirectional_ring", {1, world, 1});
      check("double_ring:window=2", {1, world, 1});
      check("double_ring:window=" + half, {1, world, 1});
      check("tokenring", {1, 1, world});
      check("tokenring:nodes=2,tiles=stay", {1, 2, world / 2});
      check("tokenring:inner=ring,nodes=2,tiles=stay", {1, world / 2, 2});
      check("usp:inner=ring,u=4", {4, world / 4, 1});
    }
  }
}

/// Tiles that walk in each of M rounds are sent M times: inside the nodes queries and their partial
/// results, or with inner=ring K, V.
TEST(FamilyTraffic, TilesThatWalkInEachRoundAreSentInEach) {
  for (const auto& [world, nodes] : {std::pair(4, 2), std::pair(12, 3), std::pair(16, 4)}) {
    const Problem problem = full_problem(world, 8, 2);
    const RankSizes s(problem);
    const std::int64_t size = world / nodes;
    const std::int64_t row = s.n * s.hq * (s.d * kWord + (s.e + 1) * kSum);
    const std::int64_t column = s.n * s.hk * (s.d + s.e) * kWord;
    const std::string walk = "tokenring:nodes=" + std::to_string(nodes);
    expect_bytes(problem, walk, Pass::Forward, nodes * (size - 1) * row + (nodes - 1) * column);
    expect_bytes(problem, walk + ",inner=ring", Pass::Forward,
                 (nodes - 1) * row + nodes * (size - 1) * column);
    expect_bytes(problem, walk, Pass::Backward,
                 grid_bytes(problem, {1, nodes, size}, Pass::Backward));
  }
}

/// The key `backward` chooses the side that travels on the columns in backward: one of the two, or
/// the one that sends less.
TEST(FamilyTraffic, GridsSendTheirClosedFormsWithEitherSideOnTheColumns) {
  int exchanged = 0;
  int unchanged = 0;
  for (const auto& [heads, kv_heads] : {std::pair(8, 8), std::pair(8, 2), std::pair(8, 1)}) {
    for (const int world : kWorlds) {
      const Problem problem = full_problem(world, heads, kv_heads);
      const auto check = [&](const std::string& strategy, const GridCut& cut) {
        const std::int64_t forward = grid_bytes(problem, cut, Pass::Forward);
        const std::int64_t kv = grid_bytes(problem, cut, Pass::Backward);
        const std::int64_t q = grid_bytes(problem, {cut.u, cut.rk, cut.rq}, Pass::Backward);
        const std::string key = strategy.find(':') == std::string::npos ? ":" : ",";
        for (const auto& [side, bytes] :
             {std::pair("kv", kv), std::pair("q", q), std::pair("cheaper", std::min(kv, q))}) {
          const std::string with_side = strategy + key + "backward=" + side;
          expect_bytes(problem, with_side, Pass::Forward, forward);
          expect_bytes(problem, with_side, Pass::Backward, bytes);
        }
        const bool grid = strategy.starts_with("grid");
        expect_bytes(problem, strategy, Pass::Backward, grid ? std::min(kv, q) : kv);
        ++(q < kv ? exchanged : unchanged);
      };
      const std::string half = std::to_string(world / 2);
      const std::string quarter = std::to_string(world / 4);
      check("ring", {1, world, 1});
      check("usp:u=2", {2, world / 2, 1});
      check("grid:u=1,rq=" + half + ",rk=2", {1, world / 2, 2});
      check("grid:u=2,rq=1,row=ring,rk=" + half, {2, 1, world / 2});
      if (world < 8) continue;
      check("grid:u=2,rq=2,rk=" + quarter, {2, 2, world / 4});
      check("grid:col=double_ring,window=2,u=2,nest=rk-rq-u,rk=2,rq=" + quarter, {2, world / 4, 2});
    }
  }
  EXPECT_GT(exchanged, 0);
  EXPECT_GT(unchanged, 0);
}

/// The cheaper side is chosen for the mask at hand. With a full mask the queries are cheaper to
/// move here; with few keys that all queries see, the keys are.
TEST(FamilyTraffic, TheCheaperSideDependsOnTheMask) {
  Problem problem = full_problem(8, 8, 8);
  const auto sent_bytes = [&](const std::string& side) {
    return traffic_of_all(
               make_plan(problem, parse_strategy("usp:u=2,backward=" + side), Pass::Backward))
        .sent_bytes;
  };
  EXPECT_LT(sent_bytes("q"), sent_bytes("kv"));
  EXPECT_EQ(sent_bytes("cheaper"), sent_bytes("q"));
  problem.mask = parse_mask("bands:0-32/0-4/..", {32, 32});
  problem.layout = parse_layout("contiguous");
  EXPECT_LT(sent_bytes("kv"), sent_bytes("q"));
  EXPECT_EQ(sent_bytes("cheaper"), sent_bytes("kv"));
}

/// Attention2D sends as much as `grid`, and K, V to the transposed place (dK, dV back), except on
/// ranks that hold their own K, V.
TEST(FamilyTraffic, Attention2dSendsTheGridAndItsTransposes) {
  for (const auto& [world, rows, fixed] :
       {std::tuple(4, 2, 2), std::tuple(16, 4, 4), std::tuple(64, 8, 8), std::tuple(8, 2, 2)}) {
    for (const char* overlap : {"", ",overlap=true"}) {
      const Problem problem = full_problem(world, 8, 2);
      const RankSizes s(problem);
      const std::int64_t transposed = s.n * s.hk * (s.d + s.e) * kWord;
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        expect_bytes(problem, "attention2d:rows=" + std::to_string(rows) + overlap, pass,
                     grid_bytes(problem, {1, rows, world / rows}, pass) + transposed,
                     {.saved_bytes = transposed, .ranks = fixed});
      }
    }
  }
}

TEST(FamilyTraffic, StarTrailSendsCollectivesHopAndSubRings) {
  for (const auto& [world, c] : {std::pair(4, 2), std::pair(8, 2), std::pair(16, 2),
                                 std::pair(16, 4), std::pair(64, 4), std::pair(64, 8)}) {
    for (const char* placement : {"", ",placement=p2p_intra"}) {
      const Problem problem = full_problem(world, 8, 2);
      const RankSizes s(problem);
      const std::string strategy = "startrail:c=" + std::to_string(c) + placement;
      const std::int64_t kv = s.n * s.hk * (s.d + s.e);
      const std::int64_t q = s.n * s.hq;
      const std::int64_t rings = world / c / c - 1;
      const std::int64_t hop = c * kv * kWord;
      expect_bytes(problem, strategy, Pass::Forward,
                   (c - 1) * (q * s.d * kWord + kv * kWord + q * (s.e + 1) * kSum) + hop +
                       rings * c * kv * kWord,
                   {.saved_bytes = hop, .ranks = c});
      const std::int64_t walks = q * ((s.d + s.e) * kWord + 2 * kSum) + q * s.d * kSum;
      expect_bytes(problem, strategy, Pass::Backward,
                   (c - 1) * (kv * (kWord + kSum) + walks) + c * walks + rings * c * walks,
                   {.saved_bytes = c * walks, .ranks = c});
    }
  }
}

/// GiB per rank and layer that the paper gives for N = 65536, H = 6656, P = 64, C = 4, in bf16.
/// Here Out travels in fp32 with its log-sum-exp; it is counted as bf16, without the log-sum-exp.
TEST(FamilyTraffic, StarTrailModelM) {
  constexpr double kGib = 1 << 30;
  constexpr std::int64_t kTokens = 65536;
  Problem problem = full_problem(64, 52, 52);
  problem.mask = full_mask({kTokens, kTokens});
  problem.head_dim = problem.value_dim = 128;
  const auto gib = [&](const std::string& strategy, Rank rank) {
    const Planner planner(problem, parse_strategy(strategy));
    const RankProgram program = planner.program(Pass::Forward, rank);
    std::map<Lane, double> lanes;
    for (const Op& op : program.ops) {
      if (op.kind != OpKind::Send) continue;
      const Tile& tile = program.tiles[op.views[0].tile];
      const auto bytes =
          static_cast<double>(bytes_of(problem, planner.blocks(), tile, op.views[0]));
      if (tile.tensor == Tensor::Lse) continue;
      lanes[op.lane] += (tile.partial ? bytes / 2 : bytes) / kGib;
    }
    return lanes;
  };
  EXPECT_DOUBLE_EQ(gib("ring", 5)[1], 1.625 * 63 / 64);
  std::map<Lane, double> startrail = gib("startrail:c=4", 5);
  EXPECT_DOUBLE_EQ(startrail[3] + startrail[4], 0.15234375) << "collectives of teams";
  EXPECT_DOUBLE_EQ(startrail[1], 0.40625) << "first hop and sub-rings";
  EXPECT_DOUBLE_EQ(startrail[1] + startrail[3] + startrail[4], 0.55859375);
}

TEST(AutoTraffic, StaysNearTheLowerBoundFromEightRanksOn) {
  for (const auto& [heads, kv_heads] : {std::pair(32, 32), std::pair(32, 8), std::pair(8, 1)}) {
    for (const int world : {8, 16, 32, 64, 128, 256}) {
      Problem problem = full_problem(world, heads, kv_heads);
      problem.mask = full_mask({65536, 65536});
      problem.layout = {};
      problem.head_dim = problem.value_dim = 128;
      problem.transfer_dtype =
          TransferDtype::Input;  // the bound counts a partial result as one word
      const Planner planner(problem, parse_strategy("auto:traffic"));
      const RankProgram program = planner.program(Pass::Forward, 1);
      const auto bytes =
          static_cast<double>(traffic(problem, planner.blocks(), program).received_bytes);
      // 1.1111 at worst, 32/8 heads on 8 ranks: 1120 words a token against 1008.
      EXPECT_LE(bytes / forward_lower_bound(problem), 1.1112)
          << heads << '/' << kv_heads << " world " << world;
    }
  }
}

std::string cut_text(const Grid& cut) {
  return fmt::format("grid:backward=kv,rk={},row=ring,rq={},u={}", cut.rk, cut.rq, cut.u);
}

/// The cuts of forward and backward that together send least, found by making every plan. Both have
/// the same u; the first of equals is taken.
std::array<Grid, 2> cuts_that_send_least(const Problem& problem) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::array<Grid, 2> best;
  for (int u = 1; u <= std::min(problem.world, problem.heads); ++u) {
    if (problem.world % u != 0) continue;
    std::array<Grid, 2> cuts;
    std::array<std::int64_t, 2> bytes{std::numeric_limits<std::int64_t>::max(),
                                      std::numeric_limits<std::int64_t>::max()};
    for (int rk = 1; rk <= problem.world / u; ++rk) {
      if (problem.world / u % rk != 0) continue;
      const Grid cut{.u = u, .rq = problem.world / u / rk, .rk = rk};
      for (const std::size_t p : {0, 1}) {
        const Pass pass = p == 0 ? Pass::Forward : Pass::Backward;
        const std::int64_t sent_bytes =
            traffic_of_all(make_plan(problem, parse_strategy(cut_text(cut)), pass)).sent_bytes;
        if (sent_bytes >= bytes[p]) continue;
        bytes[p] = sent_bytes;
        cuts[p] = cut;
      }
    }
    if (bytes[0] + bytes[1] >= least) continue;
    least = bytes[0] + bytes[1];
    best = cuts;
  }
  return best;
}

TEST(AutoTraffic, IsTheFirstCutThatSendsLeastInBothPasses) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] about counts, not about memory";
  std::set<int> ways;
  int two_cuts = 0;
  for (const int world : {1, 4, 6, 8, 12}) {
    for (const std::string mask : {"full", "causal", "documents:5,30,1,60", "window:left=3,right=0",
                                   "documents:24,24,24,24"}) {
      for (const auto& [heads, kv_heads] : {std::pair(12, 12), std::pair(12, 3), std::pair(8, 1)}) {
        Problem problem = full_problem(world, heads, kv_heads);
        problem.mask = parse_mask(mask, {96, 96});
        problem.layout = parse_layout(mask == "full" ? "striped:2" : "contiguous");
        SCOPED_TRACE(fmt::format("world {}, {}, heads {}/{}", world, mask, heads, kv_heads));
        const std::array<Grid, 2> best = cuts_that_send_least(problem);
        for (const Pass pass : {Pass::Forward, Pass::Backward}) {
          const std::string cut = cut_text(best[pass == Pass::Forward ? 0 : 1]);
          EXPECT_EQ(make_plan(problem, parse_strategy("auto:traffic"), pass).ranks,
                    make_plan(problem, parse_strategy(cut), pass).ranks)
              << cut << ", " << to_string(pass);
        }
        ways.insert(best[0].u);
        two_cuts += best[0].rk != best[1].rk ? 1 : 0;
      }
    }
  }
  EXPECT_GT(ways.size(), 2u);
  EXPECT_GT(two_cuts, 0) << "never different cuts of the two passes";
}

/// Bytes sent in forward, mean over ranks, divided by the lower bound for the mask at hand and the
/// work of each rank.
double over_bound(const Problem& problem) {
  const Plan plan = make_plan(problem, parse_strategy("auto:traffic"), Pass::Forward);
  std::vector<double> pairs;
  pairs.reserve(plan.ranks.size());
  for (const RankProgram& program : plan.ranks) {
    pairs.push_back(static_cast<double>(traffic(problem, plan.blocks, program).visible_pairs));
  }
  const double sent_bytes = static_cast<double>(traffic_of_all(plan).sent_bytes) / problem.world;
  return sent_bytes / ForwardBound(problem).bytes(pairs);
}

/// The factors that docs/strategies.md states for `auto:traffic`.
TEST(AutoTraffic, StaysNearTheLowerBound) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] about counts, not about memory";
  struct Case {
    const char* mask;
    TransferDtype transfer_dtype;
    double most;
  };
  for (const Case& c :
       {Case{"causal", TransferDtype::Input, 1.53}, Case{"full", TransferDtype::Input, 1.112},
        Case{"full", TransferDtype::Accumulator, 1.22}}) {
    double most = 0;
    for (const auto& [heads, kv_heads] : {std::pair(32, 32), std::pair(32, 8), std::pair(8, 1)}) {
      for (const int world : {8, 16, 64}) {
        Problem problem = full_problem(world, heads, kv_heads);
        problem.mask = parse_mask(c.mask, {65536, 65536});
        problem.layout = parse_layout("zigzag");
        problem.head_dim = problem.value_dim = 128;
        problem.transfer_dtype = c.transfer_dtype;
        const double over = over_bound(problem);
        EXPECT_GE(over, 1) << c.mask << ' ' << heads << '/' << kv_heads << " world " << world;
        most = std::max(most, over);
      }
    }
    EXPECT_LE(most, c.most) << c.mask << ", transfer dtype " << to_string(c.transfer_dtype);
    EXPECT_GT(most, 0.97 * c.most) << "what is said is nearer than that";
  }
}

/// Counted bytes are those of the plan, whatever the grid, mask and layout.
RC_GTEST_PROP(SentBytes, AreThoseOfThePlan, ()) {
  using enum Movement;
  Grid grid{.u = *rc::gen::element(1, 2, 3),
            .rq = *rc::gen::element(1, 2, 3, 4),
            .rk = *rc::gen::element(1, 2, 3),
            .column = *rc::gen::element(Gather, Ring, RingBack, Bidirectional),
            .row = *rc::gen::element(Gather, Ring, Bidirectional),
            .home = *rc::gen::element(Gather, Ring)};
  if (grid.u == 1) grid.transposed = *rc::gen::arbitrary<bool>();
  const std::string mask = *rc::gen::element<std::string>(
      "full", "causal", "window:left=9,right=0", "documents:20,31,10,29", "bands:0-30/50-90/..");
  const Problem problem{
      .world = grid.u * grid.rq * grid.rk,
      .heads = 6,
      .kv_heads = *rc::gen::element(1, 2, 3, 6),
      .head_dim = 4,
      .value_dim = 2,
      .dtype = *rc::gen::element(Dtype::Bf16, Dtype::F32),
      .mask = parse_mask(mask, {90, 90}),
      .layout = parse_layout(
          *rc::gen::element<std::string>("contiguous", "zigzag", "striped:3", "balanced")),
      .return_lse = *rc::gen::arbitrary<bool>(),
      .transfer_dtype = *rc::gen::element(TransferDtype::Accumulator, TransferDtype::Input)};
  const Blocks blocks = make_blocks(problem);
  const Visibility visibility(problem.mask, blocks);
  const Needs needs(grid, blocks, visibility);
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    RC_ASSERT(sent_bytes(problem, blocks, needs, grid, pass) ==
              traffic_of_all(plan_of(problem, grid, pass)).sent_bytes);
  }
}

}  // namespace
}  // namespace armillary::plan
