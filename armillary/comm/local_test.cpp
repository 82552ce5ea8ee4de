// Properties of run_ranks() beyond those of the conformance suite (tests/conformance/), which runs
// on it too.
#include "armillary/comm/local.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "armillary/comm/testing/failing_ranks.h"
#include "armillary/comm/testing/spin_until.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Oddity {  // Not derived from std::exception.
  int value;
};

TEST(RunRanks, RunsEveryRankOnAThreadOfItsOwn) {
  for (const int world : {1, 2, 13}) {
    std::vector<std::thread::id> ids(world);
    run_ranks(world, [&](Communicator& comm) { ids[comm.rank()] = std::this_thread::get_id(); });
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end()) << "world " << world;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), std::this_thread::get_id()), 0);
  }
}

TEST(RunRanks, SharesAProcessAlsoInParts) {
  run_ranks(2, [](Communicator& comm) {
    EXPECT_TRUE(comm.shares_process());
    EXPECT_TRUE(comm.split(0, comm.rank())->shares_process());
  });
}

TEST(RunRanks, KeepsTheTypeOfTheFirstException) {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> told = 0;
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 2) throw std::out_of_range("rank two is out");
    try {
      comm.wait(comm.irecv((comm.rank() + 1) % 5, 0, {}));
    } catch (const CommError& e) {
      if (e.what() == std::string("rank 2 failed: rank two is out")) ++told;
      throw std::runtime_error("later, and because of it");
    }
  };
  EXPECT_THROW(run_ranks(5, body), std::out_of_range);
  EXPECT_EQ(told, 4);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << "half a timeout";
}

TEST(RunRanks, CarriesWhatIsNoException) {
  std::string text;
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 1) throw Oddity{42};
    try {
      comm.wait(comm.irecv(1, 0, {}));
    } catch (const CommError& e) {
      text = e.what();
    }
  };
  try {
    run_ranks(2, body);
    ADD_FAILURE() << "no exception";
  } catch (const Oddity& oddity) {
    EXPECT_EQ(oddity.value, 42);
  }
  EXPECT_EQ(text, "rank 1 failed: an exception of unknown type");
}

TEST(RunRanks, AWorldOfOneFailsLikeAnyOther) {
  EXPECT_THROW(run_ranks(1, [](Communicator&) { throw std::out_of_range("alone"); }),
               std::out_of_range);
  EXPECT_EQ(error_text(1, [](Communicator& comm) { comm.abort("on purpose"); }),
            "rank 0 failed: on purpose");
}

TEST(RunRanks, NoticesAFailureThatEveryRankSwallowed) {
  const auto body = [](Communicator& comm) {
    try {
      if (comm.rank() == 0) comm.abort("hidden");
      comm.wait(comm.irecv(1 - comm.rank(), 0, {}));
    } catch (const CommError&) {
    }
  };
  EXPECT_EQ(error_text(2, body), "rank 0 failed: hidden");
}

TEST(RunRanks, RefusesBadOptions) {
  const auto nothing = [](Communicator&) {};
  EXPECT_THROW(run_ranks(0, nothing), InvalidArgument);
  EXPECT_THROW(run_ranks(1, nothing, {.timeout_s = -1}), InvalidArgument);
  EXPECT_THROW(run_ranks(1, nothing, {.max_delay_s = -1}), InvalidArgument);
  EXPECT_EQ(error_text(0, nothing), "run_ranks: world 0; at least 1 is required");
  EXPECT_THAT(error_text(1, nothing, {.timeout_s = -1}), HasSubstr("timeout -1 s; more than 0"));
  EXPECT_EQ(error_text(1, nothing, {.max_delay_s = 2}),
            "run_ranks: max_delay 2 s; 0 to 1 s is required");
}

/// Whether a send is done when isend() returns, to a receiver that had so long to fall asleep.
bool is_copied_at_once(std::chrono::milliseconds pause) {
  bool is_done = false;
  run_ranks(2, [&](Communicator& comm) {
    std::vector<int> values(4, comm.rank());
    const Strided part = whole(std::span(values));
    if (comm.rank() == 0) {
      comm.wait(comm.irecv(1, 0, {&part, 1}));
    } else {
      std::this_thread::sleep_for(pause);
      const Request request = comm.isend(0, 0, {&part, 1});
      is_done = comm.is_complete(request);
      comm.wait(request);
    }
    EXPECT_EQ(values, std::vector<int>(4, 1)) << "rank " << comm.rank();
  });
  return is_done;
}

