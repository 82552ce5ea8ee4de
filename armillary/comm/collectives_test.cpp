// collectives_test.cpp: collectives made of messages, on thread ranks in order and shuffled by a
// seed: results and their order of summation, sizes that do not divide, and sizes that ranks
// disagree about.
#include "armillary/comm/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// Parameters: the world, and the shuffle seed or 0 for none.
class CollectivesTest : public testing::TestWithParam<std::tuple<int, std::uint64_t>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  void run(const std::function<void(Communicator&)>& body) const {
    const std::uint64_t seed = std::get<1>(GetParam());
    LocalOptions options;
    if (seed) options.shuffle_seed = seed;
    run_ranks(world(), body, options);
  }
};

/// Values whose sum depends on the order of summation.
template <class T>
std::vector<T> random_values(int rank, std::size_t count) {
  std::mt19937 random(rank + 17);
  std::vector<T> values(count);
  for (T& value : values) value = std::ldexp(T(random()), int(random() % 60) - 60);
  return values;
}

template <class T>
void check_all_reduce(Communicator& comm, std::size_t count) {
  std::vector<T> expected = random_values<T>(0, count);
  for (int rank = 1; rank < comm.world(); ++rank) {
    const std::vector<T> x = random_values<T>(rank, count);
    for (std::size_t i = 0; i < count; ++i) expected[i] += x[i];
  }
  std::vector<T> values = random_values<T>(comm.rank(), count);
  all_reduce_sum(comm, values);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(values[i], expected[i])
        << "rank " << comm.rank() << ", count " << count << ", at " << i;
  }
}

TEST_P(CollectivesTest, AllReduceSumsInRankOrder) {
  for (const std::size_t count : {0, 1, 2, 4, 12, 13, 14, 257}) {
    run([&](Communicator& comm) {
      check_all_reduce<float>(comm, count);
      check_all_reduce<double>(comm, count);
    });
  }
}

TEST_P(CollectivesTest, BroadcastFromEveryRoot) {
  for (const std::size_t count : {0, 1, 100}) {
    for (int root = 0; root < world(); ++root) {
      run([&](Communicator& comm) {
        std::vector<std::int64_t> values(count, comm.rank());
        broadcast(comm, std::as_writable_bytes(std::span(values)), root);
        EXPECT_EQ(values, std::vector<std::int64_t>(count, root)) << "rank " << comm.rank();
      });
    }
  }
}

TEST_P(CollectivesTest, AllGatherInRankOrder) {
  for (const std::size_t count : {0, 1, 7}) {
    run([&](Communicator& comm) {
      std::vector<int> expected;
      for (int rank = 0; rank < comm.world(); ++rank) expected.insert(expected.end(), count, rank);
      const std::vector<int> mine(count, comm.rank());
      std::vector<int> all(count * comm.world(), -1);
      all_gather(comm, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
      EXPECT_EQ(all, expected) << "rank " << comm.rank();

      std::vector<int> in_place(count * comm.world(), comm.rank());
      const auto own = std::span(in_place).subspan(comm.rank() * count, count);
      all_gather(comm, std::as_bytes(own), std::as_writable_bytes(std::span(in_place)));
      EXPECT_EQ(in_place, expected) << "rank " << comm.rank() << ", in place";
    });
  }
}

TEST_P(CollectivesTest, BarrierHoldsAllUntilTheLast) {
  std::mutex mutex;
  std::vector<int> entered;
  run([&](Communicator& comm) {
    for (int repeat = 1; repeat <= 3; ++repeat) {
      if (comm.rank() == repeat % comm.world()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      {
        const std::lock_guard lock(mutex);
        entered.push_back(comm.rank());
      }
      barrier(comm);
      {
        const std::lock_guard lock(mutex);
        EXPECT_GE(entered.size(), std::size_t(repeat * comm.world())) << "rank " << comm.rank();
      }
      barrier(comm);
    }
  });
}

TEST_P(CollectivesTest, LeaveMessagesOfOtherLanesAlone) {
  if (world() == 1) return;  // There is no other rank to send to.
  run([&](Communicator& comm) {
    const int next = (comm.rank() + 1) % comm.world();
    const int previous = (comm.rank() + comm.world() - 1) % comm.world();
    std::vector<int> out = {comm.rank()};
    std::vector<int> in = {-1};
    const Strided out_part = whole(std::span(out));
    const Strided in_part = whole(std::span(in));
    const Request receive = comm.irecv(previous, 1, {&in_part, 1});
    check_all_reduce<double>(comm, 9);
    comm.wait(comm.isend(next, 1, {&out_part, 1}));
    comm.wait(receive);
    EXPECT_EQ(in[0], previous);
  });
}

TEST_P(CollectivesTest, RefuseBadSizes) {
  run([&](Communicator& comm) {
    std::vector<std::byte> mine(3);
    std::vector<std::byte> all(3 * comm.world() + 1);
    EXPECT_THROW(all_gather(comm, mine, all), InvalidArgument);
    EXPECT_THROW(broadcast(comm, all, comm.world()), InvalidArgument);
    EXPECT_THROW(broadcast(comm, all, -1), InvalidArgument);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CollectivesTest,
                         testing::Combine(testing::Values(1, 2, 3, 5, 13),
                                          testing::Values(std::uint64_t{0}, std::uint64_t{7})));

TEST(AllReduce, WorksThroughSegments) {
  const std::size_t count = 2 * (std::size_t{1} << 20) + 5;
  run_ranks(3, [&](Communicator& comm) { check_all_reduce<float>(comm, count); });
}

TEST(CollectivesErrors, SayBothSizes) {
  run_ranks(1, [](Communicator& comm) {
    std::vector<std::byte> mine(3);
    std::vector<std::byte> all(4);
    try {
      all_gather(comm, mine, all);
      ADD_FAILURE() << "no exception";
    } catch (const InvalidArgument& e) {
      EXPECT_STREQ(e.what(), "all_gather: 4 byte for 1 rank of 3; 3 are required");
    }
  });
}

}  // namespace
}  // namespace armillary::comm
