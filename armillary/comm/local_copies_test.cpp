// The ranks that copy messages between the threads of run_ranks(), and that a rank does not go on
// while its memory is being copied. Assertions hold however threads are scheduled. The moment that
// a test is about comes only with some likelihood, so each test tries several times.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/comm/testing/spin_until.h"
#include "armillary/core/error.h"
#include "tests/sanitized.h"

namespace armillary::comm {
namespace {

constexpr int kTries = 10;
constexpr std::size_t kLarge = std::size_t{kSanitized ? 1 : 16} << 20;  // bytes; takes milliseconds

using Bytes = std::vector<std::byte>;

/// Sleeps until the middle of a copy that begins now; longer in later attempts.
void sleep_into_a_copy(int attempt) {
  std::this_thread::sleep_for(std::chrono::microseconds(200 << attempt / 2));
}

std::int64_t count_of(const Bytes& memory, std::byte value) {
  return std::count(memory.begin(), memory.end(), value);
}

/// Rank 0 receives from rank 1. Rank `copier` of the two begins last, and so copies; the other one
/// waits. Meanwhile rank 2 exchanges a byte with the one that waits, which is a copy too, and
/// fails. The rank that waits keeps its request, and writes its memory when it is told of the
/// failure.
void fail_during_a_copy(int copier, int attempt) {
  std::array<Bytes, 2> memory = {Bytes(kLarge, std::byte{0}), Bytes(kLarge, std::byte{1})};
  std::atomic<bool> waits = false;
  std::atomic<bool> copies = false;
  const auto body = [&](Communicator& comm) {
    Bytes small(1);
    const Strided byte = whole(std::span(small));
    if (comm.rank() == 2) {
      spin_until(copies);
      sleep_into_a_copy(attempt);
      comm.wait(copier == 0 ? comm.irecv(1, 1, {&byte, 1}) : comm.isend(0, 1, {&byte, 1}));
      comm.abort("on purpose");
      return;
    }
    Bytes& mine = memory[comm.rank()];
    const Strided part = whole(std::span(mine));
    const auto start = [&](int peer, int lane, const Strided& what) {
      return comm.rank() == 0 ? comm.irecv(peer, lane, {&what, 1})
                              : comm.isend(peer, lane, {&what, 1});
    };
    if (comm.rank() == copier) {
      spin_until(waits);
      copies = true;
      comm.wait(start(1 - comm.rank(), 0, part));
      return;
    }
    const Request request = start(1 - comm.rank(), 0, part);
    const Request of_byte = start(2, 1, byte);
    waits = true;
    spin_until(copies);
    try {
      comm.wait(request);
      comm.wait(comm.irecv(2, 0, {}));  // Throws the failure if the copy came first.
    } catch (const CommError&) {
      std::fill(mine.begin(), mine.end(), std::byte{2});
      throw;
    }
  };
  EXPECT_THROW(run_ranks(3, body), CommError);
  // The receiver has all bytes that were sent, or all that it wrote itself.
  const auto mixed = copier == 0 ? std::byte{2} : std::byte{1};
  EXPECT_EQ(count_of(memory[0], mixed), 0) << "attempt " << attempt;
}

TEST(LocalCopies, ASenderHearsOfAFailureAfterWhatIsCopiedFromIt) {
  for (int attempt = 0; attempt < kTries; ++attempt) fail_during_a_copy(0, attempt);
}

TEST(LocalCopies, AReceiverHearsOfAFailureAfterWhatIsCopiedToIt) {
  for (int attempt = 0; attempt < kTries; ++attempt) fail_during_a_copy(1, attempt);
}

// The receiver unwinds, and its memory goes with it.
TEST(LocalCopies, ARequestGoesAwayAfterWhatIsCopiedForIt) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    Bytes to(kLarge, std::byte{0});
    std::atomic<bool> posted = false;
    std::atomic<bool> copies = false;
    const auto body = [&](Communicator& comm) {
      if (comm.rank() == 0) {
        const Strided part = whole(std::span(to));
        try {
          const Request request = comm.irecv(1, 0, {&part, 1});
          posted = true;
          spin_until(copies);
          sleep_into_a_copy(attempt);
          throw std::out_of_range("enough");
        } catch (const std::out_of_range&) {
          std::fill(to.begin(), to.end(), std::byte{2});
          throw;
        }
      }
      Bytes from(kLarge, std::byte{1});
      const Strided part = whole(std::span(from));
      spin_until(posted);
      copies = true;
      comm.wait(comm.isend(0, 0, {&part, 1}));
    };
    EXPECT_THROW(run_ranks(2, body), std::out_of_range);
    EXPECT_EQ(count_of(to, std::byte{1}), 0) << "attempt " << attempt;
  }
}

