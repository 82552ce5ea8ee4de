// rank_test.cpp: one device, recorder and memory for all groups of a rank, and a state for each.
// Runs are those of ring without attention's agreement, on groups split off four ranks.
#include "armillary/runtime/rank.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/comm/mesh.h"
#include "armillary/core/error.h"
#include "armillary/host/recorder/reader.h"
#include "armillary/host/recorder/testing/run_folder.h"
#include "armillary/runtime/group_state.h"
#include "armillary/runtime/program_cache.h"
#include "armillary/runtime/testing/late_device.h"

namespace armillary::runtime {
namespace {

std::shared_ptr<const CompiledAttention> ring_of(const comm::Communicator& comm,
                                                 std::int64_t tokens) {
  const plan::Problem problem{.world = comm.world(),
                              .heads = 2,
                              .kv_heads = 2,
                              .head_dim = 8,
                              .value_dim = 8,
                              .dtype = plan::Dtype::F32,
                              .mask = plan::parse_mask("full", {tokens, tokens}),
                              .layout = plan::parse_layout("contiguous")};
  return compile_cached(problem, plan::parse_strategy("ring"), comm.rank(), cpu_device().kernel());
}

/// Runs forward of ring in a group, with everything that the rank has. Returns the slots' memory.
const void* run_in(comm::Communicator& comm, std::int64_t tokens) {
  Rank& rank = Rank::of(comm);
  const auto programs = ring_of(comm, tokens);
  auto execution = rank.executions().take(
      programs->forward, comm,
      {.score = {0.35}, .device = &rank.device(), .recorder = rank.recorder()});
  const void* const slots = execution->slots().const_data_ptr();
  for (const plan::Tensor tensor : {plan::Tensor::K, plan::Tensor::V, plan::Tensor::Q}) {
    execution->feed(tensor, at::ones(programs->forward->shapes[0]));
  }
  execution->finish();
  rank.executions().give_back(std::move(execution));
  return slots;
}

TEST(Rank, IsTheSameInAllItsGroups) {
  std::vector<Rank*> ranks(4);
  comm::run_ranks(4, [&](comm::Communicator& comm) {
    const auto backwards = comm.split(0, -comm.rank());
    const auto pair = backwards->split(comm.rank() / 2, 0);
    const comm::Mesh mesh(comm, {.dp = 2, .cp = 2});
    Rank& rank = Rank::of(*pair);  // A part is the first to ask.
    const auto device = std::make_shared<LateDevice>(comm.rank());
    Rank::of(comm).use(device);
    for (const comm::Communicator* group :
         {&comm, backwards.get(), pair.get(), &mesh.along(MeshAxis::Cp), &mesh.along(MeshAxis::Dp),
          &mesh.along(MeshAxis::Tp), &mesh.replicas()}) {
      EXPECT_EQ(&Rank::of(*group), &rank);
      EXPECT_EQ(&Rank::of(*group).device(), device.get());
    }
    ranks[comm.rank()] = &rank;
    comm::barrier(comm);
    EXPECT_EQ(std::set<Rank*>(ranks.begin(), ranks.end()).size(), 4U) << "ranks are apart";
    comm::barrier(comm);
    rank.use(nullptr);
  });
}

TEST(Rank, ItsGroupsShareTheMemoryOfIdleExecutions) {
  comm::run_ranks(4, [](comm::Communicator& comm) {
    const comm::Mesh mesh(comm, {.dp = 2, .cp = 2});
    comm::Communicator& cp = mesh.along(MeshAxis::Cp);
    const void* const slots = run_in(comm, 64);
    EXPECT_EQ(run_in(cp, 16), slots);
    EXPECT_EQ(run_in(mesh.along(MeshAxis::Dp), 16), slots);
    EXPECT_EQ(run_in(comm, 64), slots);
    // Two at a time have memory of their own.
    Rank& rank = Rank::of(comm);
    const auto programs = ring_of(cp, 16);
    auto first = rank.executions().take(programs->forward, cp, {.score = {0.35}});
    auto second = rank.executions().take(programs->forward, cp, {.score = {0.35}});
    EXPECT_NE(first->slots().const_data_ptr(), second->slots().const_data_ptr());
  });
}

TEST(Rank, AGroupThatGoesTakesItsStateAlong) {
  comm::run_ranks(2, [](comm::Communicator& comm) {
    Rank& rank = Rank::of(comm);
    const auto stays = comm.split(0, 0);
    auto goes = comm.split(0, 0);
    std::vector<std::weak_ptr<KnownProblem>> problems;
    const auto fill = [&](const comm::Communicator& group) {
      const auto programs = ring_of(group, 16);
      problems.emplace_back(rank.group(group).known.add({.problem = {},
                                                         .strategy_texts = {"ring"},
                                                         .strategy = {},
                                                         .key = {},
                                                         .words = {},
                                                         .programs = programs,
                                                         .proved = programs->proved.programs}));
      EXPECT_TRUE(is_proved(*problems.back().lock(), *programs));
    };
    for (const comm::Communicator* group : {&comm, stays.get(), goes.get()}) fill(*group);
    const GroupState* const state_of_all = &rank.group(comm);
    goes.reset();
    EXPECT_FALSE(problems[0].expired());
    EXPECT_FALSE(problems[1].expired());
    EXPECT_TRUE(problems[2].expired());
    EXPECT_EQ(&rank.group(comm), state_of_all);
    // The next group, which may lie at the same address, knows nothing.
    const auto next = comm.split(0, 0);
    EXPECT_EQ(rank.group(*next).known.find({}, "ring"), nullptr);
  });
}

TEST(Rank, ItsDeviceStaysWhileACallOfAnyGroupIsInProgress) {
  comm::run_ranks(2, [](comm::Communicator& comm) {
    Rank& rank = Rank::of(comm);
    const auto group = comm.split(0, 0);
    rank.group(comm);
    rank.group(*group).busy = true;
    EXPECT_THAT([&] { rank.use(nullptr); },
                testing::ThrowsMessage<InvalidArgument>(
                    "rank: the device was changed while a call is in progress; finish it first"));
    rank.group(*group).busy = false;
    rank.use(nullptr);
  });
}

// Group {3, 1} and {2, 0}: rank r of one is the peer r of the other in its own program.
TEST(Rank, RecordsPeersAsRanksOfTheWorld) {
  const recorder::RunFolder folder;
  comm::run_ranks(4, [&](comm::Communicator& comm) {
    const auto group = comm.split(comm.rank() % 2, -comm.rank());
    Rank::of(*group).record_in(folder.path());
    run_in(*group, 16);
    run_in(comm, 16);
    run_in(*group, 16);  // The same execution again.
    Rank::of(comm).recorder()->end();
  });
  const recorder::RecordedRun run = recorder::read_run(folder.path());
  ASSERT_EQ(run.flights.size(), 4U);
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(run.flights[rank]) << rank;
    EXPECT_EQ(run.flights[rank]->rank, rank);
    EXPECT_EQ(run.flights[rank]->world, 4);
    std::vector<std::set<int>> peers(4);  // By call, from 1.
    for (const recorder::RecordedOp& op : run.flights[rank]->ops) {
      if (op.is_message()) peers[op.call].insert(op.op.peer);
    }
    const std::set<int> neighbours{(rank + 1) % 4, (rank + 3) % 4};
    EXPECT_THAT(peers, testing::ElementsAre(std::set<int>{}, std::set<int>{(rank + 2) % 4},
                                            neighbours, std::set<int>{(rank + 2) % 4}))
        << rank;
  }
}

}  // namespace
}  // namespace armillary::runtime
