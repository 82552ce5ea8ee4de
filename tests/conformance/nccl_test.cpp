// The conformance suite on NCCL, with its memory on the devices: on the fake devices of
// comm/nccl/testing, under which the engine's own code runs, and on the GPUs of this machine, if
// there are any, a thread for each. Failures of NCCL are tested with the fake devices alone.
#include "armillary/comm/nccl.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/comm/nccl/run.h"
#include "armillary/comm/nccl/testing/fake_nccl.h"
#include "armillary/core/error.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/messages.h"
#include "tests/conformance/on_device.h"

namespace armillary::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using MakeApi = std::function<std::unique_ptr<NcclApi>(int rank)>;

constexpr int kLanes = 5;  // As many as the suite uses.

/// Runs the body on ranks that are threads, each with a device and an api of its own.
void run_on_devices(int world, const MakeApi& make_api, const Body& body,
                    const NcclOptions& options = {.lanes = kLanes}) {
  run_ranks(world, [&](Communicator& host) {
    const std::unique_ptr<NcclApi> api = make_api(host.rank());
    const auto with_device_memory = [&](Communicator& comm) {
      DeviceCopies copies(*api, host.rank() % api->devices());
      body(*on_device(comm, copies));
    };
    run_on_nccl(api.get(), "", host, with_device_memory, options);
  });
}

/// The same on a fake device each, which must be left clean.
void run_on_fake(int world, const FakeGpuOptions& options, const Body& body) {
  FakeGpus gpus(world, options);
  try {
    run_on_devices(
        world, [&](int rank) { return gpus.api(rank); }, body);
  } catch (...) {
    EXPECT_THAT(gpus.broken_rules(), IsEmpty());
    EXPECT_EQ(gpus.comms_alive(), 0);
    EXPECT_EQ(gpus.bytes_allocated(), 0);
    throw;
  }
  EXPECT_THAT(gpus.broken_rules(), IsEmpty());
  EXPECT_EQ(gpus.comms_alive(), 0);
  EXPECT_EQ(gpus.comms_aborted(), 0);
  EXPECT_EQ(gpus.bytes_allocated(), 0);
}

Launcher launcher(const std::string& name, std::function<void(int, const Body&)> run) {
  return {
      .name = name, .run = std::move(run), .sees_sizes = false, .start_s = 2, .strict_lanes = true};
}

Launcher fake(std::uint64_t seed) {
  return launcher("fake" + std::to_string(seed), [seed](int world, const Body& body) {
    run_on_fake(world, {.seed = seed}, body);
  });
}

/// A group made by split(), of all but the last rank of the first group.
Launcher fake_split() {
  return launcher("fake_split", [](int world, const Body& body) {
    run_on_fake(world + 1, {}, [&](Communicator& comm) {
      const auto group = comm.split(comm.rank() < world ? 0 : -1, 0);
      if (group) body(*group);
    });
  });
}

std::vector<Launcher> nccl_launchers() {
  std::vector<Launcher> all = {fake(1), fake(2), fake_split()};
  if (!nccl_missing().empty()) return all;
  all.push_back(launcher("gpu", [](int world, const Body& body) {
    run_on_devices(world, [](int) { return load_nccl(); }, body,
                   {.lanes = kLanes, .blocks_per_lane = 2});
  }));
  // Since NCCL 2.30 ranks may share a GPU if the environment says so.
  const char* const shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (!shared || std::string(shared) != "1") all.back().most_ranks = load_nccl()->devices();
  all.back().start_s = 20;
  return all;
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformance, testing::ValuesIn(nccl_launchers()),
                         testing::PrintToStringParamName());

TEST(NcclOfThisMachine, RunsOrSaysWhyNot) {
  const std::string missing = nccl_missing();
  if (!missing.empty()) {
    std::printf("[SKIP] no CUDA device: %s\n", missing.c_str());
    EXPECT_THAT(
        [] { run_ranks(2, [](Communicator& host) { run_on_nccl(host, [](Communicator&) {}); }); },
        testing::ThrowsMessage<InvalidArgument>(HasSubstr(missing.substr(0, 60))));
    GTEST_SKIP() << missing;
  }
  run_ranks(1, [](Communicator& host) { run_on_nccl(host, [](Communicator& c) { barrier(c); }); });
}

/// Runs the body on three ranks, of which one is expected to fail with `text`, and returns the
/// number of communicators that were aborted.
int aborted_after(const FakeGpuOptions& options, const Body& body, const std::string& text) {
  FakeGpus gpus(3, options);
  EXPECT_THAT(
      [&] {
        run_on_devices(
            3, [&](int rank) { return gpus.api(rank); }, body);
      },
      testing::ThrowsMessage<CommError>(testing::ContainsRegex(text)));
  EXPECT_THAT(gpus.broken_rules(), IsEmpty());
  EXPECT_EQ(gpus.comms_alive(), 0);
  EXPECT_EQ(gpus.bytes_allocated(), 0);
  return gpus.comms_aborted();
}

