// conformance.h: what every Communicator must do, as one suite. A communicator takes part by a file
// that instantiates it, as local_test.cpp does. Ranks may be processes: no test shares memory
// between ranks.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

using Body = std::function<void(Communicator&)>;

/// How the suite gets a group.
struct Launcher {
  std::string name;
  /// Runs the body on all ranks of a new group, as run_ranks() does: in particular, throws
  /// CommError (on every process that takes part) if the group failed although the body swallowed
  /// the error.
  std::function<void(int world, const Body& body)> run;
  /// Whether a send and a receive of different sizes can be told from each other.
  bool sees_sizes = true;
  /// What errors call lane 0: a group that was split off names lanes of the whole.
  int lane_0 = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Launcher& launcher) {
  return out << launcher.name;
}

class CommunicatorConformance : public testing::TestWithParam<Launcher> {
 protected:
  void run(int world, const Body& body) const { GetParam().run(world, body); }
  /// What errors call this lane.
  int told(int lane) const { return GetParam().lane_0 + lane; }
};

}  // namespace armillary::comm