/// Messages from rank 1 to rank 0: one on lane 1, and on lane 0 a large one and then small ones.
struct Mail {
  Bytes small = Bytes(1);
  Bytes medium = Bytes(kLarge / 4);
  Bytes large = Bytes(kLarge);
  Strided of_small = whole(std::span(small));
  Strided of_medium = whole(std::span(medium));
  Strided of_large = whole(std::span(large));

  Mail() = default;
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  /// Receives the message of lane 1, the large one and the small ones.
  std::vector<Request> receive(Communicator& comm, int small_ones) const {
    std::vector<Request> begun = {comm.irecv(1, 1, {&of_medium, 1}),
                                  comm.irecv(1, 0, {&of_large, 1})};
    for (int i = 0; i < small_ones; ++i) begun.push_back(comm.irecv(1, 0, {&of_small, 1}));
    return begun;
  }

  /// Sends the message of lane 1 and the large one when the receiver waits for them: the sender
  /// copies the first and asks the receiver to copy the other.
  std::vector<Request> send_two(Communicator& comm, const std::atomic<bool>& posted) const {
    spin_until(posted);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // The receiver sleeps by then.
    const std::array<Message, 2> batch = {
        Message{.direction = Direction::Send, .peer = 0, .lane = 1, .parts = {&of_medium, 1}},
        Message{.direction = Direction::Send, .peer = 0, .lane = 0, .parts = {&of_large, 1}}};
    return comm.start(batch);
  }

  Request send_small(Communicator& comm) const { return comm.isend(0, 0, {&of_small, 1}); }
};

/// On lane 0 the receiver copies the first message, because it waits for it, and does other work
/// when it has arrived. The sender starts the second message in the meantime and the third
/// afterwards. A sender may then ask without waiting: a message that both ranks have started needs
/// no other call.
TEST(LocalCopies, WhoStartsAMessagePassesThoseBeforeItToo) {
  for (int attempt = 0; attempt < 2 * kTries; ++attempt) {
    std::atomic<bool> posted = false;
    std::atomic<bool> waited = false;
    std::atomic<bool> is_checked = false;
    run_ranks(2, [&](Communicator& comm) {
      const Mail mail;
      if (comm.rank() == 0) {
        const std::vector<Request> begun = mail.receive(comm, 2);
        posted = true;
        comm.wait(begun[1]);
        waited = true;
        spin_until(is_checked);
        comm.wait_all(begun);
        return;
      }
      std::vector<Request> begun = mail.send_two(comm, posted);
      begun.push_back(mail.send_small(comm));
      spin_until(waited);
      begun.push_back(mail.send_small(comm));
      EXPECT_TRUE(comm.is_complete(begun[2])) << "attempt " << attempt;
      EXPECT_TRUE(comm.is_complete(begun[3])) << "attempt " << attempt;
      is_checked = true;
      comm.wait_all(begun);
    });
  }
}

// The same, but the receiver only polls for the second message, which it left when the first had
// arrived: it copies the message then.
TEST(LocalCopies, WhoAsksOftenEnoughNeedNotWait) {
  for (int attempt = 0; attempt < 2 * kTries; ++attempt) {
    std::atomic<bool> posted = false;
    run_ranks(2, [&](Communicator& comm) {
      const Mail mail;
      if (comm.rank() == 0) {
        const std::vector<Request> begun = mail.receive(comm, 1);
        posted = true;
        comm.wait(begun[1]);
        const auto begin = std::chrono::steady_clock::now();
        while (!comm.is_complete(begun[2]) &&
               std::chrono::steady_clock::now() - begin < std::chrono::seconds(60)) {
        }
        EXPECT_TRUE(comm.is_complete(begun[2])) << "attempt " << attempt;
        comm.wait_all(begun);
        return;
      }
      std::vector<Request> begun = mail.send_two(comm, posted);
      begun.push_back(mail.send_small(comm));
      comm.wait_all(begun);
    });
  }
}

}  // namespace
}  // namespace armillary::comm
