// conformance.cpp: the contract of communicator.h as tests: order, lanes, deadlines, failure. Every
// engine runs them on its own ranks; Launcher (conformance.h) has its properties.
#include "tests/conformance/conformance.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <iterator>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "armillary/core/error.h"
#include "tests/conformance/messages.h"
#include "tests/seed.h"

namespace armillary::comm {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

/// Seconds, on a busy machine: less than half of the timeout of waits that have no other.
constexpr double kBusyS = 15;

TEST_P(CommunicatorConformance, TellsRankAndWorld) {
  for (const int world : worlds({1, 2, 5})) {
    run(world, [&](Communicator& comm) {
      EXPECT_EQ(comm.world(), world);
      std::vector<int> self = {comm.rank()};
      if (comm.rank() > 0) return comm.wait(send(comm, 0, 0, self));
      for (int peer = 1; peer < world; ++peer) {
        std::vector<int> other(1);
        comm.wait(receive(comm, peer, 0, other));
        EXPECT_EQ(other[0], peer);
      }
    });
  }
}

TEST_P(CommunicatorConformance, KeepsOrderPerPairAndLane) {
  // A batch that is strictly ordered takes milliseconds in a world of 5.
  const int messages = !GetParam().strict_lanes ? 200 : test_all() ? 50 : 12;
  constexpr int kLanes = 3;
  run(at_most(5), [&](Communicator& comm) {
    const int P = comm.world();
    // value = ((sender * 5 + receiver) * lanes + lane) * messages + index
    const auto value = [&](int sender, int receiver, int lane, int index) {
      return ((sender * 5 + receiver) * kLanes + lane) * messages + index;
    };
    // Lists that do not move what is in them when they grow.
    std::deque<std::vector<int>> outbox;
    std::deque<std::vector<int>> inbox;
    std::deque<Strided> parts;
    std::vector<int> expected;
    std::vector<Request> requests;
    for (int index = 0; index < messages; ++index) {
      for (int lane = 0; lane < kLanes; ++lane) {
        std::vector<Message> batch;
        for (int step = 1; step < P; ++step) {
          const int to = (comm.rank() + step) % P;
          const int from = (comm.rank() + P - step) % P;
          outbox.push_back({value(comm.rank(), to, lane, index)});
          parts.push_back(whole(std::span(outbox.back())));
          batch.push_back({Direction::Send, to, lane, {&parts.back(), 1}});
          inbox.push_back({-1});
          expected.push_back(value(from, comm.rank(), lane, index));
          parts.push_back(whole(std::span(inbox.back())));
          batch.push_back({Direction::Receive, from, lane, {&parts.back(), 1}});
        }
        std::ranges::move(start_each(comm, batch), std::back_inserter(requests));
      }
    }
    comm.wait_all(requests);
    for (std::size_t i = 0; i < inbox.size(); ++i) {
      ASSERT_EQ(inbox[i][0], expected[i]) << "rank " << comm.rank() << ", message " << i;
    }
  });
}

TEST_P(CommunicatorConformance, KeepsOrderWhenSizesDiffer) {
  ARMILLARY_NEEDS_RANKS(2);
  run(2, [](Communicator& comm) {
    const std::vector<int> counts = {100000, 1, 0, 70000, 3, 0, 1, 50000};
    std::vector<std::vector<int>> values;
    std::vector<Request> requests;
    values.reserve(counts.size());
    requests.reserve(counts.size());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      values.push_back(comm.rank() == 0 ? numbers(counts[i], 1000 * int(i))
                                        : std::vector<int>(counts[i], -1));
    }
    for (auto& v : values) {
      requests.push_back(comm.rank() == 0 ? send(comm, 1, 0, v) : receive(comm, 0, 0, v));
    }
    comm.wait_all(requests);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      ASSERT_EQ(values[i], numbers(counts[i], 1000 * int(i))) << "message " << i;
    }
  });
}

TEST_P(CommunicatorConformance, LanesDoNotWaitForEachOther) {
  ARMILLARY_NEEDS_RANKS(2);
  run(2, [](Communicator& comm) {
    std::vector<int> first = {comm.rank()};
    std::vector<int> second = {comm.rank()};
    if (comm.rank() == 0) {
      // The message of lane 1 is sent only after that of lane 2 is done.
      const Request late = receive(comm, 1, 1, first);
      comm.wait(send(comm, 1, 2, second));
      comm.wait(late);
      EXPECT_EQ(first[0], 1);
    } else {
      comm.wait(receive(comm, 0, 2, second));
      EXPECT_EQ(second[0], 0);
      comm.wait(send(comm, 0, 1, first));
    }
  });
}

