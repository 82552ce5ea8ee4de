// overlap_test.cpp: sums return to their owners while the rank still computes others, on lanes of
// their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "armillary/plan/program/hazards.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/testing/every_strategy.h"

namespace armillary::plan {
namespace {

Problem striped_problem(int world) {
  const std::int64_t length = std::int64_t{6} * world;
  return {.world = world,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 8,
          .value_dim = 4,
          .dtype = Dtype::Bf16,
          .mask = full_mask({length, length}),
          .layout = parse_layout("striped")};
}

/// Last op of the kind; -1 if there is none.
int last_of(const RankProgram& program, OpKind kind) {
  int last = -1;
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    if (program.ops[i].kind == kind) last = i;
  }
  return last;
}

struct Sums {
  int early = 0;  ///< Sends that wait for neither the last attention nor any op after it.
  int late = 0;   ///< All other sends.
};

/// Counts the sends of partial tiles of a tensor.
Sums sums_sent(const RankProgram& program, Tensor tensor, OpKind attention) {
  const int last = last_of(program, attention);
  const std::vector<std::vector<int>> waits = dependencies(program);
  Sums sums;
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[i];
    if (op.kind != OpKind::Send) continue;
    const Tile& tile = program.tiles[op.views[0].tile];
    if (tile.tensor != tensor || !tile.partial) continue;
    const bool late =
        std::any_of(waits[i].begin(), waits[i].end(), [&](int before) { return before >= last; });
    ++(late ? sums.late : sums.early);
  }
  return sums;
}

/// The last block of queries attends the keys block by block, in the order in which sums leave.
TEST(Overlap, Attention2dScattersSumsOfKeysWhileTheLastQueriesAreComputed) {
  for (const int rows : {2, 3, 4}) {
    for (const int columns : {2, 3}) {
      const Problem problem = striped_problem(rows * columns);
      const std::string strategy = "attention2d:overlap=true,rows=" + std::to_string(rows);
      for (const RankProgram& program :
           make_plan(problem, parse_strategy(strategy), Pass::Backward).ranks) {
        const Sums sums = sums_sent(program, Tensor::DK, OpKind::AttendGrad);
        EXPECT_EQ(sums.early, rows - 1) << strategy << ", rank " << program.rank;
        EXPECT_EQ(sums.late, 0) << strategy << ", rank " << program.rank;
      }
    }
  }
}

/// The last tile of the ring is attended with the gathered tokens of one member after the other,
/// the rank's own tokens last.
TEST(Overlap, StarTrailScattersPartialsWhileTheLastKeysAreComputed) {
  for (const auto& [world, c] :
       {std::pair(4, 2), std::pair(8, 2), std::pair(9, 3), std::pair(16, 4), std::pair(18, 3)}) {
    const std::string strategy = "startrail:c=" + std::to_string(c);
    const Problem problem = striped_problem(world);
    for (const auto& [pass, tensor, attention] :
         {std::tuple(Pass::Forward, Tensor::Out, OpKind::Attend),
          std::tuple(Pass::Backward, Tensor::DK, OpKind::AttendGrad)}) {
      for (const RankProgram& program : make_plan(problem, parse_strategy(strategy), pass).ranks) {
        const Sums sums = sums_sent(program, tensor, attention);
        EXPECT_EQ(sums.early, c - 1) << strategy << ' ' << to_string(pass) << ' ' << program.rank;
        EXPECT_EQ(sums.late, 0) << strategy << ' ' << to_string(pass) << ' ' << program.rank;
      }
    }
  }
}

