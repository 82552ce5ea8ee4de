// local_pending_test.cpp: messages that cannot be zero copy, and the order of messages that are
// done while no rank looks. Both ends are thread ranks of one local group.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>
#include <thread>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

void yield_until(const std::atomic<bool>& flag) {
  const auto begin = std::chrono::steady_clock::now();
  while (!flag && std::chrono::steady_clock::now() - begin < std::chrono::seconds(60)) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(flag);
}

/// One side of a message from rank 0 to rank 1; both sides allow zero copy.
Message zero_copy_message(const Communicator& comm, std::span<const Strided> parts) {
  return {.direction = comm.rank() == 0 ? Direction::Send : Direction::Receive,
          .peer = 1 - comm.rank(),
          .parts = parts,
          .zero_copy = true};
}

// Both sides have two parts and 12 bytes, but a receiver that reads a part expects its own bytes in
// it.
TEST(LocalPending, PartsOfOtherSizesAreCopied) {
  run_ranks(2, [](Communicator& comm) {
    std::vector<int> values(3, 0);
    const std::span all(values);
    if (comm.rank() == 0) values = {1, 2, 3};
    const std::size_t first = comm.rank() == 0 ? 1 : 2;
    const Strided parts[] = {whole(all.first(first)), whole(all.subspan(first))};
    const Message message = zero_copy_message(comm, parts);
    const Request request = comm.start({&message, 1})[0];
    comm.wait(request);
    EXPECT_TRUE(request->borrowed().empty());
    EXPECT_EQ(values, (std::vector<int>{1, 2, 3})) << "rank " << comm.rank();
  });
}

// There would be nothing to give back, so the send would wait until its receiver drops the handle.
TEST(LocalPending, NoBytesAreNotZeroCopy) {
  std::atomic<bool> is_sent = false;
  run_ranks(2, [&](Communicator& comm) {
    const Message message = zero_copy_message(comm, {});
    const Request request = comm.start({&message, 1})[0];
    if (comm.rank() == 0) {
      comm.wait(request, 5);
      is_sent = true;
      return;
    }
    comm.wait(request);
    yield_until(is_sent);
  });
  EXPECT_TRUE(is_sent);
}

// The side that starts second sees both sizes, and throws without a wait.
TEST(LocalPending, SizesThatDifferAreRefusedByTheStart) {
  std::atomic<bool> posted = false;
  std::atomic<bool> refused = false;
  const auto body = [&](Communicator& comm) {
    std::vector<int> values(2 + static_cast<std::size_t>(comm.rank()));
    const Strided part = whole(std::span(values));
    if (comm.rank() == 0) {
      const Request request = comm.irecv(1, 0, {&part, 1});
      posted = true;
      yield_until(refused);
      EXPECT_THROW(comm.wait(request), CommError);
      return;
    }
    yield_until(posted);
    EXPECT_THROW(comm.isend(0, 0, {&part, 1}), CommError);
    refused = true;
  };
  EXPECT_THROW(run_ranks(2, body), CommError);
}

/// Lanes in the order in which their messages were done, as a rank sees it that first looks when
/// the delays of all of them have passed.
std::vector<std::size_t> order_seen_late(std::uint64_t seed) {
  constexpr std::size_t kLanes = 16;
  std::vector<std::size_t> order;
  std::atomic<bool> posted = false;
  std::atomic<bool> visible = false;
  const auto body = [&](Communicator& comm) {
    std::vector<Request> requests;
    requests.reserve(kLanes);
    for (int lane = 0; lane < static_cast<int>(kLanes); ++lane) {
      requests.push_back(comm.rank() == 0 ? comm.irecv(1, lane, {}) : comm.isend(0, lane, {}));
    }
    if (comm.rank() == 1) {
      posted = true;
      yield_until(visible);
      return comm.wait_all(requests);
    }
    yield_until(posted);
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    for (std::size_t i = 0; i < kLanes; ++i) {
      order.push_back(comm.wait_any(requests));
      requests[order.back()].reset();
    }
    visible = true;
  };
  run_ranks(2, body, {.shuffle_seed = seed, .max_delay_s = 0.01});
  return order;
}

TEST(LocalPending, ALateLookSeesTheShuffledOrder) {
  const std::vector<std::size_t> order = order_seen_late(1);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  EXPECT_NE(order, order_seen_late(2));
}

}  // namespace
}  // namespace armillary::comm
