// Meshes of ranks: groups along several axes beside each other, and splits that leave nothing
// behind.
#include "armillary/comm/mesh.h"

#include <gmock/gmock.h>

#include <array>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/messages.h"
#include "tests/sanitized.h"

namespace armillary::comm {
namespace {

using enum MeshAxis;

std::vector<std::int64_t> ranks_of(Communicator& group, std::int64_t rank) {
  std::vector<std::int64_t> all(group.world());
  all_gather(group, array(std::span(&rank, 1)), array(std::span(all)));
  return all;
}

/// A number of /proc/self/status: "Threads", or "VmRSS" in KiB.
std::int64_t status_of_this_process(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word != name + ":") continue;
    std::int64_t value = -1;
    file >> value;
    return value;
  }
  return -1;
}

TEST_P(CommunicatorConformance, AMeshHasAGroupForEachSetOfAxes) {
  ARMILLARY_NEEDS_RANKS(4);
  run(4, [](Communicator& comm) {
    const Mesh mesh(comm, {.dp = 2, .cp = 2});
    const std::int64_t self = comm.rank();
    const std::int64_t row = self / 2 * 2;
    const std::int64_t column = self % 2;
    EXPECT_EQ(ranks_of(mesh.along(Cp), self), (std::vector<std::int64_t>{row, row + 1}));
    EXPECT_EQ(ranks_of(mesh.along(Dp), self), (std::vector<std::int64_t>{column, column + 2}));
    EXPECT_EQ(&mesh.along(Cp), &mesh.along(Cp)) << "made once";
    EXPECT_EQ(&mesh.over({Cp, Tp}), &mesh.along(Cp)) << "an axis of 1 does not count";
    EXPECT_EQ(&mesh.replicas(), &comm) << "all ranks";
    EXPECT_EQ(mesh.along(Tp).world(), 1);
    EXPECT_EQ(mesh.index(Dp), self / 2);
    // The same mesh, turned.
    const Mesh turned(comm, {.dp = 2, .cp = 2, .order = {Dp, Cp, Tp, Pp}});
    EXPECT_EQ(ranks_of(turned.along(Dp), self), (std::vector<std::int64_t>{row, row + 1}));
    EXPECT_EQ(turned.index(Cp), self / 2);
  });
}

TEST_P(CommunicatorConformance, AMeshOfOneAxisSplitsNothing) {
  ARMILLARY_NEEDS_RANKS(3);
  run(3, [](Communicator& comm) {
    const Mesh mesh(comm, {.cp = 3});
    EXPECT_EQ(&mesh.along(Cp), &comm);
    EXPECT_EQ(&mesh.replicas(), &comm);
    // Rank 0 alone asks: nothing is sent.
    if (comm.rank() == 0) {
      EXPECT_EQ(mesh.along(Dp).world(), 1);
    }
  });
}

TEST_P(CommunicatorConformance, GroupsOfAMeshWorkAtTheSameTime) {
  ARMILLARY_NEEDS_RANKS(4);
  run(4, [](Communicator& comm) {
    const Mesh mesh(comm, {.dp = 2, .cp = 2});
    Communicator& ring = mesh.along(Cp);
    Communicator& sums = mesh.along(Dp);
    for (int step = 0; step < 50; ++step) {
      // Messages of a ring are under way while sums are made across it.
      std::vector<int> out = numbers(1000, 10 * comm.rank() + step);
      std::vector<int> in(1000);
      const Strided in_part = whole(std::span(in));
      const Strided out_part = whole(std::span(out));
      const int peer = 1 - ring.rank();
      // One batch: on strict lanes a receive of its own would hold up the send.
      const std::array<Message, 2> batch{Message{Direction::Receive, peer, 1, {&in_part, 1}},
                                         Message{Direction::Send, peer, 1, {&out_part, 1}}};
      const std::vector<Request> requests = ring.start(batch);
      std::array<double, 3> values{1. * comm.rank(), 2. * step, 3};
      all_reduce_sum(sums, values);
      ring.wait_all(requests);
      const int column = comm.rank() % 2;
      EXPECT_EQ(values, (std::array<double, 3>{2. * column + 2, 4. * step, 6}));
      EXPECT_EQ(in, numbers(1000, 10 * (comm.rank() ^ 1) + step));
    }
  });
}

TEST_P(CommunicatorConformance, RanksOfDifferentMeshesAreToldBoth) {
  ARMILLARY_NEEDS_RANKS(4);
  run(4, [](Communicator& comm) {
    const MeshShape shape =
        comm.rank() == 2 ? MeshShape{.dp = 2, .tp = 2} : MeshShape{.dp = 2, .cp = 2};
    const Mesh mesh(comm, shape);
    EXPECT_EQ(text_of<InvalidArgument>([&] { mesh.along(Dp); }),
              "mesh: rank 0 has pp 1 x dp 2 x cp 2 x tp 1 in the order tp, cp, dp, pp, rank 2 has "
              "pp 1 x dp 2 x cp 1 x tp 2 in the order tp, cp, dp, pp; one shape is required on all "
              "ranks");
    barrier(comm);  // The group is as good as before.
  });
}

TEST_P(CommunicatorConformance, AThousandSplitsLeakNothing) {
  ARMILLARY_NEEDS_RANKS(4);
  if (GetParam().strict_lanes) GTEST_SKIP() << "the stand-in of NCCL keeps what has ended";
  run(4, [](Communicator& comm) {
    std::int64_t threads = 0;
    std::int64_t memory = 0;
    for (int mesh = 0; mesh < (sanitizer_samples() ? 150 : 500); ++mesh) {
      const Mesh groups(comm, {.dp = 2, .cp = 2});
      const std::int64_t mine = comm.rank();
      EXPECT_EQ(ranks_of(groups.along(Cp), mine)[groups.index(Cp)], mine);
      EXPECT_EQ(ranks_of(groups.along(Dp), mine)[groups.index(Dp)], mine);
      if (mesh != 100) continue;
      barrier(comm);
      threads = status_of_this_process("Threads");
      memory = status_of_this_process("VmRSS");
    }
    EXPECT_LE(status_of_this_process("Threads"), threads);
    // Freed memory of sanitizers comes back late.
    if (!kSanitized) {
      EXPECT_LE(status_of_this_process("VmRSS"), memory + 2048) << "KiB";
    }
    barrier(comm);
  });
}

}  // namespace
}  // namespace armillary::comm
