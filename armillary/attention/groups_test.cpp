// Attention within groups that were split from a larger group.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "armillary/attention/testing/small_calls.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/runtime/testing/watched_communicator.h"

namespace armillary::attention {
namespace {

/// Output and gradients of one call, backward included.
std::vector<at::Tensor> attended(comm::Communicator& comm, const char* strategy) {
  AttentionOptions options = causal_options(strategy);
  const Leaves x(comm, options, at::kFloat);
  options.sinks_H = x.sinks;
  const at::Tensor out_BLHE = sequence_parallel_attention(x.q, x.k, x.v, comm, options);
  out_BLHE.backward(out_BLHE.detach());
  std::vector<at::Tensor> results = x.grads();
  results.push_back(out_BLHE.detach());
  return results;
}

// Two groups attend at the same time, one with its ranks in reverse; then all ranks attend.
TEST(GroupsOfAGroup, AttendAsIfTheyWereAlone) {
  for (const char* strategy : {"ring", "ulysses", "startrail:c=2", "tokenring"}) {
    std::vector<std::vector<at::Tensor>> required(4);
    comm::run_ranks(
        4, [&](comm::Communicator& comm) { required[comm.rank()] = attended(comm, strategy); });
    comm::run_ranks(8, [&](comm::Communicator& comm) {
      const bool odd = comm.rank() % 2 == 1;
      const auto group = comm.split(odd ? 1 : 0, odd ? -comm.rank() : comm.rank());
      const std::vector<at::Tensor> actual = attended(*group, strategy);
      for (std::size_t i = 0; i < actual.size(); ++i) {
        expect_same_bits(actual[i], required[group->rank()][i], strategy);
      }
      const AttentionOptions options = causal_options("ring");
      const Leaves x(comm, options, at::kFloat);
      sequence_parallel_attention(x.q, x.k, x.v, comm, options);
    });
  }
}

TEST(GroupsOfAGroup, AreWatchedWithIt) {
  comm::run_ranks(4, [](comm::Communicator& inner) {
    int tiles = 0;
    runtime::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
      if (runtime::is_of_a_plan(inner, message)) ++tiles;
    });
    const auto group = comm.split(comm.rank() % 2, 0);
    EXPECT_EQ(comm.split(-1, 0), nullptr);
    EXPECT_EQ(tiles, 0);
    attended(*group, "ring");
    EXPECT_GT(tiles, 0);
  });
}

TEST(GroupsOfAGroup, NeedALaneMoreThanThePlan) {
  const auto body = [](comm::Communicator& comm) { attended(comm, "startrail:c=2"); };
  comm::run_ranks(4, body, {.lanes = 6});
  EXPECT_THAT([&] { comm::run_ranks(4, body, {.lanes = 5}); },
              testing::ThrowsMessage<InvalidArgument>(
                  testing::HasSubstr("a plan of 5 lanes, a communicator of 5; at least 6")));
}

// Ring's backward uses one lane more than its forward: a call is refused before forward runs, on
// every rank with the same text.
TEST(GroupsOfAGroup, NeedTheLanesOfBackwardBeforeForward) {
  for (const auto& [strategy, lanes] : {std::pair("ring", 3), std::pair("ring:backward=q", 5)}) {
    std::vector<std::string> told(2);
    const auto body = [&, strategy = strategy](comm::Communicator& comm) {
      const AttentionOptions options = causal_options(strategy);
      const Leaves x(comm, options, at::kFloat);
      try {
        sequence_parallel_attention(x.q, x.k, x.v, comm, options);
      } catch (const InvalidArgument& error) {
        told[comm.rank()] = error.what();
        throw;
      }
    };
    EXPECT_THROW(comm::run_ranks(2, body, {.lanes = lanes}), InvalidArgument) << strategy;
    EXPECT_THAT(told[0], testing::HasSubstr("lanes, a communicator of")) << strategy;
    EXPECT_EQ(told[0], told[1]) << strategy;
    comm::run_ranks(2, body, {.lanes = lanes + 1});
  }
}

}  // namespace
}  // namespace armillary::attention