// Twenty lanes in four groups are more than the hardware queues that a GPU has by default.
TEST_P(CommunicatorConformance, ManyLanesDoNotWaitForEachOther) {
  ARMILLARY_NEEDS_RANKS(2);
  run(2, [](Communicator& comm) {
    constexpr int kLanes = 5;
    std::vector<std::unique_ptr<Communicator>> groups(4);
    for (auto& group : groups) group = comm.split(0, 0);
    std::vector<std::vector<int>> values(std::size_t{4} * kLanes);
    for (int i = 0; i < 4 * kLanes; ++i) values[i] = {comm.rank() == 0 ? -1 : i};
    // The receives of all lanes wait for messages that come in the opposite order.
    std::vector<Request> requests;
    for (int i = 0; i < 4 * kLanes && comm.rank() == 0; ++i) {
      requests.push_back(receive(*groups[i / kLanes], 1, i % kLanes, values[i]));
    }
    for (int i = 4 * kLanes; i-- > 0 && comm.rank() == 1;) {
      Communicator& group = *groups[i / kLanes];
      group.wait(send(group, 0, i % kLanes, values[i]));
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      groups[i / kLanes]->wait(requests[i]);
      EXPECT_EQ(values[i][0], i);
    }
  });
}

TEST_P(CommunicatorConformance, ZeroBytesMatchInOrder) {
  ARMILLARY_NEEDS_RANKS(2);
  run(2, [](Communicator& comm) {
    std::vector<int> values = comm.rank() == 0 ? numbers(3, 7) : numbers(3, 0);
    const Strided some = whole(std::span(values));
    const Strided no_rows = {some.data, 0, 4, 4};
    const Direction direction = comm.rank() == 0 ? Direction::Send : Direction::Receive;
    const int peer = 1 - comm.rank();
    const std::vector<Message> batch = {{direction, peer, 0, {}},
                                        {direction, peer, 0, {&some, 1}},
                                        {direction, peer, 0, {&no_rows, 1}}};
    const std::vector<Request> requests = comm.start(batch);
    ASSERT_EQ(requests.size(), 3u);
    comm.wait_all(requests);
    EXPECT_EQ(requests[0]->bytes(), 0);
    EXPECT_EQ(requests[1]->bytes(), 12);
    EXPECT_EQ(requests[2]->bytes(), 0);
    EXPECT_EQ(values, numbers(3, 7));
  });
}

TEST_P(CommunicatorConformance, ZeroBytesWaitForTheirPeer) {
  ARMILLARY_NEEDS_RANKS(2);
  EXPECT_THROW(run(2,
                   [](Communicator& comm) {
                     if (comm.rank() == 1) return;
                     const std::string text =
                         text_of<CommError>([&] { comm.wait(comm.irecv(1, 0, {}), 0.05); });
                     EXPECT_THAT(text, HasSubstr("receives 0 bytes from rank 1"));
                   }),
               CommError);
}

TEST_P(CommunicatorConformance, ShapesMayDiffer) {
  ARMILLARY_NEEDS_RANKS(2);
  run(2, [](Communicator& comm) {
    constexpr int kUntouched = -1;
    std::vector<int> memory(60, kUntouched);
    auto* data = reinterpret_cast<std::byte*>(memory.data());
    if (comm.rank() == 0) {
      std::iota(memory.begin(), memory.end(), 0);
      // 3 rows of 2 ints, 5 apart, then one row of 4 and an empty one: 0 1 5 6 10 11 | 20 21 22 23
      const std::vector<Strided> parts = {{data, 3, 8, 20}, {data + 80, 1, 16, 0}, {data, 5, 0, 4}};
      comm.wait(comm.isend(1, 0, parts));
      return;
    }
    // A row of 3 ints, then 7 rows of 1 int, 3 apart, from 10.
    const std::vector<Strided> parts = {
        {nullptr, 0, 8, 8}, {data, 1, 12, 12}, {data + 40, 7, 4, 12}};
    comm.wait(comm.irecv(0, 0, parts));
    std::vector<int> expected(60, kUntouched);
    expected[0] = 0, expected[1] = 1, expected[2] = 5;
    const std::vector<int> rest = {6, 10, 11, 20, 21, 22, 23};
    for (std::size_t i = 0; i < rest.size(); ++i) expected[10 + 3 * i] = rest[i];
    EXPECT_EQ(memory, expected);
  });
}

