// collectives_over_hosts_test.cpp: started gathers and sums on thread ranks that are told hosts:
// values, bytes between hosts, second phases in the order of calls, and failures in either phase.
#include "armillary/comm/collectives_over_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/comm/testing/spin_until.h"
#include "armillary/comm/watched_communicator.h"
#include "armillary/core/error.h"
#include "armillary/core/half_floats.h"

namespace armillary::comm {
namespace {

using testing::HasSubstr;
using HostList = std::vector<int>;
using CountList = std::vector<std::int64_t>;

const std::vector<HostList>& host_lists() {
  static const std::vector<HostList> lists{{0, 0, 1, 1},       {0, 1, 0, 1},
                                           {7, 7, 7, 2, 2, 2}, {0, 0, 1, 1, 2, 2},
                                           {0, 1, 1, 2, 2, 0}, {0, 0, 1}};
  return lists;
}

/// Runs the body in order and shuffled, with every list of hosts.
void run_all(const std::function<void(Communicator&)>& body) {
  for (const HostList& hosts : host_lists()) {
    SCOPED_TRACE(testing::PrintToString(hosts));
    run_ranks(static_cast<int>(hosts.size()), body, {.hosts = hosts});
    run_ranks(static_cast<int>(hosts.size()), body, {.shuffle_seed = 7, .hosts = hosts});
  }
}

/// Equal ones, and others with zeros: rank 0 has none.
std::vector<CountList> count_lists(int world) {
  CountList uneven(world);
  for (int rank = 0; rank < world; ++rank) uneven[rank] = rank == 1 ? 900 : 5 * (rank % 3);
  return {CountList(world, 4), uneven, CountList(world, 0)};
}

std::int64_t sum_of_counts(const CountList& counts, int end) {
  return std::accumulate(counts.begin(), counts.begin() + end, std::int64_t{0});
}

template <class T>
std::vector<T> values_of(int rank, std::int64_t count) {
  std::vector<T> values(count);
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(100 * (rank + 1) + i % 50);
  return values;
}

template <class T>
void expect_sums(Communicator& comm, const CountList& counts) {
  const std::int64_t begin = sum_of_counts(counts, comm.rank());
  const std::int64_t total = sum_of_counts(counts, comm.world());
  std::vector<T> required(counts[comm.rank()]);
  std::vector<T> largest(counts[comm.rank()]);
  for (int rank = 0; rank < comm.world(); ++rank) {
    const std::vector<T> all = values_of<T>(rank, total);
    for (std::int64_t i = 0; i < std::ssize(required); ++i) {
      required[i] += all[begin + i];
      largest[i] = std::max(largest[i], all[begin + i]);
    }
  }
  std::vector<T> all = values_of<T>(comm.rank(), total);
  std::vector<T> mine(required.size(), -1);
  comm.wait(start_reduce_scatter(comm, array(std::span(all)), array(std::span(mine)),
                                 Reduction::Sum, counts));
  EXPECT_EQ(mine, required);
  EXPECT_EQ(all, values_of<T>(comm.rank(), total)) << "is not written";
  // In its place, polled.
  const auto place = std::span(all).subspan(begin, required.size());
  const Request request =
      start_reduce_scatter(comm, array(std::span(all)), array(place), Reduction::Max, counts);
  while (!comm.is_complete(request)) std::this_thread::yield();
  EXPECT_EQ(std::vector<T>(place.begin(), place.end()), largest);
}

TEST(CollectivesOverHosts, SumsAreThoseOfAllRanks) {
  run_all([](Communicator& comm) {
    for (const CountList& counts : count_lists(comm.world())) {
      expect_sums<std::int64_t>(comm, counts);
      expect_sums<float>(comm, counts);
      expect_sums<double>(comm, counts);
    }
  });
}

TEST(CollectivesOverHosts, GathersHaveThePartsOfAllRanks) {
  run_all([](Communicator& comm) {
    for (const CountList& counts : count_lists(comm.world())) {
      std::vector<float> required;
      for (int rank = 0; rank < comm.world(); ++rank) {
        const std::vector<float> part = values_of<float>(rank, counts[rank]);
        required.insert(required.end(), part.begin(), part.end());
      }
      std::vector<float> mine = values_of<float>(comm.rank(), counts[comm.rank()]);
      std::vector<float> all(required.size(), -1);
      comm.wait(start_all_gather(comm, array(std::span(mine)), array(std::span(all)), counts));
      EXPECT_EQ(all, required);
    }
  });
}

TEST(CollectivesOverHosts, SumsOfHostsAreAddedInOrder) {
  // In rank order (1 + 2^24) + 1 - 2^24 is 0; on hosts 0, 1, 0, 1 it is (1 + 1) + 0.
  const std::vector<float> addends{1, 16777216, 1, -16777216};
  const auto sum_on = [&](const HostList& hosts) {
    float first = -1;
    run_ranks(
        4,
        [&](Communicator& comm) {
          std::vector<float> all(4, addends[comm.rank()]);
          float mine = -1;
          comm.wait(start_reduce_scatter(comm, array(std::span(all)), array(std::span(&mine, 1))));
          if (comm.rank() == 0) first = mine;
        },
        {.hosts = hosts});
    return first;
  };
  EXPECT_EQ(sum_on({}), 0);
  EXPECT_EQ(sum_on({0, 1, 0, 1}), 2);
}

TEST(CollectivesOverHosts, HalfFloatsAreRoundedOnce) {
  run_ranks(4,
            [](Communicator& comm) {
              // In bf16 the sum 256 + 1 of the second host would be 256.
              std::vector<std::uint16_t> all(4, Bf16(comm.rank() == 2 ? 256.F : 1.F).bits);
              float mine = 0;
              comm.wait(start_reduce_scatter(comm, array(std::span(all), ElementType::Bf16),
                                             array(std::span(&mine, 1))));
              EXPECT_EQ(mine, 259);
            },
            {.hosts = {0, 0, 1, 1}});
}

/// Bytes that a rank sends to other hosts, and to all ranks, in a sum and a gather of 120 fp32.
std::pair<std::int64_t, std::int64_t> sent_bytes(Communicator& engine) {
  std::int64_t out = 0;
  std::int64_t all = 0;
  WatchedCommunicator comm(engine, [&](const Message& message) {
    if (message.direction != Direction::Send) return;
    const std::int64_t bytes = total_bytes(message.parts);
    all += bytes;
    if (engine.host_of(message.peer) != engine.host_of(engine.rank())) out += bytes;
  });
  std::vector<float> whole(120, 1);
  std::vector<float> mine(120 / comm.world());
  comm.wait(start_reduce_scatter(comm, array(std::span(whole)), array(std::span(mine))));
  EXPECT_EQ(mine.front(), static_cast<float>(comm.world()));
  comm.wait(start_all_gather(comm, array(std::span(mine)), array(std::span(whole))));
  EXPECT_EQ(whole.back(), static_cast<float>(comm.world()));
  return {out, all};
}

TEST(CollectivesOverHosts, AHostSendsWhatOneRankWould) {
  struct HostPlacement {
    HostList hosts;
    int hosts_number, on_each;
  };
  for (const HostPlacement& placement :
       {HostPlacement{{0, 0, 1, 1}, 2, 2}, HostPlacement{{0, 1, 0, 1, 0, 1}, 2, 3},
        HostPlacement{{0, 0, 1, 1, 2, 2}, 3, 2}}) {
    const int P = static_cast<int>(placement.hosts.size());
    run_ranks(P,
              [&](Communicator& comm) {
                const auto [out, all] = sent_bytes(comm);
                // S = 480 bytes; (H - 1)/H of them leave each host in the sum and in the gather.
                const std::int64_t of_host =
                    2 * 480 * (placement.hosts_number - 1) / placement.hosts_number;
                EXPECT_EQ(out * placement.on_each, of_host);
                EXPECT_EQ(all, 2 * 480 * (P - 1) / P);
              },
              {.hosts = placement.hosts});
  }
}

// Second phases start at other times on each rank, but in one order, on a lane of their own.
TEST(CollectivesOverHosts, ManyAreUnderWayBesideOtherMessages) {
  run_all([](Communicator& world) {
    const auto part = world.split(0, world.world() - world.rank());
    for (Communicator* const comm : {&world, part.get()}) {
      const int P = comm->world();
      constexpr int kMany = 9;
      std::vector<std::vector<std::int64_t>> all(kMany);
      std::vector<std::int64_t> mine(kMany);
      std::vector<Request> requests;
      for (int i = 0; i < kMany; ++i) {
        mine[i] = 100 * comm->rank() + i;
        all[i].assign(P, comm->rank() + i);
        const Array whole = array(std::span(all[i]));
        const Array own = array(std::span(&mine[i], 1));
        requests.push_back(i % 3 == 0 ? start_all_gather(*comm, own, whole)
                                      : start_reduce_scatter(*comm, whole, own));
        if (i % P == comm->rank()) comm->progress();
        if (i == 4) barrier(*comm);
      }
      // Ranks wait in different orders.
      for (int i = 0; i < kMany; ++i) comm->wait(requests[(i + comm->rank()) % kMany]);
      for (int i = 0; i < kMany; ++i) {
        for (int rank = 0; rank < P && i % 3 == 0; ++rank) EXPECT_EQ(all[i][rank], 100 * rank + i);
        if (i % 3 != 0) {
          EXPECT_EQ(mine[i], P * i + P * (P - 1) / 2);
        }
      }
    }
  });
}

// Rank 1 waits for a message that rank 3 sends behind a sum for which it needs rank 1.
TEST(CollectivesOverHosts, AWaitForAnotherMessageGoesOnWithThem) {
  run_ranks(4,
            [](Communicator& comm) {
              std::vector<float> all(4, 1);
              float mine = 0;
              const Request sum =
                  start_reduce_scatter(comm, array(std::span(all)), array(std::span(&mine, 1)));
              int number = comm.rank();
              const Strided part = whole(std::span(&number, 1));
              if (comm.rank() == 1) comm.wait(comm.irecv(3, 1, {&part, 1}));
              comm.wait(sum);
              if (comm.rank() == 3) comm.wait(comm.isend(1, 1, {&part, 1}));
              EXPECT_EQ(mine, 4);
              EXPECT_EQ(number, comm.rank() == 1 ? 3 : comm.rank());
            },
            {.timeout_s = 20, .hosts = {0, 0, 1, 1}});
}

/// The first failure of ranks on two hosts.
std::string failure_on_hosts(const std::function<void(Communicator&)>& body,
                             double timeout_s = 30) {
  try {
    run_ranks(4, body, {.timeout_s = timeout_s, .hosts = {0, 0, 1, 1}});
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST(CollectivesOverHosts, OneThatIsDroppedBeforeItsSecondPhaseFailsTheGroup) {
  const std::string text = failure_on_hosts([](Communicator& comm) {
    std::vector<float> all(8, 1);
    std::vector<float> mine(2);
    Request sum = start_reduce_scatter(comm, array(std::span(all)), array(std::span(mine)));
    if (comm.rank() == 2) sum.reset();
    if (comm.rank() != 2) comm.wait(sum);
    comm.throw_if_failed();
  });
  EXPECT_EQ(text, "rank 2 failed: rank 2 dropped scatter_sum of 8 fp32 before it was done");
}

TEST(CollectivesOverHosts, OneThatIsDroppedInItsSecondPhaseIsWithdrawn) {
  std::atomic<bool> is_dropped = false;
  const std::string text = failure_on_hosts([&](Communicator& engine) {
    bool is_second = false;
    WatchedCommunicator comm(
        engine, [&](const Message& message) { is_second |= message.lane == engine.lanes(); });
    if (comm.rank() == 0) spin_until(is_dropped);
    std::vector<float> all(8, 1);
    std::vector<float> mine(2);
    // The ranks of the first host start late, so this rank waits for rank 0 in its second phase.
    Request sum = start_reduce_scatter(comm, array(std::span(all)), array(std::span(mine)));
    while (comm.rank() == 2 && !is_second) {
      comm.progress();
      std::this_thread::yield();
    }
    if (comm.rank() == 2) {
      sum.reset();
      is_dropped = true;
    }
    comm.wait(sum);
    comm.throw_if_failed();
  });
  EXPECT_EQ(text,
            "rank 2 failed: rank 2 dropped a request of 8 bytes with rank 0 on lane 32 before it "
            "was done");
}

TEST(CollectivesOverHosts, ARankThatIsLateInTheSecondPhaseIsNamed) {
  const std::string text = failure_on_hosts(
      [](Communicator& comm) {
        std::vector<float> all(4, 1);
        float mine = 0;
        const Request sum =
            start_reduce_scatter(comm, array(std::span(all)), array(std::span(&mine, 1)));
        if (comm.rank() == 3) std::this_thread::sleep_for(std::chrono::seconds(3));
        comm.wait(sum);
      },
      1);
  EXPECT_THAT(text, HasSubstr("rank 1 receives 4 bytes from rank 3 on lane 32"));
  EXPECT_THAT(text, HasSubstr("; rank 3"));
}

TEST(CollectivesOverHosts, HostsThatCallDifferentlyAreToldBoth) {
  const std::string text = failure_on_hosts([](Communicator& comm) {
    std::vector<float> all(8, 1);
    std::vector<float> mine(2);
    const Array whole = array(std::span(all));
    const Array own = array(std::span(mine));
    comm.wait(comm.rank() < 2 ? start_reduce_scatter(comm, whole, own)
                              : start_all_gather(comm, own, whole));
  });
  EXPECT_THAT(text, HasSubstr("calls scatter_sum of 8 fp32, rank"));
  EXPECT_THAT(text, HasSubstr("calls all_gather of 8 fp32; the same call is required"));
}

TEST(CollectivesOverHosts, HostsAreOneForEachRankOrNone) {
  EXPECT_THROW(run_ranks(2, [](Communicator&) {}, {.hosts = {0}}), InvalidArgument);
}

TEST(HostGrid, HasLevelsWhereHostsHaveAsManyRanks) {
  for (const HostList& hosts : host_lists()) {
    run_ranks(static_cast<int>(hosts.size()),
              [&](Communicator& comm) {
                EXPECT_EQ(host_grid(comm).has_levels(), hosts.size() > 3) << "2 + 1 have none";
                EXPECT_FALSE(host_grid(*comm.split(hosts[comm.rank()], 0)).has_levels())
                    << "one host";
              },
              {.hosts = hosts});
  }
  run_ranks(4,
            [](Communicator& comm) {
              const HostGrid grid = host_grid(comm);
              EXPECT_EQ(grid.ranks, (std::vector<std::vector<int>>{{0, 3}, {1, 2}}));
              EXPECT_EQ(grid.host, (std::vector<int>{0, 1, 1, 0}));
              EXPECT_EQ(grid.index, (std::vector<int>{0, 0, 1, 1}));
              const auto reversed = comm.split(0, -comm.rank());
              EXPECT_EQ(reversed->host_of(0), comm.host_of(3));
            },
            {.hosts = {5, 1, 1, 5}});
}

}  // namespace
}  // namespace armillary::comm
