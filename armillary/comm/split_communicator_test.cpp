// split_communicator_test.cpp: lanes of groups are counted and given back.
#include "armillary/comm/split_communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// The block of lanes of a group that is split off now.
int next_block(Communicator& comm) {
  const auto group = comm.split(0, comm.rank());
  return comm.lane_blocks().end() - 1;
}

TEST(Split, GivesLanesBack) {
  run_ranks(4, [](Communicator& comm) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      const auto row = comm.split(comm.rank() / 2, 0);
      const auto column = comm.split(comm.rank() % 2, 0);
      const auto pair = row->split(0, -row->rank());
      EXPECT_EQ(comm.lane_blocks().count(), 3);
      EXPECT_EQ(comm.lane_blocks().end(), 4);
    }
    EXPECT_EQ(comm.lane_blocks().count(), 0);
  });
}

TEST(Split, TakesLanesThatAllItsRanksHaveGivenBack) {
  run_ranks(3, [](Communicator& comm) {
    auto first = comm.split(0, 0);
    auto second = comm.split(0, 0);
    if (comm.rank() != 1) first.reset();
    EXPECT_EQ(next_block(comm), 3) << "rank 1 still has block 1";
    barrier(comm);
    first.reset();
    EXPECT_EQ(comm.split(0, 0)->world(), 3);
    const auto again = comm.split(0, 0);
    EXPECT_EQ(comm.lane_blocks().count(), 2) << "in the place of the first";
    EXPECT_EQ(comm.lane_blocks().end(), 3);
  });
}

TEST(Split, HasLanesForMoreGroupsThanAreToldOneByOne) {
  run_ranks(2, [](Communicator& comm) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int i = 0; i < LaneBlocks::kTold + 20; ++i) {
      groups.push_back(comm.split(0, 0));
      barrier(*groups.back());
    }
    EXPECT_EQ(comm.lane_blocks().end(), LaneBlocks::kTold + 21);
    groups.clear();
    EXPECT_EQ(next_block(comm), 1);
  });
}

TEST(Split, AGroupOfOneSendsNothingAndFailsWithTheOther) {
  EXPECT_THROW(run_ranks(2,
                         [](Communicator& comm) {
                           const auto own = group_of_one(comm);
                           EXPECT_EQ(own->world(), 1);
                           EXPECT_EQ(own->lanes(), comm.lanes());
                           std::array<float, 2> values{1, 2};
                           all_reduce_sum(*own, values);
                           EXPECT_EQ(values, (std::array<float, 2>{1, 2}));
                           EXPECT_EQ(comm.lane_blocks().count(), 0);
                           barrier(comm);
                           if (comm.rank() == 0) own->abort("on purpose");
                           if (comm.rank() == 1) barrier(comm);
                         }),
               CommError);
}

}  // namespace
}  // namespace armillary::comm
