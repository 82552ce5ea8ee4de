// tokenring_test.cpp: plans of `tokenring` against the paper's algorithm, written out: which rank
// sends whose block to whom in which step, and which blocks are attended together.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "armillary/plan/testing/paper_plan.h"

namespace armillary::plan {
namespace {

/// Algorithm 1 for n ranks: Q goes on while it is attended; (out, lse) of step i returns directly
/// to its owner in step i + 1.
Written algorithm1(int n) {
  Written written;
  for (Rank j = 0; j < n; ++j) {
    for (int i = 0; i < n; ++i) {
      const Rank owner = (j - i + n) % n;
      written.meetings.insert({i, j, owner, j});
      if (i < n - 1) written.send(i, j, (j + 1) % n, {owner}, {Tensor::Q});
      if (i > 0) written.send(i + 1, j, owner, {owner}, {Tensor::Out, Tensor::Lse});
    }
  }
  return written;
}

/// Section 3.3.3 for M nodes of n neighbouring ranks: each round is Algorithm 1 in every node, and
/// K, V go to the next node for the next round. As in the paper (walk), queries walk in each round
/// and each round returns (out, lse). Otherwise the queries of a node stay where they arrived in
/// the first round, and the last round returns all (out, lse).
Written tokenring_inside(int nodes, int n, bool walk) {
  Written written;
  for (int node = 0; node < nodes; ++node) {
    for (int round = 0; round < nodes; ++round) {
      const int keys_of = (node - round + nodes) % nodes;
      for (int j = 0; j < n; ++j) {
        const Rank me = node * n + j;
        const Rank keys = keys_of * n + j;
        if (round < nodes - 1) {
          written.send(round * n, me, (node + 1) % nodes * n + j, {keys}, {Tensor::K, Tensor::V});
        }
        for (int i = 0; i < n; ++i) {
          const int step = round * n + i;
          const Rank queries = node * n + (j - i + n) % n;
          written.meetings.insert({step, me, queries, keys});
          const Rank next = node * n + (j + 1) % n;
          if ((walk || round == 0) && i < n - 1) {
            written.send(step, me, next, {queries}, {Tensor::Q});
          }
          if ((walk || round == nodes - 1) && i > 0)
            written.send(step + 1, me, queries, {queries}, {Tensor::Out, Tensor::Lse});
        }
      }
    }
  }
  return written;
}

/// The other nesting: K, V walk in each node of n neighbouring ranks, in every round (walk) or only
/// in the first, and stay where they arrived; then Q goes to the next node. Each round completes
/// (out, lse) of the queries that it attends.
Written ring_inside(int nodes, int n, bool walk) {
  Written written;
  for (int node = 0; node < nodes; ++node) {
    for (int round = 0; round < nodes; ++round) {
      for (int i = 0; i < n; ++i) {
        const Rank me = node * n + i;
        const Rank queries = (node - round + nodes) % nodes * n + i;
        if (round < nodes - 1) {
          const Rank next = (node + 1) % nodes * n + i;
          written.send(round * n, me, next, {queries}, {Tensor::Q});
        }
        if (round > 0)
          written.send((round + 1) * n, me, queries, {queries}, {Tensor::Out, Tensor::Lse});
        for (int e = 0; e < n; ++e) {
          const Rank keys = node * n + (i - e + n) % n;
          written.meetings.insert({round * n + e, me, queries, keys});
          if ((walk || round == 0) && e < n - 1) {
            written.send(round * n + e, me, node * n + (i + 1) % n, {keys}, {Tensor::K, Tensor::V});
          }
        }
      }
    }
  }
  return written;
}

TEST(TokenRing, IsAlgorithm1) {
  for (const int world : {1, 2, 3, 4, 5, 7, 8, 13, 16}) {
    SCOPED_TRACE(world);
    expect_as_written(paper_plan(world, "tokenring", Pass::Forward), algorithm1(world));
  }
}

struct Nodes {
  int world;
  int nodes;
  int size() const { return world / nodes; }
  std::string key() const { return "tokenring:nodes=" + std::to_string(nodes); }
};

constexpr Nodes kNodes[] = {{4, 2},  {6, 2},  {6, 3},  {8, 2},   {8, 4},  {9, 3},  {10, 5},
                            {12, 3}, {12, 4}, {13, 1}, {13, 13}, {16, 2}, {16, 4}, {16, 8}};

TEST(TokenRing, BetweenNodesIsSection333) {
  for (const Nodes& of : kNodes) {
    SCOPED_TRACE(of.key() + ", world " + std::to_string(of.world));
    const auto plan = [&](const std::string& more) {
      return paper_plan(of.world, of.key() + more, Pass::Forward);
    };
    const Written stay = tokenring_inside(of.nodes, of.size(), false);
    expect_as_written(plan(",tiles=stay"), stay);
    const Written walk = tokenring_inside(of.nodes, of.size(), true);
    expect_as_written(plan(""), walk);
    expect_as_written(plan(",inner=tokenring,tiles=walk"), walk);
  }
}

TEST(TokenRing, RingInsideIsTheOtherNesting) {
  for (const Nodes& of : kNodes) {
    SCOPED_TRACE(of.key() + ",inner=ring, world " + std::to_string(of.world));
    for (const bool walk : {false, true}) {
      const std::string more = std::string(",inner=ring") + (walk ? "" : ",tiles=stay");
      expect_as_written(paper_plan(of.world, of.key() + more, Pass::Forward),
                        ring_inside(of.nodes, of.size(), walk));
    }
  }
}

/// For each sum that is sent: steps between the last attention that adds to it and its send.
std::vector<int> steps_waited(const Plan& plan, Tensor sum, int operand) {
  std::vector<int> waited;
  for (const RankProgram& program : plan.ranks) {
    for (const Op& send : program.ops) {
      if (send.kind != OpKind::Send || program.tiles[send.views[0].tile].tensor != sum) continue;
      int last = -1;
      for (const Op& op : program.ops) {
        if (!attends(op) && !attends_grad(op)) continue;
        if (op.views[operand].tile == send.views[0].tile) last = std::max(last, op.step);
      }
      waited.push_back(send.step - last);
    }
  }
  return waited;
}

/// No sum waits for another one, also in backward.
TEST(TokenRing, SumsLeaveOneStepAfterTheirLastKeys) {
  for (const Nodes& of : kNodes) {
    for (const char* inner : {"tokenring", "ring"}) {
      const std::string strategy = of.key() + ",tiles=stay,inner=" + inner;
      const int others = std::string(inner) == "ring" ? of.nodes - 1 : of.size() - 1;
      for (const auto& [pass, sum, operand] :
           {std::tuple(Pass::Forward, Tensor::Out, 3), std::tuple(Pass::Backward, Tensor::DQ, 6)}) {
        EXPECT_EQ(steps_waited(paper_plan(of.world, strategy, pass), sum, operand),
                  std::vector(static_cast<std::size_t>(of.world) * others, 1))
            << strategy << ' ' << to_string(pass);
      }
    }
  }
}

/// One step and one kernel call for each pair of shards that a rank attends, and one step for the
/// last sum. Backward computes Delta first.
TEST(TokenRing, StepsAndCalls) {
  for (const Nodes& of : kNodes) {
    for (const std::string inner :
         {"tokenring", "ring", "tokenring,tiles=stay", "ring,tiles=stay"}) {
      const std::string strategy = of.key() + ",inner=" + inner;
      SCOPED_TRACE(strategy + ", world " + std::to_string(of.world));
      const bool sums = inner.starts_with("ring") ? of.nodes > 1 : of.size() > 1;
      const Plan forward = paper_plan(of.world, strategy, Pass::Forward);
      EXPECT_EQ(steps_of(forward), of.world + (sums ? 1 : 0));
      EXPECT_EQ(calls_of(forward), std::vector(of.world, of.world));
      const Plan backward = paper_plan(of.world, strategy, Pass::Backward);
      EXPECT_EQ(steps_of(backward), of.world + (sums ? 2 : 1));
      EXPECT_EQ(calls_of(backward), std::vector(of.world, of.world));
    }
  }
}

/// Blocks in memory, without the rank's own: the queries of the node (without nodes: one that is
/// attended and one that arrives), and the keys of one node that arrive while those of another are
/// attended.
TEST(TokenRing, LiveBlocks) {
  for (const Nodes& of : kNodes) {
    const Plan stay = paper_plan(of.world, of.key() + ",tiles=stay", Pass::Forward);
    const int n = of.size();
    SCOPED_TRACE(of.key() + ", world " + std::to_string(of.world));
    EXPECT_EQ(live_blocks_of(stay, Tensor::Q), of.nodes == 1 ? std::min(n - 1, 2) : n - 1);
    EXPECT_EQ(live_blocks_of(stay, Tensor::K), std::min(of.nodes - 1, 2));
    const Plan walk = paper_plan(of.world, of.key(), Pass::Forward);
    EXPECT_EQ(live_blocks_of(walk, Tensor::Q), std::min(n - 1, 2));
    EXPECT_EQ(live_blocks_of(walk, Tensor::K), std::min(of.nodes - 1, 2));
  }
}

}  // namespace
}  // namespace armillary::plan
