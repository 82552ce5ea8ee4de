// plan_test.cpp: sizes of tiles, bytes and costs of small plans worked by hand, and the table of
// operands of each op.
#include "armillary/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

#include "armillary/core/error.h"
#include "armillary/plan/operands.h"

namespace armillary::plan {
namespace {

/// Query blocks of 3, 5 and 2 tokens, key blocks of 4 and 6 (the last of stripes), on two ranks.
Blocks small_blocks() {
  return {.q = {{0, {run_of({0, 3})}}, {0, {run_of({3, 8})}}, {1, {run_of({8, 10})}}},
          .kv = {{0, {run_of({0, 4})}}, {1, {{.begin = 4, .count = 3, .step = 2, .width = 2}}}}};
}

Problem two_rank_problem(Dtype dtype) {
  return {.world = 2,
          .batch = 7,
          .heads = 6,
          .kv_heads = 3,
          .head_dim = 8,
          .value_dim = 16,
          .dtype = dtype,
          .mask = causal_mask({10, 10}, Align::Start)};
}

TEST(Plan, TensorsOfKeysAreCountedInKeyBlocksAndTheOthersInQueryBlocks) {
  using enum Tensor;
  const Blocks blocks = small_blocks();
  for (const Tensor tensor : {K, V, DK, DV}) {
    EXPECT_TRUE(is_kv(tensor)) << to_string(tensor);
    EXPECT_EQ(&blocks_of(blocks, tensor), &blocks.kv) << to_string(tensor);
    EXPECT_EQ(tokens_of(blocks, tensor, {0, 1}), 10) << to_string(tensor);
    EXPECT_EQ(tokens_of(blocks, tensor, {1}), 6) << to_string(tensor);
  }
  for (const Tensor tensor : {Q, Out, Lse, DOut, Delta, DQ}) {
    EXPECT_FALSE(is_kv(tensor)) << to_string(tensor);
    EXPECT_EQ(&blocks_of(blocks, tensor), &blocks.q) << to_string(tensor);
    EXPECT_EQ(tokens_of(blocks, tensor, {0, 2}), 5) << to_string(tensor);
    EXPECT_EQ(tokens_of(blocks, tensor, {}), 0) << to_string(tensor);
  }
}

TEST(Plan, DimsAreThoseOfTheHeads) {
  using enum Tensor;
  const Problem problem = two_rank_problem(Dtype::F32);
  for (const Tensor tensor : {Q, K, DQ, DK}) EXPECT_EQ(dim_of(problem, tensor), 8);
  for (const Tensor tensor : {V, Out, DOut, DV}) EXPECT_EQ(dim_of(problem, tensor), 16);
  for (const Tensor tensor : {Lse, Delta}) EXPECT_EQ(dim_of(problem, tensor), 1);
}

/// Partials and statistics are held in fp32, in fp64 for fp64 inputs; all else in the input dtype.
TEST(Plan, PartialsAndStatisticsAreAccumulators) {
  using enum Tensor;
  for (const Dtype dtype : {Dtype::F64, Dtype::F32, Dtype::Bf16, Dtype::F16}) {
    const Problem problem = two_rank_problem(dtype);
    const Dtype wide = dtype == Dtype::F64 ? Dtype::F64 : Dtype::F32;
    for (const Tensor tensor : {Q, K, V, Out, DOut, DQ, DK, DV}) {
      EXPECT_EQ(dtype_of(problem, {.tensor = tensor}), dtype) << to_string(tensor);
    }
    for (const Tensor tensor : {Lse, Delta}) {
      EXPECT_EQ(dtype_of(problem, {.tensor = tensor}), wide) << to_string(tensor);
    }
    for (const Tensor tensor : {Out, Lse, DQ, DK, DV}) {
      EXPECT_EQ(dtype_of(problem, {.tensor = tensor, .partial = true}), wide) << to_string(tensor);
    }
  }
}

TEST(Plan, BytesAreBatchTimesTokensTimesHeadsTimesDimTimesWidth) {
  const Blocks blocks = small_blocks();
  const Problem problem = two_rank_problem(Dtype::Bf16);
  const Tile k{.tensor = Tensor::K, .heads = {0, 3}, .blocks = {0, 1}};
  EXPECT_EQ(bytes_of(problem, blocks, k), 7 * 10 * 3 * 8 * 2);
  EXPECT_EQ(bytes_of(problem, blocks, k, {0, {1, 2}, {1}}), 7 * 6 * 1 * 8 * 2);
  const Tile v{.tensor = Tensor::V, .heads = {1, 3}, .blocks = {0}};
  EXPECT_EQ(bytes_of(problem, blocks, v), 7 * 4 * 2 * 16 * 2);
  const Tile out{.tensor = Tensor::Out, .partial = true, .heads = {0, 6}, .blocks = {1, 2}};
  EXPECT_EQ(bytes_of(problem, blocks, out), 7 * 7 * 6 * 16 * 4) << "partial: fp32";
  EXPECT_EQ(bytes_of(problem, blocks, out, {0, {4, 6}, {2}}), 7 * 2 * 2 * 16 * 4);
  const Tile lse{.tensor = Tensor::Lse, .heads = {0, 6}, .blocks = {0}};
  EXPECT_EQ(bytes_of(problem, blocks, lse), 7 * 3 * 6 * 1 * 4) << "no dim, fp32";
  EXPECT_EQ(bytes_of(two_rank_problem(Dtype::F64), blocks, lse), 7 * 3 * 6 * 1 * 8);
  EXPECT_EQ(bytes_of(problem, blocks, {.tensor = Tensor::K, .heads = {0, 3}}), 0) << "no blocks";
}

TEST(Plan, BytesThatDoNotFitAreRefused) {
  const Blocks blocks{.q = {{0, {{.begin = 0, .count = std::int64_t{1} << 50}}}}};
  Problem problem = two_rank_problem(Dtype::F32);
  problem.batch = 1 << 20;
  EXPECT_THROW(bytes_of(problem, blocks, {.tensor = Tensor::Q, .heads = {0, 6}, .blocks = {0}}),
               InvalidArgument);
}

/// A program with one op of each kind that counts.
RankProgram small_program() {
  RankProgram program;
  program.words = &attention_words();
  program.slots = {{.bytes = 1000, .external = true}, {.bytes = 30}, {.bytes = 400}};
  program.tiles = {{.tensor = Tensor::Q, .heads = {0, 6}, .blocks = {0, 1}, .slot = 0},
                   {.tensor = Tensor::K, .heads = {0, 3}, .blocks = {0, 1}, .slot = 1},
                   {.tensor = Tensor::V, .heads = {0, 3}, .blocks = {0, 1}, .slot = 2},
                   {.tensor = Tensor::Out, .partial = true, .heads = {0, 6}, .blocks = {0, 1}},
                   {.tensor = Tensor::Lse, .partial = true, .heads = {0, 6}, .blocks = {0, 1}}};
  const auto view = [](int tile, int heads, const std::vector<int>& blocks) {
    return View{tile, {0, heads}, blocks};
  };
  program.ops = {
      {.kind = OpKind::Send, .lane = 1, .step = 0, .peer = 1, .views = {view(1, 3, {0})}},
      {.kind = OpKind::Recv, .lane = 1, .step = 0, .peer = 1, .views = {view(2, 2, {1})}},
      {.kind = OpKind::Send, .lane = 2, .step = 4, .peer = 1, .views = {view(3, 6, {1})}},
      {.kind = OpKind::Attend,
       .step = 4,
       .views = {view(0, 6, {0, 1}), view(1, 3, {0}), view(2, 3, {0}), view(3, 6, {0, 1}),
                 view(4, 6, {0, 1})}},
      {.kind = OpKind::Attend,
       .step = 9,
       .views = {view(0, 2, {1}), view(1, 1, {1}), view(2, 1, {1}), view(3, 2, {1}),
                 view(4, 2, {1})}}};
  return program;
}

TEST(Traffic, CountsBytesSlotsPairsAndSteps) {
  const Traffic one = traffic(two_rank_problem(Dtype::Bf16), small_blocks(), small_program());
  EXPECT_EQ(one.sent_bytes, 7 * 4 * 3 * 8 * 2 + 7 * 5 * 6 * 16 * 4);
  EXPECT_EQ(one.received_bytes, 7 * 6 * 2 * 16 * 2);
  EXPECT_EQ(one.peak_slot_bytes, 430) << "slots that are not the caller's";
  // Queries 0-7 on keys 0-3: 1 + 2 + 3 + 4 + 4 * 4. Queries 3-7 on keys 4-9: 1 + 2 + 3 + 4.
  EXPECT_EQ(one.visible_pairs, 7 * 6 * 26 + 7 * 2 * 10);
  EXPECT_EQ(one.steps, 3) << "rows of the grid: 0, 4 and 9";
}

TEST(Traffic, BetweenNodesIsWhatGoesToAnotherOne) {
  const auto sent_bytes = [](int ranks_per_node) {
    return sent_between_nodes(two_rank_problem(Dtype::Bf16), small_blocks(), small_program(),
                              ranks_per_node);
  };
  EXPECT_EQ(sent_bytes(1), 7 * 4 * 3 * 8 * 2 + 7 * 5 * 6 * 16 * 4)
      << "rank 0 to rank 1: another node";
  EXPECT_EQ(sent_bytes(2), 0) << "the same node";
}

TEST(Traffic, OfNothingIsZero) {
  const Traffic one = traffic(two_rank_problem(Dtype::Bf16), small_blocks(), {});
  EXPECT_EQ(one.sent_bytes, 0);
  EXPECT_EQ(one.received_bytes, 0);
  EXPECT_EQ(one.peak_slot_bytes, 0);
  EXPECT_EQ(one.visible_pairs, 0);
  EXPECT_EQ(one.steps, 0);
}

constexpr OpKind kOpKinds[] = {OpKind::Send,       OpKind::Recv,      OpKind::Attend,
                               OpKind::AttendGrad, OpKind::Merge,     OpKind::Add,
                               OpKind::Copy,       OpKind::Clear,     OpKind::Delta,
                               OpKind::Finish,     OpKind::AttendAll, OpKind::AttendGradAll};

TEST(Operands, HaveOneNameEachAndWriteSomethingUnlessSent) {
  std::set<std::string_view> kinds;
  for (const OpKind kind : kOpKinds) {
    EXPECT_TRUE(kinds.insert(to_string(kind)).second) << to_string(kind) << " names two kinds";
    std::set<std::string_view> names;
    bool writes = false;
    for (const Operand& operand : operands(kind)) {
      EXPECT_TRUE(names.insert(operand.name).second) << to_string(kind) << " " << operand.name;
      writes = writes || operand.access != Access::Read;
    }
    EXPECT_EQ(writes, kind != OpKind::Send) << to_string(kind);
  }
}

TEST(Operands, AreThoseThatTheHeaderNames) {
  const auto text = [](OpKind kind) {
    std::string line(to_string(kind));
    for (const Operand& operand : operands(kind)) {
      const char* const access = operand.access == Access::Read    ? " <"
                                 : operand.access == Access::Write ? " >"
                                                                   : " +";
      line += access + std::string(operand.name);
    }
    return line;
  };
  EXPECT_EQ(text(OpKind::Attend), "attend <q <k <v +out +lse");
  EXPECT_EQ(text(OpKind::AttendGrad), "attend_grad <q <k <v <dout <lse <delta +dq +dk +dv");
  EXPECT_EQ(text(OpKind::Merge), "merge +out +lse <part_out <part_lse");
  EXPECT_EQ(text(OpKind::Add), "add +acc <part");
  EXPECT_EQ(text(OpKind::Copy), "copy >dst <src");
  EXPECT_EQ(text(OpKind::Clear), "clear >dst");
  EXPECT_EQ(text(OpKind::Delta), "delta >delta <dout <out <lse");
  EXPECT_EQ(text(OpKind::Finish), "finish >out >lse <part_out <part_lse");
  EXPECT_EQ(text(OpKind::AttendAll), "attend_all <q <k <v >out >lse");
  EXPECT_EQ(text(OpKind::AttendGradAll), "attend_grad_all <q <k <v <dout <lse <delta >dq >dk >dv");
}

TEST(Operands, PlacesAreThoseOfTheirNames) {
  const auto name = [](OpKind kind, std::size_t place) { return operands(kind)[place].name; };
  for (const OpKind kind : {OpKind::Attend, OpKind::AttendAll}) {
    EXPECT_EQ(name(kind, AttendOperand::kV), "v");
    EXPECT_EQ(name(kind, AttendOperand::kLse), "lse");
  }
  for (const OpKind kind : {OpKind::AttendGrad, OpKind::AttendGradAll}) {
    EXPECT_EQ(name(kind, AttendGradOperand::kV), "v");
    EXPECT_EQ(name(kind, AttendGradOperand::kDV), "dv");
  }
  for (const OpKind kind : {OpKind::Merge, OpKind::Finish}) {
    EXPECT_EQ(name(kind, MergeOperand::kPartLse), "part_lse");
  }
}

/// An operand that is updated is an accumulator; the ops that write results make them final.
TEST(Operands, AreFinalWhereTheyAreWrittenAndPartialWhereTheyAreUpdated) {
  for (const OpKind kind : kOpKinds) {
    for (const Operand& operand : operands(kind)) {
      if (!operand.tensor || operand.access == Access::Read) continue;
      EXPECT_EQ(operand.partial, operand.access == Access::Update)
          << to_string(kind) << " " << operand.name;
    }
  }
}

}  // namespace
}  // namespace armillary::plan
