// conformance.h: one suite of tests for every Communicator. A communicator takes part by a file
// that instantiates the suite for it, as local_test.cpp does. Ranks may be processes, so no test
// shares memory between ranks. Then every process runs every test, also those whose groups it is no
// member of, and an engine may have few processes: tests ask for their worlds by at_most(),
// worlds() or lacks_ranks().
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "tests/seed.h"

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
  /// The largest world of a group.
  int most_ranks = 8;
  /// Whether the tests also run with fewer processes, from 2 on, whose worlds they leave to those:
  /// without ARMILLARY_TEST_ALL, 4 processes run no test of 2 or 3 ranks.
  bool fewer_run_too = false;
  double start_s = 0;  ///< Seconds that making and ending a group may take on a busy machine.
  bool huge_messages = true;  ///< Whether messages may be longer than 2 GiB.
  /// Whether the batches of a lane end strictly in order, so that pairs of ranks are not
  /// independent (NCCL).
  bool strict_lanes = false;
};

inline std::ostream& operator<<(std::ostream& out, const Launcher& launcher) {
  return out << launcher.name;
}

class CommunicatorConformance : public testing::TestWithParam<Launcher> {
 protected:
  void SetUp() override {
    if (lacks_ranks(2) && !runs_alone()) GTEST_SKIP() << "needs 2 ranks";
  }
  void run(int world, const Body& body) const { GetParam().run(world, body); }
  /// The number of a lane in error texts.
  int told(int lane) const { return GetParam().lane_0 + lane; }
  /// Starts messages one by one, or as a batch if they could not end alone.
  std::vector<Request> start_each(Communicator& comm, const std::vector<Message>& messages) const {
    if (GetParam().strict_lanes) return comm.start(messages);
    std::vector<Request> requests;
    requests.reserve(messages.size());
    for (const Message& message : messages) requests.push_back(comm.start({&message, 1})[0]);
    return requests;
  }
  /// The world nearest to `world` that the engine has.
  int at_most(int world) const { return std::min(world, GetParam().most_ranks); }
  /// `sizes`, in which worlds that are too large become the largest one, without those of runs
  /// with fewer processes.
  std::set<int> worlds(std::initializer_list<int> sizes) const {
    std::set<int> result;
    for (const int world : sizes) result.insert(at_most(world));
    if (GetParam().fewer_run_too) {
      std::erase_if(result, [&](int world) { return world > 1 && world < GetParam().most_ranks; });
    }
    return result;
  }
  /// Whether this test, which asks for several worlds, has something to do in a world of one.
  static bool runs_alone() {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    const auto is = [&](const char* name) { return test.starts_with(std::string(name) + "/"); };
    return is("TellsRankAndWorld") || is("CollectivesMoveEveryDtype") ||
           is("CollectivesReduceEveryDtype");
  }
  /// Whether the engine has too few ranks, for tests that need a certain world.
  bool lacks_ranks(int world) const { return GetParam().most_ranks < world; }
  /// Whether tests of this world are those of a run with fewer processes.
  bool leaves_to_fewer(int world) const {
    return GetParam().fewer_run_too && world < GetParam().most_ranks && !test_all();
  }
};

}  // namespace armillary::comm

/// Skips a test of `world` ranks, if the engine has fewer, or if it runs with that many too.
#define ARMILLARY_NEEDS_RANKS(world)                                       \
  if (lacks_ranks(world)) GTEST_SKIP() << "needs " << (world) << " ranks"; \
  if (leaves_to_fewer(world)) GTEST_SKIP() << "runs with " << (world) << " processes too"
