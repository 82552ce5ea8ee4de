// mesh_test.cpp: attention on one axis of a mesh beside sums and attention over another, with the
// device and the recorder of the world.
#include "armillary/comm/mesh.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>

#include "armillary/attention/attention.h"
#include "armillary/attention/testing/mesh_attention.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/host/recorder/reader.h"
#include "armillary/host/recorder/testing/run_folder.h"
#include "armillary/runtime/rank.h"

namespace armillary::attention {
namespace {

constexpr std::int64_t kRankTokens = 24;

AttentionOptions causal_pair() {
  return {.mask = plan::causal_mask({2 * kRankTokens, 2 * kRankTokens}, plan::Align::Start),
          .layout = plan::parse_layout("contiguous")};
}

/// Tokens of a rank of a replica.
at::Tensor input(int replica, int rank) {
  return at::arange(kRankTokens * 2 * 8, at::kFloat)
      .add(1000. * replica + 100. * rank)
      .sin()
      .view({1, kRankTokens, 2, 8});
}

TEST(AttentionOnAMesh, RunsBesideSumsOverAnotherAxis) {
  comm::run_ranks(4, [](comm::Communicator& comm) { EXPECT_EQ(attend_beside_sums(comm, 20), ""); });
}

/// A CPU that counts its ops.
class CountingDevice : public runtime::Device {
 public:
  at::Device place() const override { return at::kCPU; }
  runtime::EventHandle start(plan::Lane /*lane*/, runtime::Work& work, int op) override {
    ++ops;
    work.run(op);
    return nullptr;
  }
  void drain(const runtime::Work& /*work*/) noexcept override {}

  int ops = 0;

 private:
  bool is_done(const runtime::Event& /*event*/) override { return true; }
  bool wait_for(const runtime::Event& /*event*/, double /*seconds*/) override { return true; }
};

TEST(AttentionOnAMesh, RunsOnTheDeviceOfTheWorldAndIsRecordedWithIt) {
  const recorder::RunFolder folder;
  comm::run_ranks(4, [&](comm::Communicator& comm) {
    const auto device = std::make_shared<CountingDevice>();
    runtime::Rank& rank = runtime::Rank::of(comm);
    rank.use(device);
    rank.record_in(folder.path());
    const comm::Mesh mesh(comm, {.dp = 2, .cp = 2});
    const auto split = comm.split(comm.rank() / 2, 0);
    for (comm::Communicator* const group : {&mesh.along(MeshAxis::Cp), split.get()}) {
      device->ops = 0;
      const at::Tensor x = input(mesh.index(MeshAxis::Dp), group->rank());
      sequence_parallel_attention(x, x, x, *group, causal_pair());
      EXPECT_GT(device->ops, 0);
    }
    rank.recorder()->end();
    rank.use(nullptr);
  });
  const recorder::RecordedRun run = recorder::read_run(folder.path());
  ASSERT_EQ(run.flights.size(), 4U);
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(run.flights[rank]) << rank;
    EXPECT_EQ(run.flights[rank]->work.call, 2);
    for (const recorder::RecordedOp& op : run.flights[rank]->ops) {
      if (!op.is_message()) continue;
      EXPECT_EQ(op.op.peer, rank ^ 1) << "a rank of the world";
    }
  }
}

// Messages of two groups do not mix, so a rank may have a call in progress in each of them; in one
// group they would.
TEST(AttentionOnAMesh, CallsOfTwoGroupsMayBeInProgressAtOnce) {
  const recorder::RunFolder folder;
  comm::run_ranks(4, [&](comm::Communicator& comm) {
    runtime::Rank::of(comm).record_in(folder.path());
    const comm::Mesh mesh(comm, {.dp = 2, .cp = 2});
    comm::Communicator& cp = mesh.along(MeshAxis::Cp);
    comm::Communicator& dp = mesh.along(MeshAxis::Dp);
    const at::Tensor x = input(mesh.index(MeshAxis::Dp), mesh.index(MeshAxis::Cp));
    const auto alone = [&](comm::Communicator& group) {
      return sequence_parallel_attention(x, x, x, group, causal_pair());
    };
    const at::Tensor of_cp = alone(cp);
    const at::Tensor of_dp = alone(dp);
    const auto begin = [&](comm::Communicator& group) {
      return Attention(group, causal_pair())
          .begin(CallKind::Attention, attention_shape_of(x, x, x));
    };
    for (int step = 0; step < 20; ++step) {
      auto first = begin(cp);
      first.feed_k(x);
      auto second = begin(dp);
      second.feed_k(x);
      EXPECT_TRUE(second.finish(x, x, x).out_BLHE.equal(of_dp)) << "the same bits";
      EXPECT_TRUE(first.finish(x, x, x).out_BLHE.equal(of_cp)) << "the same bits";
    }
  });
  // Calls 1 and 2 were alone, then those of cp have the odd numbers.
  const recorder::RecordedRun run = recorder::read_run(folder.path());
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(run.flights[rank]) << rank;
    std::set<std::pair<int, int>> ops;
    for (const recorder::RecordedOp& op : run.flights[rank]->ops) {
      EXPECT_TRUE(ops.emplace(op.call, op.op.index).second) << "each op of a call once";
      if (!op.is_message()) continue;
      EXPECT_EQ(op.op.peer, rank ^ (op.call % 2 == 1 ? 1 : 2)) << op.call;
    }
  }
}

TEST(AttentionOnAMesh, ASecondCallOfOneGroupIsRefusedBesideACallOfAnother) {
  EXPECT_THAT(
      [] {
        comm::run_ranks(4, [&](comm::Communicator& comm) {
          const comm::Mesh mesh(comm, {.dp = 2, .cp = 2});
          comm::Communicator& cp = mesh.along(MeshAxis::Cp);
          const at::Tensor x = input(0, cp.rank());
          const auto begin = [&](comm::Communicator& group) {
            return Attention(group, causal_pair())
                .begin(CallKind::Attention, attention_shape_of(x, x, x));
          };
          const auto of_dp = begin(mesh.along(MeshAxis::Dp));
          const auto of_cp = begin(cp);
          begin(cp);
        });
      },
      testing::ThrowsMessage<InvalidArgument>(
          testing::ContainsRegex("another call is in progress on rank [01]; finish it before")));
}

}  // namespace
}  // namespace armillary::attention
