// shared_choice_test.cpp: ranks that would choose differently take the choice of rank 0, and its
// errors; ranks that ask for other things are told so.
#include "armillary/attention/shared_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "armillary/attention/testing/small_calls.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::attention {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

tune::AutomaticChoice choice_of(const std::string& strategy) {
  return {.strategy = plan::parse_strategy(strategy), .line = "for " + strategy, .is_new = true};
}

// Each rank would choose another strategy, as ranks of hosts with different caches do.
TEST(SharedChoice, IsThatOfRank0) {
  const std::vector<std::string> own{"usp:u=2", "ring", "ulysses", "ring", "allgather"};
  std::atomic<int> choices{0};
  comm::run_ranks(5, [&](comm::Communicator& comm) {
    const tune::AutomaticChoice choice = choose_together(comm, [&] {
      ++choices;
      return choice_of(own[comm.rank()]);
    });
    EXPECT_EQ(to_string(choice.strategy), "usp:u=2") << "rank " << comm.rank();
    EXPECT_EQ(choice.line, "for usp:u=2");
    EXPECT_TRUE(choice.is_new);
  });
  EXPECT_EQ(choices, 1) << "ranks that choose by themselves";
}

TEST(SharedChoice, AnErrorOfRank0IsThatOfAll) {
  std::atomic<int> thrown{0};
  const auto expect_on_all = [&](const auto& error) {
    thrown = 0;
    EXPECT_ANY_THROW(comm::run_ranks(3, [&](comm::Communicator& comm) {
      try {
        choose_together(comm, [&]() -> tune::AutomaticChoice { throw error; });
      } catch (const std::remove_cvref_t<decltype(error)>& caught) {
        EXPECT_STREQ(caught.what(), error.what());
        ++thrown;
        throw;
      }
    }));
    EXPECT_EQ(thrown, 3) << error.what();
  };
  expect_on_all(InvalidArgument("no such cluster"));
  expect_on_all(IoError("cannot be read"));
}

/// Options of a call in bf16, which c8 has kernels for.
AttentionOptions automatic_options(const char* strategy) {
  AttentionOptions options = causal_options(strategy);
  options.scale = 0.25;
  return options;
}

TEST(SharedChoice, RanksThatAskForOtherThingsAreToldSo) {
  std::atomic<int> told{0};
  EXPECT_ANY_THROW(comm::run_ranks(2, [&](comm::Communicator& comm) {
    const AttentionOptions options =
        automatic_options(comm.rank() == 0 ? "auto:cluster=c8" : "ring");
    const Leaves leaves(comm, options, at::kBFloat16);
    try {
      sequence_parallel_attention(leaves.q, leaves.k, leaves.v, comm, options);
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("strategy=auto:cluster=c8"), HasSubstr("strategy=ring")));
      ++told;
      throw;
    }
  }));
  EXPECT_EQ(told, 2);
}

TEST(SharedChoice, AClusterThatDoesNotExistIsRefusedOnAllRanks) {
  std::atomic<int> told{0};
  EXPECT_ANY_THROW(comm::run_ranks(2, [&](comm::Communicator& comm) {
    const AttentionOptions options = automatic_options("auto:cluster=c88");
    const Leaves leaves(comm, options, at::kBFloat16);
    try {
      sequence_parallel_attention(leaves.q, leaves.k, leaves.v, comm, options);
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("nearest: c8"));
      ++told;
      throw;
    }
  }));
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace armillary::attention
