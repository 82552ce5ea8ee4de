// replay_test.cpp: the replay of a forward program: its messages still pair up and fill what
// backward needs, no pair is attended, and only what must travel again does.
#include "armillary/plan/passes/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "armillary/plan/testing/every_strategy.h"

namespace armillary::plan {
namespace {

Problem replayed_problem(int world) {
  return {.world = world,
          .batch = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 8,
          .value_dim = 4,
          .dtype = Dtype::F32,
          .mask = parse_mask("causal", {37, 37}),
          .layout = parse_layout("zigzag"),
          .return_lse = true};
}

struct Replay {
  Problem problem;
  Blocks blocks;
  std::vector<RankProgram> ranks;
};

Replay replay_of(const Problem& problem, const std::string& strategy) {
  const Planner planner(problem, parse_strategy(strategy));
  Replay result{planner.problem(), planner.blocks(), {}};
  for (Rank rank = 0; rank < problem.world; ++rank) {
    result.ranks.push_back(planner.program(Pass::Replay, rank));
  }
  return result;
}

std::int64_t sent_bytes(const Replay& replay) {
  std::int64_t bytes = 0;
  for (const RankProgram& rank : replay.ranks) {
    bytes += traffic(replay.problem, replay.blocks, rank).sent_bytes;
  }
  return bytes;
}

/// Tensor, heads and blocks of messages, in order, by lane, sender and receiver.
using Messages = std::map<std::tuple<Lane, Rank, Rank>, std::vector<std::string>>;

Messages messages_of(const Replay& replay, OpKind kind) {
  Messages messages;
  for (const RankProgram& rank : replay.ranks) {
    for (const Op& op : rank.ops) {
      if (op.kind != kind) continue;
      const View& view = op.views.front();
      std::string text = std::string(to_string(rank.tiles[view.tile].tensor)) + ' ' +
                         std::to_string(view.heads.begin) + '-' + std::to_string(view.heads.end);
      for (const int block : view.blocks) text += ' ' + std::to_string(block);
      const bool sends = kind == OpKind::Send;
      messages[{op.lane, sends ? rank.rank : op.peer, sends ? op.peer : rank.rank}].push_back(text);
    }
  }
  return messages;
}

/// (heads x blocks) of a tile that ops write.
std::int64_t written_cells(const RankProgram& rank, int tile) {
  std::int64_t cells = 0;
  for (const Op& op : rank.ops) {
    const View& view = op.views.front();
    if (op.kind == OpKind::Send || view.tile != tile) continue;
    cells += static_cast<std::int64_t>(view.heads.count() * view.blocks.size());
  }
  return cells;
}

TEST(Replay, MessagesPairUpAndFillWhatForwardLeaves) {
  for (const int world : {1, 2, 3, 4, 6, 8, 16}) {
    const Problem problem = replayed_problem(world);
    for (const std::string& strategy : every_strategy(problem)) {
      const Replay replay = replay_of(problem, strategy);
      EXPECT_EQ(messages_of(replay, OpKind::Send), messages_of(replay, OpKind::Recv))
          << strategy << " on " << world;
      for (const RankProgram& rank : replay.ranks) {
        std::vector<int> left = rank.saved;
        left.insert(left.end(), rank.outputs.begin(), rank.outputs.end());
        for (const int id : left) {
          const Tile& tile = rank.tiles[id];
          const bool input = std::count(rank.inputs.begin(), rank.inputs.end(), id) > 0;
          EXPECT_EQ(written_cells(rank, id),
                    input ? 0 : static_cast<std::int64_t>(tile.heads.count() * tile.blocks.size()))
              << strategy << " on " << world << " rank " << rank.rank << ' '
              << to_string(tile.tensor);
        }
      }
    }
  }
}

/// The caller brings the results, too: their slots are its tensors, and take no memory of the rank.
TEST(Replay, TakesAndLeavesTensorsOfTheCaller) {
  const Problem problem = replayed_problem(4);
  for (const std::string& strategy : every_strategy(problem)) {
    for (const RankProgram& rank : replay_of(problem, strategy).ranks) {
      for (const std::vector<int>* role : {&rank.inputs, &rank.outputs}) {
        for (const int id : *role) {
          EXPECT_TRUE(rank.slots[rank.tiles[id].slot].external)
              << strategy << " rank " << rank.rank << ' ' << to_string(rank.tiles[id].tensor);
        }
      }
    }
  }
}

TEST(Replay, AttendsToNothing) {
  for (const std::string& strategy : every_strategy(replayed_problem(4))) {
    for (const RankProgram& rank : replay_of(replayed_problem(4), strategy).ranks) {
      for (const Op& op : rank.ops) {
        EXPECT_TRUE(op.is_comm() || op.kind == OpKind::Copy) << strategy;
      }
    }
  }
}

/// Only the exchange of heads, or the transposition of K and V, is made again.
TEST(Replay, SendsWhatBroughtInputsToTheirPlace) {
  const Problem problem = replayed_problem(4);
  for (const char* strategy :
       {"ring", "allgather", "tokenring", "startrail:c=2", "bidirectional_ring"}) {
    EXPECT_EQ(sent_bytes(replay_of(problem, strategy)), 0) << strategy;
  }
  const auto forward_bytes = [&](const char* strategy) {
    const Plan forward = make_plan(problem, parse_strategy(strategy), Pass::Forward);
    std::int64_t bytes = 0;
    for (const RankProgram& rank : forward.ranks) {
      bytes += traffic(forward.problem, forward.blocks, rank).sent_bytes;
    }
    return bytes;
  };
  EXPECT_EQ(sent_bytes(replay_of(problem, "ulysses")), forward_bytes("ulysses"));
  EXPECT_LT(sent_bytes(replay_of(problem, "usp:u=2")), forward_bytes("usp:u=2"));
  EXPECT_GT(sent_bytes(replay_of(problem, "usp:u=2")), 0);
}

}  // namespace
}  // namespace armillary::plan