/// A rank computes its own share of a sum before it adds those that arrive, so it does not wait
/// while it has work. If sums return from each of several rounds, this holds within each step.
TEST(Overlap, SumsThatArriveAreAddedAfterTheOwn) {
  int sums = 0;
  for (const int world : {4, 6, 8, 9}) {
    const Problem problem = striped_problem(world);
    for (const std::string& strategy : every_strategy(problem)) {
      const bool in_rounds = strategy.find("nodes=") != std::string::npos &&
                             strategy.find("tiles=stay") == std::string::npos;
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        for (const RankProgram& program :
             make_plan(problem, parse_strategy(strategy), pass).ranks) {
          std::vector<View> added_to;
          int step = -1;
          const auto is_added_to = [&](const View& view) {
            return std::any_of(added_to.begin(), added_to.end(), [&](const View& sum) {
              return sum.tile == view.tile && overlap(sum, view);
            });
          };
          for (const Op& op : program.ops) {
            if (in_rounds && op.step != step) added_to.clear();
            step = op.step;
            if (op.kind == OpKind::Merge || op.kind == OpKind::Add) {
              added_to.push_back(op.views[0]);
              ++sums;
            } else if (op.kind == OpKind::Attend || op.kind == OpKind::AttendGrad) {
              EXPECT_FALSE(std::any_of(op.views.begin(), op.views.end(), is_added_to))
                  << strategy << ", world " << world << ", " << to_string(pass) << ", rank "
                  << program.rank << ", step " << op.step;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(sums, 1000);
}

using TensorLane = std::pair<Tensor, Lane>;

/// Lanes of the messages along axes: tiles on their way out, and sums on their way home.
struct AxisLanes {
  std::set<TensorLane> out;
  std::set<TensorLane> home;
  bool operator==(const AxisLanes&) const = default;
};

std::ostream& operator<<(std::ostream& stream, const AxisLanes& lanes) {
  for (const auto& [name, side] : {std::pair("out", &lanes.out), std::pair("home", &lanes.home)}) {
    stream << name;
    for (const auto& [tensor, lane] : *side) stream << ' ' << to_string(tensor) << ':' << lane;
    stream << ' ';
  }
  return stream;
}

/// Leaves out the exchange of heads, which happens at the beginning and at the end.
AxisLanes lanes_of(const Plan& plan) {
  AxisLanes lanes;
  for (const RankProgram& program : plan.ranks) {
    for (const Op& op : program.ops) {
      if (op.kind != OpKind::Send || op.collective == Collective::AllToAll) continue;
      const Tile& tile = program.tiles[op.views[0].tile];
      const bool result =
          plan.pass == Pass::Forward ? tile.partial : Tensor(tile.tensor) >= Tensor::DQ;
      (result ? lanes.home : lanes.out).insert({tile.tensor, op.lane});
    }
  }
  return lanes;
}

/// Sums never share a lane with tiles that travel, in any strategy: ops of one lane keep their
/// order, and a send that waits for a sum would hold up the tiles behind it.
TEST(Overlap, SumsGoHomeOnLanesOfTheirOwn) {
  int both = 0;
  for (const int world : {2, 4, 6, 8, 9}) {
    const Problem problem = striped_problem(world);
    for (const std::string& strategy : every_strategy(problem)) {
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        const AxisLanes lanes = lanes_of(make_plan(problem, parse_strategy(strategy), pass));
        for (const auto& [tensor, lane] : lanes.home) {
          for (const auto& [travelling, out] : lanes.out) {
            EXPECT_NE(lane, out) << strategy << ", world " << world << ", " << to_string(pass)
                                 << ": " << to_string(tensor) << " beside "
                                 << to_string(travelling);
          }
        }
        both += !lanes.home.empty() && !lanes.out.empty() ? 1 : 0;
      }
    }
  }
  EXPECT_GT(both, 50);
}

/// The two axes of a grid do not wait for each other either: columns have lanes 1 and 2, rows 3
/// and 4.
TEST(Overlap, AxesHaveLanesOfTheirOwn) {
  using enum Tensor;
  const std::set<TensorLane> k_and_v{{K, 1}, {V, 1}};
  const std::set<TensorLane> columns_home{{DK, 2}, {DV, 2}};
  const std::set<TensorLane> rows_back{{Q, 3}, {DOut, 3}, {Lse, 3}, {Delta, 3}};
  const AxisLanes grid_forward{{{K, 1}, {V, 1}, {Q, 3}}, {{Out, 4}, {Lse, 4}}};
  const AxisLanes grid_backward{{{K, 1}, {V, 1}, {Q, 3}, {DOut, 3}, {Lse, 3}, {Delta, 3}},
                                {{DK, 2}, {DV, 2}, {DQ, 4}}};
  // StarTrail: messages inside a team have lanes 3 and 4, hops and rings 1 and 2. The side that
  // walks uses both.
  const AxisLanes team_forward{{{K, 1}, {V, 1}, {K, 3}, {V, 3}, {Q, 3}}, {{Out, 4}, {Lse, 4}}};
  const AxisLanes team_backward{{{Q, 1},
                                 {DOut, 1},
                                 {Lse, 1},
                                 {Delta, 1},
                                 {Q, 3},
                                 {DOut, 3},
                                 {Lse, 3},
                                 {Delta, 3},
                                 {K, 3},
                                 {V, 3}},
                                {{DQ, 2}, {DQ, 4}, {DK, 4}, {DV, 4}}};
  const std::tuple<const char*, AxisLanes, AxisLanes> expected[] = {
      {"ring", {k_and_v, {}}, {k_and_v, columns_home}},
      {"allgather", {k_and_v, {}}, {k_and_v, columns_home}},
      {"bidirectional_ring", {k_and_v, {}}, {k_and_v, columns_home}},
      {"double_ring:window=4", {k_and_v, {}}, {k_and_v, columns_home}},
      {"ring:backward=q", {k_and_v, {}}, {rows_back, {{DQ, 4}}}},
      {"tokenring", {{{Q, 3}}, {{Out, 4}, {Lse, 4}}}, {rows_back, {{DQ, 4}}}},
      {"attention2d:rows=4", grid_forward, grid_backward},
      {"attention2d:overlap=true,rows=4", grid_forward, grid_backward},
      {"grid:u=1,rq=4,rk=2", grid_forward, grid_backward},
      {"startrail:c=2", team_forward, team_backward}};
  for (const auto& [strategy, forward, backward] : expected) {
    const auto lanes = [&, name = strategy](Pass pass) {
      return lanes_of(make_plan(striped_problem(8), parse_strategy(name), pass));
    };
    EXPECT_EQ(lanes(Pass::Forward), forward) << strategy;
    EXPECT_EQ(lanes(Pass::Backward), backward) << strategy;
  }
}

}  // namespace
}  // namespace armillary::plan
