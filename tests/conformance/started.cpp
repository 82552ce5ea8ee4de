// Started collectives: results for counts that differ, several at once beside messages, and calls
// that differ: every rank is told both.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/core/half_floats.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/messages.h"

namespace armillary::comm {
namespace {

using Counts = std::vector<std::int64_t>;

/// Counts from 0 on that differ by rank; one is large enough to travel in pieces and buffers.
Counts uneven(int world) {
  Counts counts(world);
  for (int rank = 0; rank < world; ++rank) counts[rank] = rank == 1 ? 40000 : 5 * (rank % 3);
  return counts;
}

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Element i of rank r.
float element(int rank, std::int64_t i) {
  return static_cast<float>((std::int64_t{7} * rank + 3 * i) % 101) / 8;
}

std::vector<float> elements(int rank, std::int64_t count) {
  std::vector<float> values(count);
  for (std::int64_t i = 0; i < count; ++i) values[i] = element(rank, i);
  return values;
}

TEST_P(CommunicatorConformance, StartedGathersTakeCountsThatDiffer) {
  for (const int world : worlds({1, 2, 3, 4, 5})) {
    run(world, [](Communicator& comm) {
      for (const Counts& counts : {uneven(comm.world()), Counts(comm.world(), 3)}) {
        std::vector<float> mine = elements(comm.rank(), counts[comm.rank()]);
        std::vector<float> all(total(counts), -1);
        const bool equal = counts[0] == 3;
        comm.wait(start_all_gather(comm, array(std::span(mine)), array(std::span(all)),
                                   equal ? Counts() : counts));
        std::vector<float> required;
        for (int rank = 0; rank < comm.world(); ++rank) {
          const std::vector<float> part = elements(rank, counts[rank]);
          required.insert(required.end(), part.begin(), part.end());
        }
        EXPECT_EQ(all, required);
      }
    });
  }
}

TEST_P(CommunicatorConformance, StartedScattersSumInTheOrderOfRanks) {
  for (const int world : worlds({1, 2, 3, 4, 5})) {
    run(world, [](Communicator& comm) {
      const Counts counts = uneven(comm.world());
      std::int64_t begin = 0;
      for (int rank = 0; rank < comm.rank(); ++rank) begin += counts[rank];
      // Values whose sum depends on the order.
      const auto value = [](int rank, std::int64_t i) {
        return element(rank, i) * (rank % 2 == 0 ? 1e7F : 1e-3F);
      };
      std::vector<float> all(total(counts));
      for (std::int64_t i = 0; i < std::ssize(all); ++i) all[i] = value(comm.rank(), i);
      std::vector<float> mine(counts[comm.rank()], -1);
      comm.wait(start_reduce_scatter(comm, array(std::span(all)), array(std::span(mine)),
                                     Reduction::Sum, counts));
      for (std::int64_t i = 0; i < counts[comm.rank()]; ++i) {
        float sum = value(0, begin + i);
        for (int rank = 1; rank < comm.world(); ++rank) sum += value(rank, begin + i);
        ASSERT_EQ(mine[i], sum) << "element " << i;
      }
    });
  }
}

TEST_P(CommunicatorConformance, StartedScattersOfHalfFloatsMayKeepTheirSum) {
  for (const int world : worlds({2, 3, 4})) {
    run(world, [](Communicator& comm) {
      // 256 + 1 + 1 .. in bf16 stays 256 if each sum is rounded.
      std::vector<std::uint16_t> all(comm.world(), Bf16(comm.rank() == 0 ? 256.F : 1.F).bits);
      const Array outgoing = array(std::span(all), ElementType::Bf16);
      float whole = 0;
      comm.wait(start_reduce_scatter(comm, outgoing, array(std::span(&whole, 1))));
      EXPECT_EQ(whole, 255.F + static_cast<float>(comm.world()));
      std::uint16_t rounded = 0;
      comm.wait(
          start_reduce_scatter(comm, outgoing, array(std::span(&rounded, 1), ElementType::Bf16)));
      EXPECT_EQ(rounded, Bf16(whole).bits) << "once";
    });
  }
}

TEST_P(CommunicatorConformance, StartedAllToAllsTakeCountsOfEachPair) {
  for (const int world : worlds({1, 2, 3, 4, 5})) {
    run(world, [](Communicator& comm) {
      const int P = comm.world();
      const auto count = [](int from, int to) { return std::int64_t{2} * from + 3000 * to % 4001; };
      Counts outgoing(P);
      Counts incoming(P);
      for (int peer = 0; peer < P; ++peer) {
        outgoing[peer] = count(comm.rank(), peer);
        incoming[peer] = count(peer, comm.rank());
      }
      std::vector<float> from;
      std::vector<float> required;
      for (int peer = 0; peer < P; ++peer) {
        const auto put = [](std::vector<float>& to, int rank, std::int64_t n) {
          const std::vector<float> part = elements(rank, n);
          to.insert(to.end(), part.begin(), part.end());
        };
        put(from, 10 * comm.rank() + peer, outgoing[peer]);
        put(required, 10 * peer + comm.rank(), incoming[peer]);
      }
      std::vector<float> to(required.size(), -1);
      comm.wait(start_all_to_all(comm, array(std::span(from)), array(std::span(to)),
                                 {.outgoing = outgoing, .incoming = incoming}));
      EXPECT_EQ(to, required);
    });
  }
}

TEST_P(CommunicatorConformance, StartedCollectivesAreUnderWayTogether) {
  for (const int world : worlds({2, 3, 4})) {
    run(world, [](Communicator& comm) {
      constexpr int kMany = 12;
      const int P = comm.world();
      std::vector<std::vector<double>> mine(kMany);
      std::vector<std::vector<double>> all(kMany);
      std::vector<double> sums(kMany);
      std::vector<Request> requests;
      for (int i = 0; i < kMany; ++i) {
        if (i % 2 == 0) {
          mine[i] = {100. * comm.rank() + i};
          all[i].resize(P);
          requests.push_back(
              start_all_gather(comm, array(std::span(mine[i])), array(std::span(all[i]))));
        } else {
          all[i].assign(P, comm.rank() + i);
          requests.push_back(
              start_reduce_scatter(comm, array(std::span(all[i])), array(std::span(&sums[i], 1))));
        }
      }
      // Plain messages beside them.
      std::vector<int> out = {comm.rank()};
      std::vector<int> in = {-1};
      const Strided part_out = whole(std::span(out));
      const Strided part_in = whole(std::span(in));
      const std::vector<Message> batch = {
          {Direction::Send, (comm.rank() + 1) % P, 1, {&part_out, 1}},
          {Direction::Receive, (comm.rank() + P - 1) % P, 1, {&part_in, 1}}};
      for (Request& request : comm.start(batch)) requests.push_back(std::move(request));
      // They may end in any order, and each ends once.
      for (int left = static_cast<int>(requests.size()); left > 0; --left) {
        const std::size_t index = comm.wait_any(requests);
        ASSERT_LT(index, requests.size());
        EXPECT_TRUE(comm.is_complete(requests[index]));
        requests[index].reset();
      }
      for (int i = 0; i < kMany; ++i) {
        for (int rank = 0; rank < P && i % 2 == 0; ++rank) EXPECT_EQ(all[i][rank], 100. * rank + i);
        if (i % 2 == 1) {
          EXPECT_EQ(sums[i], P * i + P * (P - 1) / 2);
        }
      }
      EXPECT_EQ(in[0], (comm.rank() + P - 1) % P);
      barrier(comm);
    });
  }
}

using Start = std::function<Request(Communicator&, bool odd)>;

/// Runs a call that is another one on the last rank, and expects both texts on every rank.
void expect_both_told(const Launcher& launcher, int world, const Start& start,
                      const std::string& first, const std::string& last) {
  const std::string required = fmt::format(
      "rank {} calls {}; the same call is required on all "
      "ranks",
      world - 1, last);
  EXPECT_THROW(launcher.run(world,
                            [&](Communicator& comm) {
                              const std::string text = text_of<CommError>([&] {
                                comm.wait(start(comm, comm.rank() == world - 1));
                                barrier(comm);
                              });
                              EXPECT_THAT(text, testing::HasSubstr(" calls " + first));
                              EXPECT_THAT(text, testing::HasSubstr(required));
                            }),
               CommError);
}

TEST_P(CommunicatorConformance, RanksThatStartDifferentCollectivesAreToldBoth) {
  if (GetParam().lane_0 != 0) GTEST_SKIP() << "ranks are those of the first group";
  if (!GetParam().sees_sizes) GTEST_SKIP() << "messages of device memory are not compared";
  for (const int world : worlds({2, 3, 4})) {
    if (world == 1) continue;
    // Memory outlives the groups.
    std::vector<std::vector<float>> mine(world, std::vector<float>(40));
    std::vector<std::vector<float>> all(world, std::vector<float>(std::size_t{40} * world));
    const auto gather = [&](Communicator& comm, std::int64_t count, const Counts& counts = {}) {
      Array whole = array(std::span(all[comm.rank()]));
      Array part = array(std::span(mine[comm.rank()]));
      part.count = count;
      whole.count = counts.empty() ? count * world : total(counts);
      return start_all_gather(comm, part, whole, counts);
    };
    const auto text = [&](int count) {
      return fmt::format("all_gather of {} fp32", count * world);
    };
    expect_both_told(
        GetParam(), world, [&](Communicator& comm, bool odd) { return gather(comm, odd ? 4 : 3); },
        text(3), text(4));
    expect_both_told(
        GetParam(), world,
        [&](Communicator& comm, bool odd) {
          if (!odd) return gather(comm, 3);
          return start_reduce_scatter(
              comm, array(std::span(all[comm.rank()]).first(std::size_t{3} * world)),
              array(std::span(mine[comm.rank()]).first(3)));
        },
        text(3), fmt::format("scatter_sum of {} fp32", 3 * world));
    expect_both_told(
        GetParam(), world,
        [&](Communicator& comm, bool odd) {
          Counts counts(world, 3);
          counts[0] += odd ? 0 : 1;
          counts[1] += odd ? 1 : 0;
          return gather(comm, counts[comm.rank()], counts);
        },
        fmt::format("all_gather of {} fp32 as 4+3", 3 * world + 1),
        fmt::format("all_gather of {} fp32 as 3+4{}", 3 * world + 1,
                    std::string("+3+3").substr(0, std::size_t{2} * (world - 2))));
    expect_both_told(
        GetParam(), world,
        [&](Communicator& comm, bool odd) {
          Counts outgoing(world, 2);
          const Counts incoming(world, 2);
          if (odd) outgoing[0] = 3;
          return start_all_to_all(comm, array(std::span(mine[comm.rank()]).first(total(outgoing))),
                                  array(std::span(all[comm.rank()]).first(std::size_t{2} * world)),
                                  {.outgoing = outgoing, .incoming = incoming});
        },
        fmt::format("all_to_all of 2 fp32 from {} to 0", world - 1),
        fmt::format("all_to_all of 3 fp32 from {} to 0", world - 1));
  }
}

TEST_P(CommunicatorConformance, CountsOfStartedCollectivesAddUp) {
  for (const int world : worlds({2, 3, 4})) {
    run(world, [](Communicator& comm) {
      const int P = comm.world();
      std::vector<float> mine(2);
      std::vector<float> all(std::size_t{2} * P);
      const auto refused = [&](const Counts& counts, std::span<float> part,
                               std::span<float> whole) {
        return text_of<InvalidArgument>(
            [&] { start_all_gather(comm, array(part), array(whole), counts); });
      };
      const auto start = [&](const Counts& counts) { return refused(counts, mine, all); };
      Counts counts(P, 2);
      counts[0] = 3;
      EXPECT_THAT(start(counts), testing::StartsWith("all_gather: counts 3 + 2"));
      EXPECT_THAT(start(counts), testing::EndsWith("a count from 0 on for each rank, with that "
                                                   "sum, is required"));
      counts[0] = -2;
      counts[1] = 6;
      EXPECT_THAT(start(counts), testing::HasSubstr("counts -2 + 6"));
      EXPECT_THAT(start(Counts(P + 1, 2)), testing::HasSubstr("counts 2 + 2"));
      EXPECT_EQ(refused({}, mine, std::span(all).first(2 * P - 1)),
                fmt::format("all_gather: {} fp32 for {} ranks and no counts; counts, or a multiple "
                            "of {}, are required",
                            2 * P - 1, P, P));
      EXPECT_EQ(refused({}, std::span(mine).first(1), all),
                "all_gather: 1 fp32 where the counts give this rank 2; as many are required");
      barrier(comm);  // Nothing was started.
    });
  }
}

}  // namespace
}  // namespace armillary::comm
