// Collectives that ranks call differently: one line on every rank, and no data moved.
#include "armillary/comm/collectives.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <string_view>
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
      const auto refusal = [&](std::string_view name, std::string_view first,
                               std::string_view last) {
        return fmt::format(
            "{}: rank 0 calls {}, rank {} calls {}; the same call is required on all ranks", name,
            first, comm.world() - 1, last);
      };
      std::vector<float> floats(odd ? 4 : 3, 7);
      const std::vector<float> before = floats;
      std::vector<double> doubles(3);
      const auto bytes = std::as_writable_bytes(std::span(floats).first(3));

      expect_refusal(
          comm, [&](Communicator& c) { all_reduce_sum(c, floats); },
          refusal("all_reduce_sum", "all_reduce_sum of 3 fp32", "all_reduce_sum of 4 fp32"));
      expect_refusal(
          comm,
          [&](Communicator& c) { odd ? all_reduce_sum(c, doubles) : all_reduce_sum(c, floats); },
          refusal("all_reduce_sum", "all_reduce_sum of 3 fp32", "all_reduce_sum of 3 fp64"));
      expect_refusal(
          comm, [&](Communicator& c) { broadcast(c, bytes, odd ? 1 : 0); },
          refusal("broadcast", "broadcast of 12 byte from rank 0",
                  "broadcast of 12 byte from rank 1"));
      expect_refusal(
          comm, [&](Communicator& c) { odd ? barrier(c) : broadcast(c, bytes, 0); },
          refusal("broadcast", "broadcast of 12 byte from rank 0", "barrier"));
      std::vector<std::byte> all(std::size_t{8} * static_cast<std::size_t>(comm.world()));
      const std::size_t size = odd ? 8 : 4;
      expect_refusal(
          comm,
          [&](Communicator& c) {
            all_gather(c, bytes.first(size), std::span(all).first(size * c.world()));
          },
          refusal("all_gather", "all_gather of 4 byte", "all_gather of 8 byte"));
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
