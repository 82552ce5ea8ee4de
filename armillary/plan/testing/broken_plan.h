// broken_plan.h: small plans whose every tile and op is known, and ways to break them. Tests only.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <utility>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/verify/verify.h"

namespace armillary::plan {

inline std::ostream& operator<<(std::ostream& out, const Diagnostic& diagnostic) {
  return out << fmt::format("rank {} op {} {}: {}", diagnostic.rank, diagnostic.op, diagnostic.rule,
                            diagnostic.text);
}

inline Problem small_problem(int world) {
  const std::int64_t length = std::int64_t{4} * world;
  return {.world = world,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 2,
          .value_dim = 3,
          .mask = full_mask({length, length})};
}

/// The forward plan of a ring. With two ranks each has one block, and the program of a rank is:
///   tiles   0 k, 1 v, 2 q: inputs   3 k', 4 v': from the other rank   5 o, 6 plse   7 out, 8 lse
///   ops     0 k>  1 k'<  2 v>  3 v'<  4 clear(5)  5 clear(6)  6 q*kv  7 q*kv'  8 finish
inline Plan ring_forward(int world = 2) {
  return make_plan(small_problem(world), {.name = "ring"}, Pass::Forward);
}

/// The backward plan of a ring of two ranks with one block each. The program of a rank is:
///   tiles   0 q, 1 k, 2 v, 3 out, 4 lse: saved   5 dout   6 delta   7 k', 8 v'   9 dq+
///           10 dk+, 11 dv+: own sums   12 dk'+, 13 dv'+   14 dk+, 15 dv+: from the other rank
///           16 dq, 17 dk, 18 dv: outputs
///   ops     0 k>  1 k'<  2 v>  3 v'<  4 delta  5-7 clear(9, 10, 11)  8 grad(q*kv)
///           9-10 clear(12, 13)  11 grad(q*kv')  12 copy(dq)
///           13 dk'>  14 dv'>  15 dk<  16 dv<  17-18 add  19 copy(dk)  20 copy(dv)
inline Plan ring_backward() {
  return make_plan(small_problem(2), {.name = "ring"}, Pass::Backward);
}

inline std::vector<Op>& ops(Plan& plan, Rank rank) {
  return plan.ranks[rank].ops;
}
inline Tile& tile(Plan& plan, Rank rank, int id) {
  return plan.ranks[rank].tiles[id];
}
inline void drop(Plan& plan, Rank rank, int op) {
  ops(plan, rank).erase(ops(plan, rank).begin() + op);
}
inline void insert(Plan& plan, Rank rank, int before, Op op) {
  ops(plan, rank).insert(ops(plan, rank).begin() + before, std::move(op));
}
inline void repeat(Plan& plan, Rank rank, int op) {
  insert(plan, rank, op, ops(plan, rank)[op]);
}

/// Adds a tile like `id` in a slot of its own, and returns its id.
inline int add_tile_like(Plan& plan, Rank rank, int id) {
  RankProgram& program = plan.ranks[rank];
  program.tiles.push_back(program.tiles[id]);
  program.tiles.back().slot = static_cast<int>(program.slots.size());
  program.slots.push_back({.bytes = program.slots[program.tiles[id].slot].bytes});
  return static_cast<int>(program.tiles.size()) - 1;
}

inline View whole(const Plan& plan, Rank rank, int id) {
  const Tile& tile = plan.ranks[rank].tiles[id];
  return {id, tile.heads, tile.blocks};
}

/// The backward plan of one rank in which the two halves of the query heads read one KV head, each
/// half with sums of its own:
///   tiles   9 dk+, 10 dv+: of the first   13 dk'+, 14 dv'+: of the last half
///   ops     0 delta   1 clear(dq)   2-5 clear(9, 10, 13, 14)   6 grad(first half)
///           7 dk' += dk   8 grad(last half)   9 dv' += dv   10 copy(dq)   11 copy(dk', dv')
/// When grad(last half) adds to its sums, dk' has the gradient of the first half in it, and dv' is
/// still cleared.
inline Plan gradients_apart() {
  Problem problem = small_problem(1);
  problem.kv_heads = 1;
  Plan plan = make_plan(problem, {.name = "ring"}, Pass::Backward);
  const auto of = [&](Tensor tensor, bool partial) {
    int number = 0;
    while (tile(plan, 0, number).tensor != tensor || tile(plan, 0, number).partial != partial) {
      ++number;
    }
    return number;
  };
  const int sums[] = {of(Tensor::DK, true), of(Tensor::DV, true)};
  const int more[] = {add_tile_like(plan, 0, sums[0]), add_tile_like(plan, 0, sums[1])};
  std::vector<Op> others;
  for (Op op : ops(plan, 0)) {
    if (op.kind == OpKind::Copy && is_kv(tile(plan, 0, op.views[1].tile).tensor)) {
      op.views[1].tile = more[tile(plan, 0, op.views[1].tile).tensor == Tensor::DK ? 0 : 1];
    }
    if (op.kind != OpKind::AttendGrad) {
      others.push_back(op);
      continue;
    }
    for (const int i : {0, 1}) {
      others.push_back({.kind = OpKind::Clear, .views = {whole(plan, 0, more[i])}});
    }
    Op last = op;
    for (const std::size_t v : {0, 3, 4, 5, 6}) {
      op.views[v].heads = {0, 2};
      last.views[v].heads = {2, 4};
    }
    for (const int i : {0, 1}) last.views[7 + i].tile = more[i];
    const auto add = [&](int i) {
      return Op{.kind = OpKind::Add, .views = {whole(plan, 0, more[i]), whole(plan, 0, sums[i])}};
    };
    others.insert(others.end(), {op, add(0), last, add(1)});
  }
  for (Op& op : others) op.step = 0;
  ops(plan, 0) = others;
  return plan;
}

/// Moves tile `id` of rank 0 to the slot of tile `to`.
inline void move_to(Plan& plan, int id, int to) {
  tile(plan, 0, id).slot = tile(plan, 0, to).slot;
}

/// A change that makes an exact plan wrong.
using Breakage = std::function<void(Plan&)>;

/// Expects that the plan is exact, and that `expected` is the first diagnostic once it is broken.
inline void expect_first(Plan plan, const Breakage& breakage, const Diagnostic& expected) {
  ASSERT_EQ(verify(plan), std::vector<Diagnostic>{}) << "before it is broken";
  breakage(plan);
  const std::vector<Diagnostic> diagnostics = verify(plan);
  ASSERT_FALSE(diagnostics.empty()) << "not caught: " << testing::PrintToString(expected);
  EXPECT_EQ(diagnostics[0], expected);
}

inline void expect_first_forward(const Breakage& breakage, const Diagnostic& expected) {
  expect_first(ring_forward(), breakage, expected);
}

}  // namespace armillary::plan
