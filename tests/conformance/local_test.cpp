// The conformance suite on threads: without delays, with delays that shuffle the order of
// completion, and on a group made by split().
#include "armillary/comm/local.h"

#include "tests/conformance/conformance.h"

namespace armillary::comm {
namespace {

Launcher local() {
  return {"local", [](int world, const Body& body) { run_ranks(world, body); }};
}

Launcher shuffled(std::uint64_t seed) {
  return {"shuffled" + std::to_string(seed),
          [seed](int world, const Body& body) { run_ranks(world, body, {.shuffle_seed = seed}); }};
}

/// A group made by split(), of all but the last rank of the first group.
Launcher split() {
  const auto run = [](int world, const Body& body) {
    run_ranks(world + 1, [&](Communicator& comm) {
      const auto group = comm.split(comm.rank() < world ? 0 : -1, 0);
      if (group) body(*group);
    });
  };
  return {.name = "split", .run = run, .lane_0 = LocalOptions().lanes};
}

INSTANTIATE_TEST_SUITE_P(Local, CommunicatorConformance,
                         testing::Values(local(), shuffled(1), shuffled(2), shuffled(3), split()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace armillary::comm
