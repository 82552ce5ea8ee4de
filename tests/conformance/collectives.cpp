// Collectives that ranks call differently: one line on every rank, and no data moved.
#include "armillary/comm/collectives.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "tests/conformance/conformance.h"

namespace armillary::comm {
namespace {

/// Expects `call` to throw `text` on every rank, and the group to work afterwards.
void expect_refusal(Communicator& comm, const Body& call, const std::string& text) {
  try {
    call(comm);
    ADD_FAILURE() << "rank " << comm.rank() << ": no exception; required: " << text;
  } catch (const InvalidArgument& e) {
    EXPECT_EQ(e.what(), text) << "rank " << comm.rank();
  }
  std::vector<double> one = {1};
  all_reduce_sum(comm, one);
  EXPECT_EQ(one[0], comm.world()) << "rank " << comm.rank();
}

TEST_P(CommunicatorConformance, CollectivesThatDifferAreRefusedOnEveryRank) {
  for (const int world : {2, 3, 5, 8}) {
    run(world, [](Communicator& comm) {
      const bool odd = comm.rank() == comm.world() - 1;
      const std::string other = "rank " + std::to_string(comm.world() - 1) + " calls ";
      const std::string end = "; the same call is required on all ranks";
      std::vector<float> floats(odd ? 4 : 3, 7);
      const std::vector<float> before = floats;
      std::vector<double> doubles(3);
      const auto bytes = std::as_writable_bytes(std::span(floats).first(3));

      expect_refusal(
          comm, [&](Communicator& c) { all_reduce_sum(c, floats); },
          "all_reduce_sum: rank 0 calls all_reduce_sum of 3 fp32, " + other +
              "all_reduce_sum of 4 fp32" + end);
      expect_refusal(
          comm,
          [&](Communicator& c) { odd ? all_reduce_sum(c, doubles) : all_reduce_sum(c, floats); },
          "all_reduce_sum: rank 0 calls all_reduce_sum of 3 fp32, " + other +
              "all_reduce_sum of 3 fp64" + end);
      expect_refusal(
          comm, [&](Communicator& c) { broadcast(c, bytes, odd ? 1 : 0); },
          "broadcast: rank 0 calls broadcast of 12 byte from rank 0, " + other +
              "broadcast of 12 byte from rank 1" + end);
      expect_refusal(
          comm, [&](Communicator& c) { odd ? barrier(c) : broadcast(c, bytes, 0); },
          "broadcast: rank 0 calls broadcast of 12 byte from rank 0, " + other + "barrier" + end);
      std::vector<std::byte> all(8 * comm.world());
      const std::size_t size = odd ? 8 : 4;
      expect_refusal(
          comm,
          [&](Communicator& c) {
            all_gather(c, bytes.first(size), std::span(all).first(size * c.world()));
          },
          "all_gather: rank 0 calls all_gather of 4 byte, " + other + "all_gather of 8 byte" + end);
      EXPECT_EQ(floats, before) << "rank " << comm.rank();
    });
  }
}

TEST_P(CommunicatorConformance, AbortEndsABlockedCollective) {
  EXPECT_THROW(run(3,
                   [](Communicator& comm) {
                     if (comm.rank() == 2) return comm.abort("over");
                     try {
                       barrier(comm);
                       ADD_FAILURE() << "no exception";
                     } catch (const CommError& e) {
                       EXPECT_STREQ(e.what(), "rank 2 failed: over");
                     }
                   }),
               CommError);
}

}  // namespace
}  // namespace armillary::comm
