// traffic_test.cpp: what moves where the mask leaves things out, and how work is shared.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "armillary/plan/strategies/every_strategy.h"
#include "armillary/plan/strategies/grid_plan.h"
#include "armillary/plan/strategy.h"

namespace armillary::plan {
namespace {

constexpr int kKvHeads = 2;
constexpr int kHeadDim = 8;
constexpr int kValueDim = 4;
/// Bytes of K and V of a token, and of dK and dV as sums.
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

TEST(Traffic, DocumentsThatAreShardsSendNothing) {
  for (const std::string strategy : {"ring", "allgather"}) {
    for (const int world : {1, 2, 3, 5, 8}) {
      for (const std::string within : {"causal", "full"}) {
        const Problem problem = make_problem(world, std::int64_t{24} * world,
                                             documents(world, 24) + ",within=" + within);
        for (const Pass pass : {Pass::Forward, Pass::Backward}) {
          EXPECT_EQ(sent_by_all(problem, strategy, pass), 0)
              << strategy << " " << to_string(pass) << ", world " << world << ", " << within;
        }
      }
    }
  }
}

/// Where documents end inside shards, a rank is sent the beginning of its first document and no
/// more.
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

/// A document per super-block of usp: nothing moves on the ring, and each super-block is a ulysses
/// of its own.
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

/// Tokens that rank r receives forward, of 20 a rank, for a window of `left` and `right`.
std::int64_t halo(std::int64_t r, int world, std::int64_t left, std::int64_t right) {
  return std::min(left, 20 * r) + std::min(right, 20 * (world - 1 - r));
}

TEST(Traffic, AWindowMovesItsHalo) {
  constexpr int kWorld = 5;
  struct Row {
    std::string strategy;
    std::int64_t left;
    std::int64_t right;
  };
  for (const Row& row : {Row{"ring", 7, 0}, Row{"ring", 50, 0}, Row{"ring", 0, 7},
                         Row{"ring", 0, 33}, Row{"allgather", 7, 0}, Row{"allgather", 50, 0},
                         Row{"allgather", 7, 3}, Row{"allgather", 25, 41}, Row{"ring", 0, 0}}) {
    const std::string mask = fmt::format("window:left={},right={}", row.left, row.right);
    const std::vector<Traffic> ranks =
        traffic_per_rank(make_problem(kWorld, 100, mask), row.strategy, Pass::Forward);
    for (int r = 0; r < kWorld; ++r) {
      EXPECT_EQ(ranks[r].received_bytes, halo(r, kWorld, row.left, row.right) * kKvBytes)
          << row.strategy << ", " << mask << ", rank " << r;
    }
  }
}

/// Backward: the halo again, and a sum for every token of ours from every rank that saw it.
TEST(Traffic, AWindowBringsBackTheSumsOfItsHalo) {
  constexpr int kWorld = 5;
  const std::vector<Traffic> ranks = traffic_per_rank(
      make_problem(kWorld, 100, "window:left=7,right=0"), "allgather", Pass::Backward);
  for (int r = 0; r < kWorld; ++r) {
    EXPECT_EQ(ranks[r].received_bytes, (r > 0 ? 7 * kKvBytes : 0) + (r < 4 ? 7 * kSumBytes : 0))
        << "rank " << r;
  }
}

/// closed_forms.md, section 3: under zigzag and a causal mask a quarter of the foreign traffic is
/// for nobody, for every world; under contiguous one half.
TEST(Traffic, CausalZigzagNeedsThreeQuarters) {
  for (const int world : {2, 4, 8, 16}) {
    const std::int64_t length = std::int64_t{64} * world;
    const Problem full = make_problem(world, length, "full", "zigzag");
    const Problem causal = make_problem(world, length, "causal", "zigzag");
    for (const std::string strategy : {"ring", "allgather"}) {
      EXPECT_EQ(4 * sent_by_all(causal, strategy, Pass::Forward),
                3 * sent_by_all(full, strategy, Pass::Forward))
          << strategy << ", world " << world;
    }
    EXPECT_EQ(4 * sent_by_all(causal, "allgather", Pass::Backward),
              3 * sent_by_all(full, "allgather", Pass::Backward))
        << "world " << world;
    EXPECT_EQ(2 * sent_by_all(make_problem(world, length, "causal"), "ring", Pass::Forward),
              sent_by_all(full, "ring", Pass::Forward))
        << "contiguous, world " << world;
  }
}

/// In backward a ring cannot save on both K, V and their sums: one goes the whole way round.
TEST(Traffic, CausalRingsSaveInBackwardToo) {
  const Problem full = make_problem(16, 1024, "full", "zigzag");
  const auto ratio = [&](const std::string& layout) {
    return static_cast<double>(
               sent_by_all(make_problem(16, 1024, "causal", layout), "ring", Pass::Backward)) /
           static_cast<double>(sent_by_all(full, "ring", Pass::Backward));
  };
  EXPECT_LE(ratio("zigzag"), 0.83);
  EXPECT_LE(ratio("contiguous"), 0.65);
}

Movement way(const Problem& problem, Pass pass) {
  const Grid grid{.rq = problem.world, .column = Movement::Ring};
  const Blocks blocks = make_blocks(problem);
  const BlockAreas areas(problem.mask, blocks);
  return with_shorter_ring(problem, blocks, Needs(grid, blocks, areas), grid, pass).column;
}

TEST(Traffic, ARingWalksToWhereItIsNeeded) {
  using enum Movement;
  const Problem full = make_problem(8, 256, "full");
  const Problem contiguous = make_problem(8, 256, "causal");
  Problem zigzag = make_problem(8, 256, "causal", "zigzag");
  EXPECT_EQ(way(full, Pass::Forward), Ring) << "as good as back";
  EXPECT_EQ(way(full, Pass::Backward), Ring) << "as good as back";
  EXPECT_EQ(way(contiguous, Pass::Forward), Ring) << "later ranks see earlier ones";
  EXPECT_EQ(way(contiguous, Pass::Backward), RingBack) << "fp32 sums come straight home";
  EXPECT_EQ(way(zigzag, Pass::Forward), RingBack) << "late pieces are seen by ranks below";
  EXPECT_EQ(way(zigzag, Pass::Backward), Ring) << "fp32 sums come straight home";
  zigzag.dtype = Dtype::F32;
  EXPECT_EQ(way(zigzag, Pass::Backward), Ring) << "as good as back: sums are as wide as K, V";
  EXPECT_EQ(way(make_problem(8, 0, "full"), Pass::Forward), Ring) << "nothing to move";
}

/// Whatever the mask: the way that is chosen moves no more than the other.
RC_GTEST_PROP(TrafficOfRings, IsLeast, ()) {
  const int world = *rc::gen::element(2, 3, 5, 8).as("world");
  const std::string layout =
      *rc::gen::element<std::string>("contiguous", "zigzag", "striped:3", "balanced");
  const std::string mask = *rc::gen::element<std::string>(
      "causal", "window:left=9,right=0", "window:left=2,right=14", "prefix:20", "block_causal:7",
      "documents:20,31,10,29", "bands:0-30/50-90/..;40-90/0-10/..");
  Problem problem = make_problem(world, 90, mask, layout);
  problem.dtype = *rc::gen::element(Dtype::Bf16, Dtype::F32);
  const Pass pass = *rc::gen::element(Pass::Forward, Pass::Backward);
  const auto bytes = [&](Movement movement) {
    return traffic_of_all(plan_of(problem, {.rq = world, .column = movement}, pass)).sent_bytes;
  };
  RC_ASSERT(bytes(way(problem, pass)) ==
            std::min(bytes(Movement::Ring), bytes(Movement::RingBack)));
}

/// Visible pairs of the rank that has most, relative to the mean.
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
    const std::int64_t length = std::int64_t{64} * world;
    const Problem zigzag = make_problem(world, length, "causal", "zigzag");
    EXPECT_LE(imbalance(zigzag, "ring"), 1.02) << "world " << world;
    EXPECT_LE(imbalance(zigzag, "allgather"), 1.02) << "world " << world;
    EXPECT_GE(imbalance(make_problem(world, length, "causal"), "ring"), 1.45)
        << "contiguous, world " << world;
  }
}

TEST(Traffic, EveryStrategySharesCausalWorkEvenly) {
  for (const int world : {2, 3, 4, 6, 9, 16}) {
    for (const char* layout : {"zigzag", "striped"}) {
      Problem problem = make_problem(world, std::int64_t{64} * world, "causal", layout);
      problem.heads = 144;  // even head groups for every u
      for (const std::string& strategy : every_strategy(problem)) {
        EXPECT_LE(imbalance(problem, strategy), 1.02) << strategy << ' ' << layout << ' ' << world;
      }
    }
  }
}

}  // namespace
}  // namespace armillary::plan
