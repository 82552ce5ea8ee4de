// host_lane_test.cpp: copies are made in order beside the thread that asks for them; errors and
// deadlines reach it.
#include "armillary/train/host_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(HostLane, CopiesInOrderBesideItsOwner) {
  HostLane lane(100);
  lane.wait(0);
  std::vector<int> order;
  std::promise<void> first;
  lane.start([&, may_go = std::make_shared<std::future<void>>(first.get_future())] {
    may_go->wait();
    order.push_back(1);
  });
  const std::int64_t second = lane.start([&] { order.push_back(2); });
  EXPECT_EQ(second, 2);
  first.set_value();
  lane.wait(second);
  EXPECT_THAT(order, ElementsAre(1, 2));
  lane.start([&] { order.push_back(3); });
  lane.finish();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(HostLane, ErrorsReachTheOwnerAndEndTheLane) {
  HostLane lane(100);
  bool is_made = false;
  const std::int64_t broken = lane.start([] { throw Error("no memory"); });
  lane.start([&] { is_made = true; });
  EXPECT_THAT([&] { lane.wait(broken); }, ThrowsMessage<Error>(HasSubstr("no memory")));
  EXPECT_THAT([&] { lane.finish(); }, ThrowsMessage<Error>(HasSubstr("no memory")));
  EXPECT_FALSE(is_made);
}

TEST(HostLane, AWaitHasADeadline) {
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  HostLane lane(0.05);
  const std::int64_t late = lane.start([ended] { ended.wait(); });
  EXPECT_THAT([&] { lane.wait(late); },
              ThrowsMessage<Error>(HasSubstr("copy 1 between host and device is not done after "
                                             "0.05 s, copy 0 is")));
  end.set_value();
}

TEST(HostLane, EndsBehindTheCopyThatRuns) {
  std::promise<void> begin;
  std::promise<void> end;
  int copies = 0;
  {
    HostLane lane(100);
    lane.start([&] {
      begin.set_value();
      end.get_future().wait();
      ++copies;
    });
    begin.get_future().wait();
    end.set_value();
  }
  EXPECT_EQ(copies, 1);
}

}  // namespace
}  // namespace armillary::train
