// decode_test.cpp: decode steps are proved, counted and printed; no mistake of the author and no
// change of one op is proved, but exchanges of ops that are as good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/testing/expect_error.h"
#include "armillary/plan/decode/check_decode.h"
#include "armillary/plan/program/grid.h"
#include "armillary/plan/program/mutate.h"
#include "armillary/plan/program/program_json.h"

namespace armillary::plan::decode {
namespace {

const DecodeShape kSmall{.world = 3, .layers = 2, .tokens = 4, .heads = 2, .value_dim = 8};

std::int64_t bytes_sent_in(const World& world) {
  std::int64_t bytes = 0;
  for (const RankProgram& program : world.ranks) {
    for (const Op& op : program.ops) {
      if (op.kind == DecodeOp::Send) bytes += world.measures.bytes(program, op);
    }
  }
  return bytes;
}

TEST(Decode, IsProvedAndCounted) {
  for (const int world : {1, 2, 3, 4, 5, 8, 13}) {
    for (const int layers : {1, 3}) {
      const DecodeShape shape{
          .world = world, .layers = layers, .tokens = 5, .heads = 3, .value_dim = 16};
      const Decode decode = build_decode(shape);
      EXPECT_EQ(check_decode(decode.world(), shape), std::vector<Diagnostic>{}) << world;
      EXPECT_EQ(bytes_sent_in(decode.world()), moved_bytes(shape)) << world;
      EXPECT_EQ(moved_bytes(shape), std::int64_t{layers} * world * (world - 1) * 5 * 3 * 17 * 4);
    }
  }
}

TEST(Decode, IsPrintedAndComesBackFromJson) {
  const Decode decode = build_decode({.world = 2, .layers = 2});
  const std::string grid = to_string(decode.world());
  EXPECT_THAT(grid, testing::HasSubstr("attend(part0) part1<r1 part0>r1"));
  EXPECT_THAT(grid, testing::HasSubstr("merge(sum1 part3)"));
  for (const RankProgram& program : decode.ranks) {
    EXPECT_EQ(parse_program_json(to_json(program), decode_words()), program);
  }
}

/// Changes of single ops: those that are accepted exchange ops of one step, or allow what ranks
/// with shared memory may do.
TEST(Decode, CatchesEveryChangeOfAnOp) {
  const Decode decode = build_decode(kSmall);
  int caught = 0;
  for (const Mutation& mutation : mutations(decode.world())) {
    std::vector<RankProgram> mutant = decode.ranks;
    mutate(decode.measures, mutant, mutation);
    if (!check_decode(World{decode.measures, mutant}, kSmall).empty()) {
      ++caught;
      continue;
    }
    const bool is_as_good =
        mutation.kind == MutationKind::Swapped || mutation.kind == MutationKind::OtherZeroCopy;
    EXPECT_TRUE(is_as_good) << to_string(mutation, decode_words());
  }
  EXPECT_GT(caught, 300);
}

/// The op of rank 1 in layer 1: its first of a kind, and with a peer if one is given.
int op_at(const RankProgram& program, DecodeOp kind, Rank peer = -1) {
  const auto op = std::ranges::find_if(program.ops, [&](const Op& one) {
    return one.step == 1 && one.kind == kind && (peer < 0 || one.peer == peer);
  });
  return static_cast<int>(op - program.ops.begin());
}

void erase(RankProgram& program, int op) {
  program.ops.erase(program.ops.begin() + op);
}

void repeat(RankProgram& program, int op) {
  const Op again = program.ops[op];
  program.ops.insert(program.ops.begin() + op, again);
}

/// Mistakes of an author, at both ends of a message where there are two.
TEST(Decode, CatchesMistakes) {
  using Ranks = std::vector<RankProgram>;
  const std::vector<std::pair<std::string, std::function<void(Ranks&)>>> mistakes{
      {"undefined",  // No message from rank 1 to rank 2.
       [](Ranks& ranks) {
         erase(ranks[1], op_at(ranks[1], DecodeOp::Send, 2));
         erase(ranks[2], op_at(ranks[2], DecodeOp::Recv, 1));
       }},
      {"order",  // It comes twice.
       [](Ranks& ranks) {
         repeat(ranks[1], op_at(ranks[1], DecodeOp::Send, 2));
         repeat(ranks[2], op_at(ranks[2], DecodeOp::Recv, 1));
       }},
      {"undefined", [](Ranks& ranks) { erase(ranks[1], op_at(ranks[1], DecodeOp::Attend)); }},
      {"owner", [](Ranks& ranks) { repeat(ranks[1], op_at(ranks[1], DecodeOp::Attend)); }},
      {"sequence", [](Ranks& ranks) { erase(ranks[1], op_at(ranks[1], DecodeOp::Merge)); }},
      {"sequence", [](Ranks& ranks) { repeat(ranks[1], op_at(ranks[1], DecodeOp::Merge)); }},
      {"sequence",  // Another order.
       [](Ranks& ranks) {
         const int op = op_at(ranks[1], DecodeOp::Merge);
         std::swap(ranks[1].ops[op + 1], ranks[1].ops[op + 2]);
       }},
      {"complete", [](Ranks& ranks) { ranks[1].ops.pop_back(); }},
      {"layer",  // Layer 1 begins with layer 0.
       [](Ranks& ranks) { ranks[1].ops[op_at(ranks[1], DecodeOp::Attend)].step = 0; }},
      {"caller", [](Ranks& ranks) { ranks[1].outputs.pop_back(); }},
      {"caller", [](Ranks& ranks) { ranks[1].slots[0].external = true; }},
      {"caller", [](Ranks& ranks) { ranks.pop_back(); }}};
  for (std::size_t i = 0; i < mistakes.size(); ++i) {
    Decode decode = build_decode(kSmall);
    mistakes[i].second(decode.ranks);
    const std::vector<Diagnostic> faults = check_decode(decode.world(), kSmall);
    ASSERT_FALSE(faults.empty()) << "mistake " << i;
    EXPECT_EQ(faults[0].rule, mistakes[i].first) << "mistake " << i << ": " << faults[0].text;
    EXPECT_THAT(to_string(decode.world(), &faults[0]), testing::HasSubstr("<-- HERE"))
        << "mistake " << i;
  }
}

TEST(Decode, RefusesShapes) {
  EXPECT_THAT(error_of([] { build_decode({.world = 0}); }),
              testing::HasSubstr("decode: world 0 given; at least 1 is required"));
  EXPECT_THAT(error_of([] { build_decode({.tokens = 0}); }), testing::HasSubstr("tokens 0"));
}

}  // namespace
}  // namespace armillary::plan::decode
