// Zero copy between ranks that are threads: the time at which a receiver may read and a sender may
// write again, and the effects of failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/comm/testing/failing_ranks.h"
#include "armillary/comm/testing/spin_until.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Message zero_copy_of(Direction direction, int peer, std::span<const Strided> parts,
                     std::shared_ptr<const void> owner = {}) {
  return {direction, peer, 0, parts, true, std::move(owner)};
}

Request start_one(Communicator& comm, const Message& message) {
  return comm.start({&message, 1})[0];
}

TEST(RunRanks, ZeroCopyIsReadInTheMemoryOfTheSender) {
  std::atomic<const std::byte*> shared = nullptr;
  std::atomic<bool> looked = false;
  run_ranks(2, [&](Communicator& comm) {
    std::vector<int> values = {comm.rank(), comm.rank() + 10, comm.rank() + 20};
    const Strided parts[] = {whole(std::span(values).first(1)), whole(std::span(values).last(2))};
    if (comm.rank() == 0) {
      shared = parts[0].data;
      const Request request = start_one(comm, zero_copy_of(Direction::Send, 1, parts));
      spin_until(looked);
      EXPECT_FALSE(comm.is_complete(request));
      looked = false;
      return comm.wait(request);
    }
    const Request request = start_one(comm, zero_copy_of(Direction::Receive, 0, parts));
    comm.wait(request);
    ASSERT_EQ(request->borrowed().size(), 2U);
    EXPECT_EQ(request->borrowed()[0].data, shared);
    EXPECT_EQ(*reinterpret_cast<const int*>(request->borrowed()[1].data), 10);
    EXPECT_EQ(values[0], 1) << "copied too";
    looked = true;
    while (looked) std::this_thread::yield();
    comm.give_back(request);
    comm.give_back(request);  // Does nothing the second time.
  });
}

TEST(RunRanks, TheLastHandleGivesBack) {
  std::atomic<bool> borrowed = false;
  std::atomic<bool> looked = false;
  std::atomic<bool> ended = false;
  run_ranks(2, [&](Communicator& comm) {
    std::vector<int> values(2);
    const Strided part = whole(std::span(values));
    const Direction direction = comm.rank() == 0 ? Direction::Send : Direction::Receive;
    Request request = start_one(comm, zero_copy_of(direction, 1 - comm.rank(), {&part, 1}));
    if (comm.rank() == 0) {
      spin_until(borrowed);
      EXPECT_FALSE(comm.is_complete(request)) << "rank 1 still reads it";
      looked = true;
      comm.wait(request, 5);
      EXPECT_TRUE(comm.is_complete(request));
      ended = true;
      return;
    }
    comm.wait(request);
    EXPECT_EQ(request->borrowed().size(), 1U);
    borrowed = true;
    spin_until(looked);
    request.reset();
    spin_until(ended);  // The handle gives back, not the end of the rank.
  });
  EXPECT_TRUE(ended);
}

TEST(RunRanks, IsCopiedUnlessBothSidesAllowZeroCopy) {
  for (const bool both_allow : {true, false}) {
    for (const bool in_two : {true, false}) {
      if (both_allow && !in_two) continue;
      run_ranks(2, [&](Communicator& comm) {
        std::vector<int> values(2, comm.rank());
        const std::span all(values);
        std::vector<Strided> parts = {whole(all)};
        if (comm.rank() == 1 && in_two) parts = {whole(all.first(1)), whole(all.last(1))};
        Message message = zero_copy_of(comm.rank() == 0 ? Direction::Send : Direction::Receive,
                                       1 - comm.rank(), parts);
        message.zero_copy = both_allow || comm.rank() == 1;
        const Request request = start_one(comm, message);
        comm.wait(request);
        EXPECT_TRUE(request->borrowed().empty());
        EXPECT_EQ(values[1], 0) << "rank " << comm.rank();
      });
    }
  }
}

TEST(RunRanks, BorrowedMemoryOutlivesItsSenderAndIsRefused) {
  std::atomic<bool> borrowed = false;
  std::atomic<bool> gone = false;
  std::string text;
  const auto body = [&](Communicator& comm) {
    const Holdup holdup{gone, gone};
    const auto values = std::make_shared<std::vector<int>>(1000, comm.rank());
    const Strided part = whole(std::span(*values));
    if (comm.rank() == 0) {
      const Request request = start_one(comm, zero_copy_of(Direction::Send, 1, {&part, 1}, values));
      spin_until(borrowed);
      throw std::out_of_range("enough");
    }
    const Request request = start_one(comm, zero_copy_of(Direction::Receive, 0, {&part, 1}));
    comm.wait(request);
    borrowed = true;
    spin_until(gone);
    comm.abort("unless rank 0 came first");
    EXPECT_EQ(reinterpret_cast<const int*>(request->borrowed()[0].data)[999], 0);
    try {
      comm.give_back(request);
    } catch (const CommError& e) {
      text = e.what();
    }
  };
  EXPECT_ANY_THROW(run_ranks(2, body));
  EXPECT_THAT(text, HasSubstr(" failed: "));
}

TEST(RunRanks, DroppingWhatAPeerReadsIsAFailure) {
  std::atomic<bool> borrowed = false;
  std::atomic<bool> dropped = false;
  std::string text;
  const auto body = [&](Communicator& comm) {
    const auto values = std::make_shared<std::vector<int>>(2);
    const Strided part = whole(std::span(*values));
    if (comm.rank() == 0) {
      Request request = start_one(comm, zero_copy_of(Direction::Send, 1, {&part, 1}, values));
      spin_until(borrowed);
      request.reset();
      dropped = true;
      return;
    }
    const Request request = start_one(comm, zero_copy_of(Direction::Receive, 0, {&part, 1}));
    comm.wait(request);
    borrowed = true;
    spin_until(dropped);
    try {
      comm.give_back(request);
    } catch (const CommError& e) {
      text = e.what();
    }
  };
  EXPECT_ANY_THROW(run_ranks(2, body));
  EXPECT_THAT(text, HasSubstr("rank 0 dropped a request of 8 bytes with rank 1 on lane"));
}

TEST(RunRanks, BorrowedMemoryThatIsNotGivenBackEndsInADeadline) {
  std::atomic<bool> over = false;
  const auto body = [&](Communicator& comm) {
    std::vector<int> values(3);
    const Strided part = whole(std::span(values));
    if (comm.rank() == 1) {
      const Request request = start_one(comm, zero_copy_of(Direction::Receive, 0, {&part, 1}));
      spin_until(over);
      return;
    }
    const Request request = start_one(comm, zero_copy_of(Direction::Send, 1, {&part, 1}));
    EXPECT_THROW(comm.wait(request, 0.05), CommError);
    over = true;
  };
  EXPECT_THAT(error_text(2, body),
              AllOf(HasSubstr("rank 0 sends 12 bytes to rank 1 on lane 0 not done after "),
                    HasSubstr("; rank 1 has the 12 bytes of lane 0 and reads them in place")));
}

}  // namespace
}  // namespace armillary::comm