TEST_P(CommunicatorConformance, ZeroCopyIsReadInPlaceAndGivenBack) {
  ARMILLARY_NEEDS_RANKS(2);
  for (const bool both : {true, false}) {
    run(2, [&](Communicator& comm) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        const auto values =
            std::make_shared<std::vector<int>>(numbers(1000, comm.rank() == 0 ? repeat : -1));
        const Strided part = whole(std::span(*values));
        const Message message{.direction = comm.rank() == 0 ? Direction::Send : Direction::Receive,
                              .peer = 1 - comm.rank(),
                              .lane = repeat % 2,
                              .parts = {&part, 1},
                              .zero_copy = both || comm.rank() == 1,
                              .owner = values};
        const Request request = comm.start({&message, 1})[0];
        comm.wait(request);
        if (comm.rank() == 0) {
          std::fill(values->begin(), values->end(), -2);  // It may be written again.
          continue;
        }
        const auto where = request->borrowed().empty() ? message.parts : request->borrowed();
        std::vector<int> got(1000);
        const Strided copy = whole(std::span(got));
        copy_strided(where, {&copy, 1});
        comm.give_back(request);
        EXPECT_EQ(got, numbers(1000, repeat));
      }
    });
  }
}

TEST_P(CommunicatorConformance, BothDirectionsAtOnce) {
  ARMILLARY_NEEDS_RANKS(2);
  constexpr int kCount = 300000;
  run(2, [](Communicator& comm) {
    std::vector<int> out = numbers(kCount, comm.rank());
    std::vector<int> in(kCount);
    const int peer = 1 - comm.rank();
    const Strided out_part = whole(std::span(out));
    const Strided in_part = whole(std::span(in));
    const std::vector<Message> batch = {{Direction::Send, peer, 1, {&out_part, 1}},
                                        {Direction::Receive, peer, 1, {&in_part, 1}}};
    comm.wait_all(comm.start(batch));
    EXPECT_EQ(in, numbers(kCount, peer)) << "rank " << comm.rank();
  });
}

TEST_P(CommunicatorConformance, ManyRoundsAroundARing) {
  const int most = GetParam().strict_lanes && !test_all() ? 60 : 300;
  run(at_most(5), [&](Communicator& comm) {
    const int P = comm.world();
    // As many repeats as bring every value home.
    const int repeats = most / P * P;
    const int next = (comm.rank() + 1) % P;
    const int previous = (comm.rank() + P - 1) % P;
    std::vector<int> values = numbers(64, 100 * comm.rank());
    std::vector<int> coming(64);
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const Strided in = whole(std::span(coming));
      const Strided out = whole(std::span(values));
      comm.wait_all(start_each(comm, {{Direction::Receive, previous, repeat % 2, {&in, 1}},
                                      {Direction::Send, next, repeat % 2, {&out, 1}}}));
      std::swap(values, coming);
    }
    EXPECT_EQ(values, numbers(64, 100 * comm.rank())) << "rank " << comm.rank();
  });
}

TEST_P(CommunicatorConformance, WaitAnyTellsWhatIsDone) {
  run(at_most(4), [](Communicator& comm) {
    // Messages that end in another order than they begin have lanes of their own, if they need
    // them.
    const auto lane_of = [&](int peer) { return GetParam().strict_lanes ? peer : 0; };
    if (comm.rank() > 0) {
      std::vector<int> go(1);
      comm.wait(receive(comm, 0, 0, go));
      std::vector<int> value = {comm.rank()};
      comm.wait(send(comm, 0, lane_of(comm.rank()), value));
      return;
    }
    std::vector<std::vector<int>> inbox(4, std::vector<int>(1, -1));
    std::vector<Request> requests(4);  // requests[0] stays empty and is skipped.
    for (int peer = 1; peer < comm.world(); ++peer)
      requests[peer] = receive(comm, peer, lane_of(peer), inbox[peer]);
    for (const int peer : {3, 1, 2}) {
      if (peer >= comm.world()) continue;
      std::vector<int> go(1);
      comm.wait(send(comm, peer, 0, go));
      ASSERT_EQ(comm.wait_any(requests), std::size_t(peer));
      EXPECT_TRUE(comm.is_complete(requests[peer]));
      EXPECT_EQ(inbox[peer][0], peer);
      requests[peer].reset();
    }
    EXPECT_THAT(text_of<InvalidArgument>([&] { comm.wait_any(requests); }),
                HasSubstr("wait_any: 4 requests, all empty"));
    EXPECT_TRUE(comm.is_complete({}));
    comm.wait({});
  });
}