TEST(RunRanks, CopiesStraightIntoTheReceiver) {
  // The receiver sleeps in a wait, so the sender copies.
  EXPECT_TRUE(is_copied_at_once(std::chrono::milliseconds(30)) ||
              is_copied_at_once(std::chrono::milliseconds(500)) ||
              is_copied_at_once(std::chrono::milliseconds(4000)));
}

void check_withdrawn_message_stops_its_queue(const LocalOptions& options) {
  std::atomic<bool> dropped = false;
  std::atomic<bool> answered = false;
  std::string text;
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 0) {
      std::vector<Request> second;
      const Holdup holdup{dropped, answered};
      const Request first = comm.irecv(1, 0, {});
      second.push_back(comm.irecv(1, 0, {}));
      throw std::out_of_range("enough");
    }
    spin_until(dropped);
    const Request request = comm.isend(0, 0, {});
    EXPECT_FALSE(comm.is_complete(request)) << "matched the second receive";
    answered = true;
    try {
      comm.wait(request);
    } catch (const CommError& e) {
      text = e.what();
    }
  };
  EXPECT_THROW(run_ranks(2, body, options), std::out_of_range);
  EXPECT_EQ(text, "rank 0 failed: enough");
}

TEST(RunRanks, WithdrawnMessageStopsItsQueue) {
  check_withdrawn_message_stops_its_queue({});
  check_withdrawn_message_stops_its_queue({.shuffle_seed = 1, .max_delay_s = 0});
}

TEST(RunRanks, MatchedButDelayedMessageMayBeWithdrawn) {
  std::atomic<bool> posted = false;
  std::atomic<bool> dropped = false;
  std::atomic<bool> polled = false;
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 0) {
      spin_until(posted);
      const Holdup holdup{dropped, polled};
      const Request request = comm.irecv(1, 0, {});
      throw std::out_of_range("enough");
    }
    const Request request = comm.isend(0, 0, {});
    posted = true;
    spin_until(dropped);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // Longer than the delay.
    const bool is_complete = comm.is_complete(request);
    polled = true;
    EXPECT_FALSE(is_complete);
    comm.wait(request);
  };
  EXPECT_THROW(run_ranks(2, body, {.shuffle_seed = 1, .max_delay_s = 0.02}), std::out_of_range);
}

TEST(RunRanks, NothingIsCopiedAfterAFailure) {
  std::atomic<bool> posted = false;
  std::atomic<bool> waited = false;
  const auto body = [&](Communicator& comm) {
    std::vector<int> value = {comm.rank()};
    const Strided part = whole(std::span(value));
    if (comm.rank() == 1) {
      const Request request = comm.isend(0, 0, {&part, 1});
      posted = true;
      spin_until(waited);
      return;
    }
    const Request request = comm.irecv(1, 0, {&part, 1});  // Matched, and due in less than 20 ms.
    spin_until(posted);
    comm.abort("too early");
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_THROW(comm.wait(request), CommError);
    waited = true;
    EXPECT_EQ(value[0], 0);
  };
  EXPECT_EQ(error_text(2, body, {.shuffle_seed = 1, .max_delay_s = 0.02}),
            "rank 0 failed: too early");
}

TEST(RunRanks, DelayedMessageIsCopiedByWhoeverWaits) {
  std::atomic<bool> received = false;
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.wait(comm.irecv(1, 0, {}));
      received = true;
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // Let rank 0 fall asleep.
    const Request request = comm.isend(0, 0, {});
    spin_until(received);
    EXPECT_TRUE(comm.is_complete(request));
  };
  run_ranks(2, body, {.shuffle_seed = 1, .max_delay_s = 0.01});
}

/// The order in which rank 0 sees 16 messages done, one on each lane.
std::vector<int> completion_order(const LocalOptions& options) {
  std::vector<int> order;
  run_ranks(
      2,
      [&](Communicator& comm) {
        std::vector<Request> requests;
        requests.reserve(16);
        for (int lane = 0; lane < 16; ++lane) {
          requests.push_back(comm.rank() == 0 ? comm.irecv(1, lane, {}) : comm.isend(0, lane, {}));
        }
        if (comm.rank() == 1) return comm.wait_all(requests);
        for (int i = 0; i < 16; ++i) {
          const std::size_t lane = comm.wait_any(requests);
          order.push_back(static_cast<int>(lane));
          requests[lane].reset();
        }
      },
      options);
  return order;
}

