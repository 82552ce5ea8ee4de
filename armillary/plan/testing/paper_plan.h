// paper_plan.h: a plan as the papers write their algorithms: which rank sends whose block to whom
// in which step, which rank attends whose queries to whose keys, in how many kernel calls. A test
// writes an algorithm out as a `Written` and compares it with the plan. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/segments.h"
#include "armillary/plan/strategies/strategy.h"

namespace armillary::plan {

/// A block that is sent, named after the rank that owns its tokens.
struct MovedBlock {
  int step;
  Rank from;
  Rank to;
  Tensor tensor;
  Rank owner;
  auto key() const { return std::tie(step, from, to, tensor, owner); }
  bool operator<(const MovedBlock& other) const { return key() < other.key(); }
  bool operator==(const MovedBlock& other) const = default;
};

/// Queries of one rank that are attended with keys of another, on rank `at`.
struct Met {
  int step;
  Rank at;
  Rank q_owner;
  Rank kv_owner;
  auto key() const { return std::tie(step, at, q_owner, kv_owner); }
  bool operator<(const Met& other) const { return key() < other.key(); }
  bool operator==(const Met& other) const = default;
};

using Moves = std::set<MovedBlock>;
using Meetings = std::set<Met>;

inline std::ostream& operator<<(std::ostream& stream, const MovedBlock& moved) {
  return stream << "step " << moved.step << ": " << to_string(moved.tensor) << " of " << moved.owner
                << ", " << moved.from << " -> " << moved.to << '\n';
}

inline std::ostream& operator<<(std::ostream& stream, const Met& met) {
  return stream << "step " << met.step << ": at " << met.at << " q" << met.q_owner << " x kv"
                << met.kv_owner << '\n';
}

/// The elements of `all` that are not in `some`.
template <class T>
std::set<T> without(const std::set<T>& all, const std::set<T>& some) {
  std::set<T> rest;
  std::set_difference(all.begin(), all.end(), some.begin(), some.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

/// The ranks that own the tokens of a view.
inline std::set<Rank> owners(const Plan& plan, const RankProgram& program, const View& view) {
  std::set<Rank> owners;
  for (const int block : view.blocks) {
    owners.insert(blocks_of(plan.blocks, program.tiles[view.tile].tensor)[block].owner);
  }
  return owners;
}

inline Moves moves_of(const Plan& plan) {
  Moves moves;
  for (const RankProgram& program : plan.ranks) {
    for (const Op& op : program.ops) {
      if (op.kind != OpKind::Send) continue;
      for (const View& view : op.views) {
        for (const Rank owner : owners(plan, program, view)) {
          moves.insert({op.step, program.rank, op.peer, program.tiles[view.tile].tensor, owner});
        }
      }
    }
  }
  return moves;
}

inline Meetings meetings_of(const Plan& plan) {
  Meetings meetings;
  for (const RankProgram& program : plan.ranks) {
    for (const Op& op : program.ops) {
      if (!attends(op) && !attends_grad(op)) continue;
      for (const Rank q : owners(plan, program, op.views[0])) {
        for (const Rank kv : owners(plan, program, op.views[1])) {
          meetings.insert({op.step, program.rank, q, kv});
        }
      }
    }
  }
  return meetings;
}

/// An algorithm, written out as the moves and meetings that it makes.
struct Written {
  Moves moves;
  Meetings meetings;
  /// Adds the moves of the tensors of each owner. Nothing is sent to oneself.
  void send(int step, Rank from, Rank to, const std::vector<Rank>& owners,
            const std::vector<Tensor>& tensors) {
    if (from == to) return;
    for (const Rank owner : owners) {
      for (const Tensor tensor : tensors) moves.insert({step, from, to, tensor, owner});
    }
  }
};

template <class T>
void expect_same(const std::set<T>& of_plan, const std::set<T>& written) {
  EXPECT_EQ(without(of_plan, written), std::set<T>{}) << "in the plan, but not in the paper";
  EXPECT_EQ(without(written, of_plan), std::set<T>{}) << "in the paper only";
}

inline void expect_as_written(const Plan& plan, const Written& written) {
  expect_same(moves_of(plan), written.moves);
  expect_same(meetings_of(plan), written.meetings);
}

/// Kernel calls of each rank when the plan is run: one for each segment of queries and segment of
/// keys that see each other.
inline std::vector<int> calls_of(const Plan& plan) {
  const Plan lowered = lower(plan);
  std::vector<int> calls(lowered.ranks.size());
  for (const RankProgram& program : lowered.ranks) {
    for (const Op& op : program.ops) {
      if (!attends(op) && !attends_grad(op)) continue;
      const std::vector<LocatedView> located = locate(lowered.blocks, program, op);
      for (const Segment& q : located[0].segments) {
        for (const Segment& kv : located[1].segments) {
          calls[program.rank] += plan.problem.mask.empty(q.positions, kv.positions) ? 0 : 1;
        }
      }
    }
  }
  return calls;
}

/// Memory of the tiles of a tensor when the plan is run, without the caller's tensors, in shards of
/// one rank; the maximum over ranks.
inline double live_blocks_of(const Plan& plan, Tensor tensor) {
  const Plan lowered = lower(plan);
  double most = 0;
  for (const RankProgram& program : lowered.ranks) {
    std::map<int, double> slots;
    for (const Tile& tile : program.tiles) {
      if (tile.tensor != tensor || program.slots[tile.slot].external) continue;
      const auto tokens = static_cast<double>(tokens_of(plan.blocks, tensor, tile.blocks));
      slots[tile.slot] = std::max(slots[tile.slot], tokens);
    }
    double all = 0;
    for (const auto& [slot, tokens] : slots) all += tokens;
    most = std::max(most, all);
  }
  const auto& all = blocks_of(plan.blocks, tensor);
  std::int64_t tokens = 0;
  for (const Block& block : all) tokens += block.tokens();
  return most * plan.problem.world / static_cast<double>(tokens);
}

/// Rows of the printed grid, empty ones included.
inline int steps_of(const Plan& plan) {
  int last = -1;
  for (const RankProgram& program : plan.ranks) {
    for (const Op& op : program.ops) last = std::max(last, op.step);
  }
  return last + 1;
}

/// A plan of a small problem with equal shards. Inputs are bf16, so partial results (fp32) are
/// never placed in the buffers of final ones.
inline Plan paper_plan(int world, const std::string& strategy, Pass pass,
                       const std::string& mask = "full", const std::string& layout = "striped") {
  const std::int64_t length = std::int64_t{8} * world;
  const Problem problem{.world = world,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 8,
                        .value_dim = 4,
                        .dtype = Dtype::Bf16,
                        .mask = parse_mask(mask, {length, length}),
                        .layout = parse_layout(layout)};
  return make_plan(problem, parse_strategy(strategy), pass);
}

}  // namespace armillary::plan
