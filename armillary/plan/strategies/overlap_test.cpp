// overlap_test.cpp: sums that are on their way home while the rank still computes others.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "armillary/plan/hazards.h"
#include "armillary/plan/strategy.h"

namespace armillary::plan {
namespace {

Problem full_problem(int world) {
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
  int early = 0;  ///< Wait for nothing from the last attention on.
  int late = 0;
};

/// Sends of partials of a tensor.
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

/// The last block of queries meets the keys block by block, the first to leave first.
TEST(Overlap, Attention2dScattersSumsOfKeysWhileTheLastQueriesAreComputed) {
  for (const int rows : {2, 3, 4}) {
    for (const int columns : {2, 3}) {
      const Problem problem = full_problem(rows * columns);
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

/// What arrives last meets what the team gathered member by member, own tokens last.
TEST(Overlap, StarTrailScattersPartialsWhileTheLastKeysAreComputed) {
  for (const auto& [world, c] :
       {std::pair(4, 2), std::pair(8, 2), std::pair(9, 3), std::pair(16, 4), std::pair(18, 3)}) {
    const std::string strategy = "startrail:c=" + std::to_string(c);
    const Problem problem = full_problem(world);
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

}  // namespace
}  // namespace armillary::plan
