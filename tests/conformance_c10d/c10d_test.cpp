// The conformance suite on processes of Gloo: in groups of their own, in process groups that were
// registered by name, and in groups made by split(). Tests of other worlds than all processes run
// on the first of them, while the others wait for the outcome.
#include "armillary/comm/c10d.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <vector>

#include "armillary/comm/c10d/connect.h"
#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/messages.h"
#include "tests/conformance_c10d/processes.h"

namespace armillary::comm {
namespace {

using Run = std::function<void(const C10dRendezvous& place)>;

/// Calls `run` on the first `world` processes, with a place in a new group. Throws CommError also
/// on the others, if it threw.
void on_processes(int world, const Run& run) {
  Communicator& all = *all_processes();
  // Rank 0 chooses the port. Whoever uses the socket closes it.
  std::int64_t port = 0;
  C10dRendezvous place{.rank = all.rank(), .world = world};
  if (all.rank() == 0) {
    ListeningSocket socket;
    port = socket.port();
    place.listen_fd = socket.release();
  }
  broadcast(all, std::as_writable_bytes(std::span(&port, 1)), 0);
  place.port = static_cast<int>(port);

  std::exception_ptr error;
  try {
    if (all.rank() < world) run(place);
  } catch (...) {
    error = std::current_exception();
  }
  std::int64_t failed = error ? 1 : 0;
  std::vector<std::int64_t> outcomes(all.world());
  all_gather(all, array(std::span(&failed, 1)), array(std::span(outcomes)));
  if (error) std::rethrow_exception(error);
  if (std::ranges::count(outcomes, 1) > 0) fail<CommError>("a group of other processes failed");
}

/// Processes of this run, as the command line says: tests are listed before the group is there.
int processes() {
  std::ifstream file("/proc/self/cmdline");
  for (std::string argument; std::getline(file, argument, '\0');) {
    if (argument.starts_with("--c10d=")) return place_of(argument.substr(7)).world;
  }
  return 1;
}

Launcher c10d_ranks() {
  const auto run = [](int world, const Body& body) {
    on_processes(world, [&](const C10dRendezvous& place) { run_c10d_rank(body, place); });
  };
  return {
      .name = "own", .run = run, .most_ranks = processes(), .fewer_run_too = true, .start_s = 4};
}

/// A process group of PyTorch, made as init_process_group() does and known by its name.
class NamedGroup {
 public:
  explicit NamedGroup(const C10dRendezvous& place, const std::string& prefix = "named/") {
    const GlooStore store = open_store(place, 30);
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store, place.rank, place.world);
    group_->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                       make_gloo(store, place.rank, place.world,
                                 {.prefix = prefix, .timeout = std::chrono::seconds(120)}));
    group_->setGroupName("named");
    c10d::register_process_group("named", group_);
  }
  ~NamedGroup() { c10d::unregister_process_group("named"); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

Launcher process_group() {
  const auto run = [](int world, const Body& body) {
    on_processes(world, [&](const C10dRendezvous& place) {
      const NamedGroup group(place);
      run_on_process_group("named", body);
    });
  };
  return {
      .name = "named", .run = run, .most_ranks = processes(), .fewer_run_too = true, .start_s = 4};
}

/// A group made by split(), of all but the last rank of the first group.
Launcher c10d_split() {
  const auto run = [](int world, const Body& body) {
    const auto on_part = [&](Communicator& comm) {
      const auto group = comm.split(comm.rank() < world ? 0 : -1, 0);
      if (group) body(*group);
    };
    on_processes(world + 1, [&](const C10dRendezvous& place) { run_c10d_rank(on_part, place); });
  };
  return {.name = "split",
          .run = run,
          .lane_0 = C10dOptions().lanes,
          .most_ranks = processes() - 1,
          .fewer_run_too = true,
          .start_s = 4};
}

std::vector<Launcher> c10d_launchers() {
  std::vector<Launcher> all = {c10d_ranks(), process_group()};
  if (processes() > 2) all.push_back(c10d_split());
  return all;
}

INSTANTIATE_TEST_SUITE_P(C10d, CommunicatorConformance, testing::ValuesIn(c10d_launchers()),
                         testing::PrintToStringParamName());

const Body kNothing = [](Communicator&) {};

/// Expects every process to throw an E that contains the regular expression `text` in a group that
/// `run` makes.
template <class E>
void expect_on_all(const Run& run, const std::string& text) {
  Communicator& all = *all_processes();
  const auto expect = [&](const C10dRendezvous& place) {
    EXPECT_THAT(text_of<E>([&] { run(place); }), testing::ContainsRegex(text));
  };
  on_processes(all.world(), expect);
}

TEST(C10dProcesses, RefuseLanesThatDiffer) {
  const int last = all_processes()->world() - 1;
  expect_on_all<InvalidArgument>(
      [&](const C10dRendezvous& place) {
        run_c10d_rank(kNothing, place, {.lanes = place.rank == last ? 3 : 4});
      },
      fmt::format(
          "run_c10d_rank: rank [0-2] has a world of {0} and 4 lanes, rank {1} has a world of {0} "
          "and 3 lanes; equal options are required",
          last + 1, last));
}

TEST(C10dProcesses, RefuseWorldsThatDiffer) {
  const int last = all_processes()->world() - 1;
  expect_on_all<InvalidArgument>(
      [&](C10dRendezvous place) {
        if (place.rank == last) place.world += 1;
        run_c10d_rank(kNothing, place);
      },
      fmt::format(
          "run_c10d_rank: rank [0-2] has a world of {0} and 8 lanes, rank {1} has a world of {2} "
          "and 8 lanes; equal options are required",
          last + 1, last, last + 2));
}

TEST(C10dProcesses, RefuseTwoOfOneRank) {
  const int last = all_processes()->world() - 1;
  if (last < 2) GTEST_SKIP() << "needs 3 ranks";
  expect_on_all<InvalidArgument>(
      [&](C10dRendezvous place) {
        if (place.rank == last) place.rank = 1;
        run_c10d_rank(kNothing, place);
      },
      "run_c10d_rank: two processes have rank 1; each rank once is required");
}

TEST(C10dProcesses, TellWhoDidNotCome) {
  const int last = all_processes()->world() - 1;
  expect_on_all<CommError>(
      [&](const C10dRendezvous& place) {
        const std::string text = fmt::format("rank {} of {} did not come", last, last + 1);
        if (place.rank == last) throw CommError(text);
        run_c10d_rank(kNothing, place, {.timeout_s = 2});
      },
      fmt::format("rank {} of {} did not come", last, last + 1));
}

TEST(C10dProcesses, RefuseLanesThatDifferInANamedGroup) {
  expect_on_all<InvalidArgument>(
      [&](const C10dRendezvous& place) {
        const NamedGroup group(place);
        run_on_process_group("named", kNothing, {.lanes = place.rank == 0 ? 5 : 6});
      },
      "run_on_process_group: rank [0-2] has a world of ");
}

// As under torchrun, whose agent has the store.
TEST(C10dProcesses, MeetInAStoreThatExists) {
  on_processes(all_processes()->world(), [&](C10dRendezvous place) {
    const GlooStore store = open_store(place, 30);
    place.store_exists = true;
    for (const std::string attempt : {"attempt_0/", "attempt_1/"}) {
      place.key_prefix = attempt;
      run_c10d_rank(
          [&](Communicator& comm) {
            std::vector<double> one = {1};
            all_reduce_sum(comm, one);
            EXPECT_EQ(one[0], comm.world());
          },
          place);
    }
  });
}

TEST(C10dProcesses, UseANamedGroupAgainAndAgain) {
  on_processes(all_processes()->world(), [&](const C10dRendezvous& place) {
    const NamedGroup group(place);
    for (int round = 0; round < 5; ++round) {
      run_on_process_group("named", [&](Communicator& comm) {
        std::vector<double> values(1000, round);
        all_reduce_sum(comm, values);
        EXPECT_EQ(values, std::vector<double>(1000, round * comm.world()));
      });
    }
  });
}

TEST(C10dProcesses, MeetInANamedGroupAfterOneCameTooLate) {
  const int last = all_processes()->world() - 1;
  on_processes(last + 1, [&](const C10dRendezvous& place) {
    const NamedGroup group(place);
    for (int round = 0; round < 2; ++round) {
      if (place.rank != last) {
        EXPECT_THAT(
            text_of<CommError>([&] { run_on_process_group("named", kNothing, {.timeout_s = 1}); }),
            testing::HasSubstr(fmt::format("rank {} of {} did not come", last, last + 1)));
      }
      barrier(*all_processes());
      run_on_process_group("named", [&](Communicator& comm) {
        std::vector<double> one = {1};
        all_reduce_sum(comm, one);
        EXPECT_EQ(one[0], last + 1);
      });
    }
  });
}

TEST(C10dOptionsTest, OutOfRangeAreRefused) {
  const auto refused = [](const C10dRendezvous& place, const C10dOptions& options,
                          const std::string& text) {
    EXPECT_THAT([&] { run_c10d_rank(kNothing, place, options); },
                testing::ThrowsMessage<InvalidArgument>("run_c10d_rank: " + text));
  };
  refused({}, {.lanes = 0}, "0 lanes; 1 to 16384 are required");
  refused({}, {.lanes = 16385}, "16385 lanes; 1 to 16384 are required");
  refused({}, {.timeout_s = 0}, "timeout 0 s; more than 0 and at most 1e9 s is required");
  refused({.rank = 2, .world = 2}, {}, "rank 2 of world 2; a rank in [0, world) is required");
  refused({.rank = -1, .world = 2}, {}, "rank -1 of world 2; a rank in [0, world) is required");
  refused({.world = 0}, {}, "rank 0 of world 0; a rank in [0, world) is required");
  refused({.port = 0}, {}, "port 0; 1 to 65535 is required");
}

TEST(C10dOptionsTest, AnUnknownInterfaceIsRefused) {
  ListeningSocket socket;
  const C10dRendezvous place{.port = socket.port(), .listen_fd = socket.release()};
  EXPECT_THAT([&] { run_c10d_rank(kNothing, place, {.interface = "wire7"}); },
              testing::ThrowsMessage<CommError>(testing::HasSubstr(
                  "rank 0 cannot connect to the other ranks over interface wire7: ")));
}

void expect_no_store(int port, const std::string& text) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(
      [&] { run_c10d_rank(kNothing, {.rank = 1, .world = 2, .port = port}, {.timeout_s = 0.5}); },
      testing::ThrowsMessage<CommError>(testing::ContainsRegex(text)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(C10dOptionsTest, AStoreThatNeverComesIsAnError) {
  // PyTorch tries again after a second, so either limit may be the first.
  expect_no_store(ListeningSocket().port(),
                  "run_c10d_rank: rank 1 (does not reach the store at 127.0.0.1:[0-9]+ within 0.5 "
                  "s: |has no answer of the store)");
}

TEST(C10dOptionsTest, AStoreThatNeverAnswersIsAnError) {
  const ListeningSocket socket;  // Takes connections, and is silent.
  expect_no_store(socket.port(),
                  "run_c10d_rank: rank 1 has no answer of the store, or of another rank, within "
                  "1.5 s");
}

TEST(C10dOptionsTest, APortInUseIsAnError) {
  const ListeningSocket socket;
  EXPECT_THAT([&] { run_c10d_rank(kNothing, {.port = socket.port()}, {.timeout_s = 0.5}); },
              testing::ThrowsMessage<CommError>(testing::HasSubstr(fmt::format(
                  "run_c10d_rank: rank 0 cannot open the store at 127.0.0.1:{}", socket.port()))));
}

TEST(C10dOptionsTest, AWorldOfOneCommunicatesNothing) {
  ListeningSocket socket;
  const C10dRendezvous place{.port = socket.port(), .listen_fd = socket.release()};
  int ran = 0;
  run_c10d_rank(
      [&](Communicator& comm) {
        barrier(comm);
        ran = comm.world();
      },
      place);
  EXPECT_EQ(ran, 1);
}

TEST(C10dOptionsTest, AWorldOfOneThatFailsWaitsForNobody) {
  const auto begin = std::chrono::steady_clock::now();
  ListeningSocket socket;
  const C10dRendezvous place{.port = socket.port(), .listen_fd = socket.release()};
  EXPECT_THROW(run_c10d_rank([](Communicator& comm) { comm.abort("out of paper"); }, place,
                             {.timeout_s = 90}),
               CommError);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(C10dOptionsTest, UnknownAndDestroyedGroupsAreRefused) {
  const auto refused = [](const std::string& text) {
    EXPECT_THAT([&] { run_on_process_group("named", kNothing); },
                testing::ThrowsMessage<InvalidArgument>("run_on_process_group: " + text));
  };
  const std::string unknown =
      "no process group is named 'named'; one that was made and not destroyed is required";
  refused(unknown);
  {
    ListeningSocket socket;
    const NamedGroup group({.port = socket.port(), .listen_fd = socket.release()});
    run_on_process_group("named", kNothing);
  }
  refused(unknown);
  const auto bare = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  c10d::register_process_group("named", bare);
  refused("process group 'named' has nothing for CPU tensors; gloo is required");
  c10d::unregister_process_group("named");
}

}  // namespace
}  // namespace armillary::comm