TEST_P(CommunicatorConformance, PollingMakesProgress) {
  ARMILLARY_NEEDS_RANKS(2);
  run(2, [](Communicator& comm) {
    std::vector<int> value = {comm.rank() + 5};
    const Request request = comm.rank() == 0 ? send(comm, 1, 0, value) : receive(comm, 0, 0, value);
    const auto begin = Clock::now();
    while (!comm.is_complete(request) && seconds_since(begin) < 30) std::this_thread::yield();
    EXPECT_TRUE(comm.is_complete(request));
    EXPECT_EQ(value[0], 5);
  });
}

TEST_P(CommunicatorConformance, RefusesWhatCannotBeSent) {
  ARMILLARY_NEEDS_RANKS(2);
  run(2, [](Communicator& comm) {
    std::vector<int> values(4);
    const Strided good = whole(std::span(values));
    const auto refusal = [&](int peer, int lane, Strided part) {
      return text_of<InvalidArgument>([&] { comm.isend(peer, lane, {&part, 1}); });
    };
    const int self = comm.rank();
    EXPECT_THAT(refusal(self, 0, good),
                HasSubstr("isend: peer " + std::to_string(self) +
                          " is this rank itself; another rank is required"));
    EXPECT_THAT(refusal(2, 0, good), HasSubstr("peer 2; a rank in [0, 2) is required"));
    EXPECT_THAT(refusal(-1, 0, good), HasSubstr("peer -1"));
    EXPECT_THAT(refusal(1 - self, -1, good), HasSubstr("lane -1; a lane in [0, "));
    EXPECT_THAT(refusal(1 - self, comm.lanes(), good),
                HasSubstr(fmt::format("lane {0}; a lane in [0, {0}) is required", comm.lanes())));
    EXPECT_THAT(refusal(1 - self, 0, {good.data, -1, 4, 4}), HasSubstr("-1 rows of 4 bytes"));
    EXPECT_THAT(refusal(1 - self, 0, {good.data, 2, 8, 4}), HasSubstr("do not overlap"));
    EXPECT_THAT(refusal(1 - self, 0, {nullptr, 1, 4, 4}), HasSubstr("not null"));
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  comm.irecv(self, 0, {&good, 1});
                }),
                HasSubstr("irecv: peer"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { comm.set_timeout(0); }), HasSubstr("timeout 0 s"));

    // Nothing was started: the next messages match each other.
    std::vector<int> token = {self};
    const Request request = self == 0 ? send(comm, 1, 0, token) : receive(comm, 0, 0, token);
    comm.wait(request);
    EXPECT_EQ(token[0], 0);
  });
}

TEST_P(CommunicatorConformance, MissedDeadlineNamesTheMessage) {
  ARMILLARY_NEEDS_RANKS(3);
  const auto begin = Clock::now();
  EXPECT_THROW(run(3,
                   [this](Communicator& comm) {
                     std::vector<int> values(6);
                     std::string text;
                     if (comm.rank() == 1) {
                       const Request request = receive(comm, 2, 4, values);
                       text = text_of<CommError>([&] { comm.wait(request, 0.1); });
                     } else {  // A rank that would wait longer leaves with the same error.
                       const Request request = receive(comm, 1, 0, values);
                       text = text_of<CommError>([&] { comm.wait(request); });
                     }
                     EXPECT_THAT(text, ContainsRegex(fmt::format(
                                           "rank 1 failed: wait: rank 1 receives 24 bytes from "
                                           "rank 2 on lane {} not done after [0-9.]+ s",
                                           told(4))))
                         << "rank " << comm.rank();
                   }),
               CommError);
  EXPECT_LT(seconds_since(begin), kBusyS + GetParam().start_s);
}