TEST(RunRanks, ShuffleChangesTheOrderOfCompletion) {
  const std::vector<int> first = completion_order({.shuffle_seed = 1, .max_delay_s = 0.02});
  const std::vector<int> second = completion_order({.shuffle_seed = 2, .max_delay_s = 0.02});
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  EXPECT_FALSE(std::is_sorted(second.begin(), second.end()));
  EXPECT_NE(first, second);
}

// A wait does not last until later messages are done, even with the shortest delays.
TEST(RunRanks, ShuffledMessagesAreDoneOneByOne) {
  constexpr int kLanes = 4;
  int waits = 0;
  int alone = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto exchange = [&](Communicator& comm) {
      std::vector<Request> requests;
      requests.reserve(kLanes);
      for (int lane = 0; lane < kLanes; ++lane) {
        requests.push_back(comm.rank() == 0 ? comm.irecv(1, lane, {}) : comm.isend(0, lane, {}));
      }
      if (comm.rank() == 1) return comm.wait_all(requests);
      for (int left = kLanes; left > 1; --left, ++waits) {
        requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(comm.wait_any(requests)));
        if (!std::ranges::all_of(requests, [&](const Request& r) { return comm.is_complete(r); }))
          ++alone;
      }
      comm.wait_all(requests);
    };
    run_ranks(2, exchange, {.shuffle_seed = seed});
  }
  EXPECT_GT(alone, waits / 10);
}

// wait_any tells the message that was done first, not the first of the list or the latest one.
TEST(RunRanks, WaitAnyTellsWhatWasDoneFirst) {
  const std::vector<std::size_t> order = {2, 0, 3, 1};
  std::atomic<bool> is_checked = false;
  run_ranks(2, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      for (const std::size_t lane : order) comm.wait(comm.isend(0, static_cast<int>(lane), {}));
      comm.wait(comm.isend(0, 9, {}));
      return spin_until(is_checked);
    }
    std::vector<Request> requests(order.size() + 2);  // The last two stay empty.
    for (const std::size_t lane : order) {
      requests[lane] = comm.irecv(1, static_cast<int>(lane), {});
    }
    comm.wait(comm.irecv(1, 9, {}));
    for (const std::size_t lane : order)
      ASSERT_TRUE(comm.is_complete(requests[lane])) << "lane " << lane;
    for (const std::size_t lane : order) {
      const std::size_t first = comm.wait_any(requests);
      EXPECT_EQ(first, lane);
      requests[first].reset();
    }
    is_checked = true;
  });
}

// A rank that waits may copy, but not once one of its requests is done.
TEST(RunRanks, AWaitEndsWithTheFirstThatIsDone) {
  bool early = false;
  for (int i = 0; i < 400 && !early; ++i) {
    run_ranks(2, [&](Communicator& comm) {
      const bool sends = comm.rank() == 1;
      std::array<std::vector<std::byte>, 3> memory;
      std::array<Strided, 3> parts;
      for (std::size_t lane = 0; lane < parts.size(); ++lane) {
        memory[lane].resize(lane == 0 ? 8 : std::size_t{16} << 20);
        const auto bytes = static_cast<std::int64_t>(memory[lane].size());
        parts[lane] = {memory[lane].data(), 1, bytes, bytes};
      }
      std::vector<Message> batch;
      batch.reserve(3);
      for (int lane = 0; lane < 3; ++lane) {
        batch.push_back({.direction = sends ? Direction::Send : Direction::Receive,
                         .peer = 1 - comm.rank(),
                         .lane = lane,
                         .parts = std::span(parts).subspan(static_cast<std::size_t>(lane), 1)});
      }
      std::vector<Request> requests(3);
      if (sends) {
        const timespec pause{.tv_sec = 0, .tv_nsec = 5'000'000};
        nanosleep(&pause, nullptr);  // The other rank sleeps by then.
      }
      comm.start(batch, requests);
      if (!sends && comm.wait_any(requests) == 0 && !comm.is_complete(requests[2])) early = true;
      comm.wait_all(requests);
    });
  }
  EXPECT_TRUE(early);
}

}  // namespace
}  // namespace armillary::comm
