// The conformance suite on threads: as fast as they go, and with delays that shuffle completion.
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

INSTANTIATE_TEST_SUITE_P(Local, CommunicatorConformance,
                         testing::Values(local(), shuffled(1), shuffled(2), shuffled(3)),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace armillary::comm