TEST_P(CommunicatorConformance, MissedDeadlineOfWaitAnyNamesAll) {
  ARMILLARY_NEEDS_RANKS(3);
  EXPECT_THROW(run(3,
                   [this](Communicator& comm) {
                     if (comm.rank() > 0) return;
                     std::vector<int> values(2);
                     // A send that no engine ends without its receiver.
                     std::vector<int> many(250000);
                     const std::vector<Request> requests = {
                         receive(comm, 1, 0, values), {}, send(comm, 2, 3, many)};
                     const std::string text =
                         text_of<CommError>([&] { comm.wait_any(requests, 0.05); });
                     EXPECT_THAT(text, HasSubstr(fmt::format(
                                           "rank 0 receives 8 bytes from rank 1 on lane {}, rank 0 "
                                           "sends 1000000 bytes to rank 2 on lane {}",
                                           told(0), told(3))));
                   }),
               CommError);
}

TEST_P(CommunicatorConformance, TheTimeoutOfWaitAllIsForEach) {
  ARMILLARY_NEEDS_RANKS(2);
  const auto begin = Clock::now();
  EXPECT_THROW(
      run(2,
          [this](Communicator& comm) {
            if (comm.rank() == 1) return comm.wait(comm.isend(0, 0, {}));
            const std::vector<Request> requests = {comm.irecv(1, 0, {}), comm.irecv(1, 1, {})};
            const std::string text = text_of<CommError>([&] { comm.wait_all(requests, 0.3); });
            EXPECT_THAT(text,
                        ContainsRegex(fmt::format("rank 0 receives 0 bytes from rank 1 on lane {} "
                                                  "not done after [0-9.]+ s",
                                                  told(1))));
          }),
      CommError);
  EXPECT_LT(seconds_since(begin), kBusyS + GetParam().start_s);
}

// Others wait for rank 0, which waits for rank 1. A busy machine may keep rank 1 from computing for
// as long as they wait, though not each time.
TEST_P(CommunicatorConformance, ARankThatComputesForLongIsWaitedFor) {
  ARMILLARY_NEEDS_RANKS(3);
  const auto body = [](Communicator& comm) {
    std::vector<int> values(1, comm.rank());
    if (comm.rank() == 1) {
      const auto begin = Clock::now();
      while (seconds_since(begin) < 0.6) {
      }
      return comm.wait(send(comm, 0, 0, values));
    }
    comm.wait(receive(comm, comm.rank() == 0 ? 1 : 0, 0, values), 0.2);
    EXPECT_EQ(values[0], 1);
    for (int peer = 2; peer < comm.world() && comm.rank() == 0; ++peer) {
      comm.wait(send(comm, peer, 0, values));
    }
  };
  std::string failed = "never run";
  for (int tries = 0; tries < 4 && !failed.empty(); ++tries) {
    failed.clear();
    try {
      run(at_most(4), body);
    } catch (const CommError& error) {
      failed = error.what();
    }
  }
  EXPECT_EQ(failed, "");
}