TEST(NcclFailures, APeerThatNeverComesEndsAllLanesOfAllRanks) {
  const auto begin = Clock::now();
  const auto body = [](Communicator& comm) {
    std::vector<int> values(1000);
    // Ranks 0 and 1 wait for rank 2, which sends nothing, on two lanes.
    comm.set_timeout(comm.rank() == 0 ? 0.2 : 60);
    if (comm.rank() == 2) return;
    const Request other = receive(comm, 2, 3, values);
    comm.wait(receive(comm, 2, 1, values));
  };
  EXPECT_EQ(aborted_after({}, body,
                          "rank 0 failed: wait: rank 0 receives 4000 bytes from rank 2 on lane 1 "
                          "not done after [0-9.]+ s"),
            3 * kLanes);
  EXPECT_LT(seconds_since(begin), 30);
}

TEST(NcclFailures, AnErrorOfNcclEndsAllRanks) {
  const auto body = [](Communicator& comm) {
    std::vector<int> values(1000);
    const Strided part = whole(std::span(values));
    const int P = comm.world();
    for (int repeat = 0; repeat < 100; ++repeat) {
      const std::vector<Message> batch = {
          {Direction::Send, (comm.rank() + 1) % P, 1, {&part, 1}},
          {Direction::Receive, (comm.rank() + P - 1) % P, 1, {&part, 1}}};
      comm.wait_all(comm.start(batch));
    }
  };
  EXPECT_EQ(aborted_after({.failing_rank = 1, .groups_until_failure = 20}, body,
                          "rank 1 failed: nccl: a communicator: the network broke"),
            3 * kLanes);
}

TEST(NcclFailures, AnErrorInsideABatchEndsAllRanks) {
  const auto body = [](Communicator& comm) {
    std::vector<int> values(1000);
    for (int repeat = 0; repeat < 100 && comm.rank() < 2; ++repeat) {
      comm.wait(comm.rank() == 0 ? send(comm, 1, 1, values) : receive(comm, 0, 1, values));
    }
  };
  EXPECT_EQ(aborted_after({.failing_sender = 0, .sends_until_failure = 7}, body,
                          "rank 0 failed: nccl: ncclSend: the cable is cut"),
            3 * kLanes);
}

TEST(NcclFailures, AnErrorWhileTheGroupIsMadeEndsAllRanks) {
  aborted_after(
      {.failing_rank = 2}, [](Communicator&) { FAIL() << "no group"; },
      "rank 2 failed: nccl: a communicator: the network broke");
}

TEST(NcclFailures, AThrowingRankEndsTheKernelsOfItsPeers) {
  FakeGpus gpus(3, {});
  const auto body = [](Communicator& comm) {
    std::vector<int> values(1000);
    const auto part = comm.split(0, 0);
    if (comm.rank() == 1) throw std::out_of_range("enough");
    part->wait(receive(*part, 1, 2, values));
  };
  EXPECT_THROW(run_on_devices(
                   3, [&](int rank) { return gpus.api(rank); }, body),
               std::out_of_range);
  EXPECT_THAT(gpus.broken_rules(), IsEmpty());
  EXPECT_EQ(gpus.comms_alive(), 0);
}

// Nobody notices it, as nccl.h says: here it hangs until the deadline.
TEST(NcclFailures, SizesThatDifferEndByTheDeadline) {
  const auto body = [](Communicator& comm) {
    comm.set_timeout(0.2);
    std::vector<int> values(comm.rank() == 0 ? 3 : 5);
    if (comm.rank() == 0) comm.wait(send(comm, 1, 2, values));
    if (comm.rank() == 1) comm.wait(receive(comm, 0, 2, values));
  };
  EXPECT_EQ(aborted_after({}, body, "on lane 2 not done after [0-9.]+ s"), 3 * kLanes);
}

TEST(NcclMessages, TakeHostMemoryBesideThatOfTheDevice) {
  FakeGpus gpus(2, {});
  run_ranks(2, [&](Communicator& host) {
    const auto api = gpus.api(host.rank());
    const auto body = [&](Communicator& comm) {
      DeviceCopies copies(*api, comm.rank());
      std::vector<int> values = numbers(100, comm.rank());
      std::vector<int> of_device(100);
      std::vector<int> of_host(100);
      const Strided mine = whole(std::span(values));
      const Strided copy = copies.allocate(mine);
      const Strided received = copies.allocate(mine);
      copies.copy(mine, copy);
      const Strided to_host = whole(std::span(of_host));
      const int peer = 1 - comm.rank();
      const std::vector<Message> batch = {{Direction::Send, peer, 1, {&mine, 1}},
                                          {Direction::Send, peer, 1, {&copy, 1}},
                                          {Direction::Receive, peer, 1, {&received, 1}},
                                          {Direction::Receive, peer, 1, {&to_host, 1}}};
      const std::vector<Request> requests = comm.start(batch);
      comm.wait_any(requests);
      comm.wait_all(requests);
      copies.copy(received, whole(std::span(of_device)));
      EXPECT_EQ(of_device, numbers(100, peer));
      EXPECT_EQ(of_host, numbers(100, peer));

      const std::vector<Strided> mixed = {mine, copy};
      EXPECT_THAT([&] { comm.isend(peer, 0, mixed); },
                  testing::ThrowsMessage<InvalidArgument>(
                      "nccl: a message with 1 part in host memory and 1 on the device; one place "
                      "is required"));
      const Strided elsewhere = {mine.data, 1, 4, 4, peer};
      EXPECT_THAT(
          [&] {
            comm.isend(peer, 0, {&elsewhere, 1});
          },
          testing::ThrowsMessage<InvalidArgument>(
              fmt::format("isend: memory of device {}; this engine takes that of the host "
                          "and of device {}",
                          peer, comm.rank())));
      copies.release(copy);
      copies.release(received);
    };
    run_on_nccl(api.get(), "", host, body, {.lanes = 2});
  });
  EXPECT_THAT(gpus.broken_rules(), IsEmpty());
}

