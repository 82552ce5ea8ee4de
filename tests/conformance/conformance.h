// conformance.h: one suite of tests for every Communicator. A communicator takes part by a file
// that instantiates the suite for it, as local_test.cpp does. Ranks may be processes, so no test
// shares memory between ranks.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

using Body = std::function<void(Communicator&)>;

/// A way to run a group, and the properties of it that tests have to know.
struct Launcher {
  std::string name;
  /// Runs the body on all ranks of a new group, as run_ranks() does. In particular it throws
  /// CommError, on every process that takes part, if the group failed but the body swallowed the
  /// error.
  std::function<void(int world, const Body& body)> run;
  /// Whether the engine notices that a send and its receive differ in size.
  bool sees_sizes = true;
  /// The number of lane 0 in error texts: a group made by split() names lanes of the first group.
  int lane_0 = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Launcher& launcher) {
  return out << launcher.name;
}

class CommunicatorConformance : public testing::TestWithParam<Launcher> {
 protected:
  void run(int world, const Body& body) const { GetParam().run(world, body); }
  /// The number of a lane in error texts.
  int told(int lane) const { return GetParam().lane_0 + lane; }
};

}  // namespace armillary::comm