TEST_P(CommunicatorConformance, ARankThatSleepsForLongIsNot) {
  ARMILLARY_NEEDS_RANKS(2);
  const auto begin = Clock::now();
  const auto body = [&](Communicator& comm) {
    // A rank that goes on, and waits, would have another text.
    while (comm.rank() == 1 && seconds_since(begin) < 50) {
      comm.throw_if_failed();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::vector<int> values(1);
    const Request request = receive(comm, 1 - comm.rank(), 0, values);
    const std::string text = text_of<CommError>([&] { comm.wait(request, 0.2); });
    EXPECT_THAT(text, HasSubstr("not done after "));
    EXPECT_THAT(text, HasSubstr(" answers, and neither waits for a message nor computes"));
  };
  EXPECT_THROW(run(2, body), CommError);
}

TEST_P(CommunicatorConformance, AbortEndsAllWaits) {
  const auto body = [](Communicator& comm) {
    const auto begin = Clock::now();
    std::vector<int> values(1);
    const int P = comm.world();
    const int next = (comm.rank() + 1) % P;
    std::string text;
    if (comm.rank() == P - 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // Let the others begin to wait.
      comm.abort("disk on fire");
      comm.abort("second thoughts");
      text = text_of<CommError>([&] { comm.isend(next, 0, {}); });
    } else if (comm.rank() == P - 1) {  // Polls.
      text = text_of<CommError>([&] {
        const Request request = receive(comm, P - 2, 0, values);
        while (!comm.is_complete(request)) std::this_thread::yield();
      });
    } else {
      const std::vector<Request> requests = {receive(comm, next, 0, values),
                                             receive(comm, next, 1, values)};
      text = text_of<CommError>([&] { comm.wait_any(requests); });
      comm.abort("too late");
    }
    EXPECT_EQ(text, fmt::format("rank {} failed: disk on fire", P - 2)) << "rank " << comm.rank();
    EXPECT_THROW(receive(comm, next, 0, values), CommError) << "rank " << comm.rank();
    EXPECT_LT(seconds_since(begin), kBusyS) << "rank " << comm.rank();
  };
  EXPECT_THROW(run(at_most(5), body), CommError);
}

TEST_P(CommunicatorConformance, AbortFromAnotherThread) {
  ARMILLARY_NEEDS_RANKS(2);
  EXPECT_THROW(run(2,
                   [](Communicator& comm) {
                     std::thread watchdog;
                     if (comm.rank() == 0) watchdog = std::thread([&] { comm.abort("watchdog"); });
                     const std::string text =
                         text_of<CommError>([&] { comm.wait(comm.irecv(1 - comm.rank(), 0, {})); });
                     EXPECT_EQ(text, "rank 0 failed: watchdog");
                     if (watchdog.joinable()) watchdog.join();
                   }),
               CommError);
}

TEST_P(CommunicatorConformance, DoneStaysDoneAfterFailure) {
  ARMILLARY_NEEDS_RANKS(2);
  EXPECT_THROW(run(2,
                   [](Communicator& comm) {
                     std::vector<int> values(1);
                     const Request request =
                         comm.rank() == 0 ? send(comm, 1, 0, values) : receive(comm, 0, 0, values);
                     comm.wait(request);
                     comm.abort("over");
                     EXPECT_TRUE(comm.is_complete(request));
                     comm.wait(request);
                   }),
               CommError);
}

TEST_P(CommunicatorConformance, SizesThatDifferFailTheGroup) {
  ARMILLARY_NEEDS_RANKS(2);
  if (!GetParam().sees_sizes) GTEST_SKIP() << GetParam().name << " cannot see both sizes";
  EXPECT_THROW(
      run(2,
          [this](Communicator& comm) {
            std::vector<int> values(comm.rank() == 0 ? 3 : 5);
            const std::string text = text_of<CommError>([&] {
              comm.wait(comm.rank() == 0 ? send(comm, 1, 2, values) : receive(comm, 0, 2, values));
              // An engine may tell the receiver only; its failure ends the sender's next wait.
              comm.wait(comm.irecv(1 - comm.rank(), 0, {}));
            });
            EXPECT_THAT(text,
                        HasSubstr(fmt::format("rank 0 sends 12 bytes to rank 1 on lane {}, which "
                                              "receives 20 bytes; equal sizes are required",
                                              told(2))));
          }),
      CommError);
}

TEST_P(CommunicatorConformance, MemoryMayGoWhenTheRankUnwinds) {
  ARMILLARY_NEEDS_RANKS(2);
  // Requests die before their memory, which must not be touched afterwards. A failure shows as an
  // error of ASan or TSan, or as a hang.
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto body = [&](Communicator& comm) {
      const int peer = 1 - comm.rank();
      std::vector<int> out(50000);
      std::vector<int> in(50000);
      std::vector<Request> requests;
      for (int lane = 0; lane < 4; ++lane) {
        requests.push_back(receive(comm, peer, lane, in));
        if (comm.rank() == repeat % 2 && lane == 2) throw std::out_of_range("enough");
        requests.push_back(send(comm, peer, lane, out));
      }
      comm.wait_all(requests);
    };
    EXPECT_ANY_THROW(run(2, body)) << "repeat " << repeat;
  }
}

TEST_P(CommunicatorConformance, DroppedRequestFailsTheGroup) {
  ARMILLARY_NEEDS_RANKS(2);
  EXPECT_THROW(
      run(2,
          [this](Communicator& comm) {
            std::vector<int> values(2);
            if (comm.rank() == 1) {
              receive(comm, 0, 1, values);
              return;
            }
            const std::string text = text_of<CommError>([&] { comm.wait(comm.irecv(1, 0, {})); });
            EXPECT_THAT(text,
                        HasSubstr(fmt::format("rank 1 dropped a request of 8 bytes with rank 0 on "
                                              "lane {} before it was done",
                                              told(1))));
          }),
      CommError);
}

}  // namespace
}  // namespace armillary::comm