// Rank 0 would wait for messages of the host, rank 1 for NCCL.
TEST(NcclMessages, CollectivesThatDifferInPlaceEndEveryRank) {
  FakeGpus gpus(2, {});
  std::vector<std::vector<float>> memory(2, std::vector<float>(100, 1));
  EXPECT_THROW(
      run_ranks(
          2,
          [&](Communicator& host) {
            const auto api = gpus.api(host.rank());
            const auto body = [&](Communicator& comm) {
              DeviceCopies copies(*api, comm.rank());
              const std::span<float> values = memory[comm.rank()];
              const Strided there = copies.allocate(whole(values));
              const Array of_host = array(values);
              const Array of_device = {there.data, of_host.count, ElementType::Fp32, there.device};
              EXPECT_EQ(text_of<InvalidArgument>([&] { all_to_all(comm, of_host, of_device); }),
                        fmt::format("all_to_all: memory of devices -1 and {} (-1 is the "
                                    "host); one is required",
                                    comm.rank()));
              barrier(comm);  // Nothing was started.
              EXPECT_THAT(text_of<CommError>(
                              [&] { all_reduce(comm, comm.rank() == 0 ? of_host : of_device); }),
                          HasSubstr("failed: rank 0 calls all_reduce_sum of 100 fp32, rank 1 "
                                    "calls all_reduce_sum of 100 fp32 on a device; the same "
                                    "call is required on all ranks"));
              copies.release(there);
            };
            run_on_nccl(api.get(), "", host, body, {.lanes = 2});
          }),
      CommError);
  EXPECT_THAT(gpus.broken_rules(), IsEmpty());
}

// Rank 1 begins the all-reduce of host memory when it has received all batches of rank 0. Most of
// these are still queued on rank 0 when that waits in the all-reduce.
TEST(NcclMessages, GoOnWhileARankWaitsForHostMemory) {
  FakeGpus gpus(2, {.most_delay_us = 2000});
  run_ranks(2, [&](Communicator& host) {
    const auto api = gpus.api(host.rank());
    const auto body = [&](Communicator& comm) {
      comm.set_timeout(5);
      DeviceCopies copies(*api, comm.rank());
      std::vector<int> values(100, comm.rank());
      const Strided part = whole(std::span(values));
      const Strided there = copies.allocate(part);
      copies.copy(part, there);
      std::vector<Request> requests(10);
      for (Request& request : requests) {
        request = comm.rank() == 0 ? comm.isend(1, 2, {&there, 1}) : comm.irecv(0, 2, {&there, 1});
      }
      if (comm.rank() == 1) comm.wait_all(requests);
      std::vector<double> one = {1};
      all_reduce_sum(comm, one);
      comm.wait_all(requests);
      copies.copy(there, part);
      EXPECT_EQ(values, std::vector<int>(100, 0));
      copies.release(there);
    };
    run_on_nccl(api.get(), "", host, body, {.lanes = 3});
  });
  EXPECT_THAT(gpus.broken_rules(), IsEmpty());
}

TEST(NcclOptionsTest, AreRefusedOnEveryRank) {
  FakeGpus gpus(2, {});
  const auto refused = [&](const std::function<NcclOptions(int)>& options,
                           const std::string& text) {
    run_ranks(2, [&](Communicator& host) {
      const auto api = gpus.api(host.rank());
      EXPECT_THAT(
          [&] {
            run_on_nccl(
                api.get(), "", host, [](Communicator&) {}, options(host.rank()));
          },
          testing::ThrowsMessage<InvalidArgument>(text));
    });
  };
  refused([](int rank) { return NcclOptions{.lanes = rank == 0 ? 3 : 0}; },
          "run_on_nccl: 0 lanes; at least 1 is required (rank 1)");
  refused([](int rank) { return NcclOptions{.lanes = 3 + rank}; },
          "run_on_nccl: rank 0 has 3 lanes of 8 blocks, rank 1 has 4 of 8; equal options are "
          "required");
  refused([](int rank) { return NcclOptions{.device = rank == 0 ? 7 : 1}; },
          "run_on_nccl: device 7 of 2; one of them, or -1, is required (rank 0)");
  refused([](int) { return NcclOptions{.blocks_per_lane = 65}; },
          "run_on_nccl: 65 blocks per lane; 1 to 64 are required (rank 0)");
}

}  // namespace
}  // namespace armillary::comm
