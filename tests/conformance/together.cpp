// together.cpp: work that fails on one rank alone fails on all, with that rank's error.
#include "armillary/comm/together.h"

#include <gmock/gmock.h>

#include <string>

#include "armillary/core/error.h"
#include "tests/conformance/conformance.h"

namespace armillary::comm {
namespace {

using testing::ThrowsMessage;

TEST_P(CommunicatorConformance, AnErrorOfOneRankIsThatOfAll) {
  run(at_most(3), [](Communicator& comm) {
    const int last = comm.world() - 1;
    const std::string line = "rank " + std::to_string(last) + ": bad data";
    EXPECT_THAT(
        [&] {
          run_together(comm, [&] {
            if (comm.rank() == last) fail<InvalidArgument>("bad data");
          });
        },
        ThrowsMessage<InvalidArgument>(comm.world() == 1 ? "bad data" : line));
    // The same on all ranks is of none in particular, and the group goes on.
    EXPECT_THAT([&] { run_together(comm, [] { fail<IoError>("no file"); }); },
                ThrowsMessage<IoError>("no file"));
    EXPECT_EQ(text_of_rank(comm, last, std::to_string(comm.rank())), std::to_string(last));
  });
}

}  // namespace
}  // namespace armillary::comm
