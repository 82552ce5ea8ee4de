// closed_forms_test.cpp: bytes of plans against the closed forms of the family (closed_forms.h), to
// the byte. Rk = 1; any token counts and head groups.
#include "armillary/plan/testing/closed_forms.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include "armillary/plan/strategies/strategy.h"

namespace armillary::plan {
namespace {

struct Setup {
  std::string strategy;
  int u;
  int world;
  std::int64_t length;
  int heads;
  int kv_heads;
  Dtype dtype;
};

void check(const Setup& s) {
  for (const char* layout : {"contiguous", "zigzag", "striped:1"}) {
    const Problem problem{.world = s.world,
                          .heads = s.heads,
                          .kv_heads = s.kv_heads,
                          .head_dim = 16,
                          .value_dim = 12,
                          .dtype = s.dtype,
                          .mask = parse_mask("full", {s.length, s.length}),
                          .layout = parse_layout(layout)};
    const Volumes volumes(problem, s.u,
                          s.strategy == "allgather" ? Movement::Gather : Movement::Ring);
    for (const Pass pass : {Pass::Forward, Pass::Backward}) {
      const Plan plan = make_plan(problem, parse_strategy(s.strategy), pass);
      for (Rank rank = 0; rank < s.world; ++rank) {
        const Traffic counts = traffic(problem, plan.blocks, plan.ranks[rank]);
        const Volume required =
            pass == Pass::Forward ? volumes.forward(rank) : volumes.backward(rank);
        EXPECT_EQ(counts.sent_bytes, required.sent_bytes)
            << s.strategy << ' ' << layout << ' ' << to_string(pass) << " N " << s.length
            << " rank " << rank << " of " << s.world << " heads " << s.heads << '/' << s.kv_heads;
        EXPECT_EQ(counts.received_bytes, required.received_bytes)
            << s.strategy << ' ' << layout << ' ' << to_string(pass) << " N " << s.length
            << " rank " << rank << " of " << s.world << " heads " << s.heads << '/' << s.kv_heads;
      }
    }
  }
}

TEST(ClosedForms, RingAndAllGather) {
  for (const int world : {1, 2, 3, 4, 5, 8, 13, 16}) {
    for (const std::int64_t length : {16 * 64, 101}) {
      check({"ring", 1, world, length, 8, 2, Dtype::Bf16});
      check({"allgather", 1, world, length, 8, 2, Dtype::Bf16});
      check({"ring", 1, world, length, 4, 4, Dtype::F32});
    }
  }
}

TEST(ClosedForms, UlyssesAndUspWithEvenUnevenAndReplicatedHeads) {
  for (const auto& [heads, kv_heads] :
       {std::pair(8, 8), std::pair(8, 4), std::pair(8, 1), std::pair(6, 3)}) {
    for (const std::int64_t length : {16 * 64, 101}) {
      for (const int world : {2, 3, 4, 6}) {
        check({"ulysses", world, world, length, heads, kv_heads, Dtype::Bf16});
      }
      for (const auto& [u, world] :
           {std::pair(2, 4), std::pair(2, 16), std::pair(4, 8), std::pair(3, 12)}) {
        check({"usp:u=" + std::to_string(u), u, world, length, heads, kv_heads, Dtype::Bf16});
      }
    }
  }
}

/// Worked values: bf16 words that one rank receives in one forward pass, with N = 65536 and dim
/// 128.
TEST(ClosedForms, WorkedForwardValues) {
  struct ForwardRow {
    int heads, kv_heads, world;
    const char* strategy;
    std::int64_t words;
  };
  const ForwardRow rows[] = {
      {32, 32, 8, "ring", 469762048},     {32, 32, 8, "ulysses", 117440512},
      {32, 32, 8, "usp:u=4", 167772160},  {32, 32, 8, "usp:u=2", 268435456},
      {32, 32, 16, "ring", 503316480},    {32, 32, 16, "ulysses", 62914560},
      {32, 32, 16, "usp:u=8", 92274688},  {32, 32, 16, "usp:u=4", 150994944},
      {32, 32, 64, "ring", 528482304},    {32, 32, 64, "usp:u=8", 73400320},
      {32, 32, 64, "usp:u=32", 24641536}, {32, 8, 8, "ring", 117440512},
      {32, 8, 8, "ulysses", 73400320},    {32, 8, 8, "usp:u=4", 79691776},
      {32, 8, 8, "usp:u=2", 92274688},    {32, 8, 16, "ring", 125829120},
      {32, 8, 16, "ulysses", 47185920},   {32, 8, 16, "usp:u=8", 45088768},
      {32, 8, 16, "usp:u=4", 56623104},   {32, 8, 64, "ring", 132120576},
      {32, 8, 64, "usp:u=8", 23855104},   {32, 8, 64, "usp:u=32", 24641536},
  };
  for (const ForwardRow& row : rows) {
    const Problem problem{.world = row.world,
                          .heads = row.heads,
                          .kv_heads = row.kv_heads,
                          .head_dim = 128,
                          .value_dim = 128,
                          .dtype = Dtype::Bf16,
                          .mask = parse_mask("full", {65536, 65536}),
                          .layout = {}};
    const Planner planner(problem, parse_strategy(row.strategy));
    const Traffic counts =
        traffic(problem, planner.blocks(), planner.program(Pass::Forward, row.world - 1));
    EXPECT_EQ(counts.received_bytes, 2 * row.words) << row.strategy << " world " << row.world;
    EXPECT_EQ(counts.sent_bytes, 2 * row.words) << row.strategy << " world " << row.world;
  }
}

/// Backward starts from the tiles that forward left on the grid. bf16 words per rank:
///   ulysses: as many as forward, four all-to-alls in each pass, if u <= kv_heads
///   ring:    K, V in the input dtype and dK, dV in fp32: (2 + 4) Dk N (1 - 1/P)
TEST(ClosedForms, WorkedBackwardValues) {
  constexpr std::int64_t kTokens = 65536;
  for (const auto& [heads, kv_heads, world] : {std::tuple(32, 32, 8), std::tuple(32, 8, 8)}) {
    const Problem problem{.world = world,
                          .heads = heads,
                          .kv_heads = kv_heads,
                          .head_dim = 128,
                          .value_dim = 128,
                          .dtype = Dtype::Bf16,
                          .mask = parse_mask("full", {kTokens, kTokens}),
                          .layout = {}};
    const auto received = [&](const char* strategy, Pass pass) {
      const Planner planner(problem, parse_strategy(strategy));
      return traffic(problem, planner.blocks(), planner.program(pass, 0)).received_bytes;
    };
    EXPECT_EQ(received("ulysses", Pass::Backward), received("ulysses", Pass::Forward));
    const std::int64_t dk = std::int64_t{128} * kv_heads;
    EXPECT_EQ(received("ring", Pass::Backward), 12 * dk * kTokens / world * (world - 1));
    EXPECT_EQ(received("allgather", Pass::Backward), received("ring", Pass::Backward));
  }
}

}  // namespace
}  // namespace armillary::plan
