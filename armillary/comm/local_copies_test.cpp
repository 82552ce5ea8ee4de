// Who copies what between the ranks of run_ranks(), and that a rank whose memory is being copied is
// not told to go on. What is asserted holds however threads are scheduled; that the moment in
// question comes is likely only, so each test tries several times.
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
#include "armillary/comm/spin_until.h"
#include "armillary/core/error.h"
#include "tests/sanitized.h"

namespace armillary::comm {
namespace {

constexpr int kTries = 10;
constexpr std::size_t kLarge = std::size_t{kSanitized ? 1 : 16} << 20;  // bytes; takes milliseconds

using Bytes = std::vector<std::byte>;

/// In the middle of a copy that begins now, in one try or another.
void sleep_into_a_copy(int attempt) {
  std::this_thread::sleep_for(std::chrono::microseconds(200 << attempt / 2));
}

std::int64_t count_of(const Bytes& memory, std::byte value) {
  return std::count(memory.begin(), memory.end(), value);
}

/// Rank 0 receives from rank 1. Rank `copier` of them begins last, and so copies; the other one
/// waits. Meanwhile rank 2 trades a byte with the one that waits, which is a copy too, and fails.
/// Who waits keeps its request, and writes its memory when it is told of the failure.
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
      comm.wait(comm.irecv(2, 0, {}));  // which tells of the failure if the copy came first
    } catch (const CommError&) {
      std::fill(mine.begin(), mine.end(), std::byte{2});
      throw;
    }
  };
  EXPECT_THROW(run_ranks(3, body), CommError);
  // The receiver has all that was sent, or what it wrote itself.
  const auto mixed = copier == 0 ? std::byte{2} : std::byte{1};
  EXPECT_EQ(count_of(memory[0], mixed), 0) << "attempt " << attempt;
}

TEST(LocalCopies, ASenderHearsOfAFailureAfterWhatIsCopiedFromIt) {
  for (int attempt = 0; attempt < kTries; ++attempt) fail_during_a_copy(0, attempt);
}

TEST(LocalCopies, AReceiverHearsOfAFailureAfterWhatIsCopiedToIt) {
  for (int attempt = 0; attempt < kTries; ++attempt) fail_during_a_copy(1, attempt);
}

// The receiver unwinds, and its memory with it.
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

/// To rank 0, on lanes 1 and 0: the sender copies one and calls the receiver for the other.
std::array<Request, 2> send_two(Communicator& comm, std::span<const Strided> on_lane_1,
                                std::span<const Strided> on_lane_0) {
  const std::array<Message, 2> batch = {
      Message{.direction = Direction::Send, .peer = 0, .lane = 1, .parts = on_lane_1},
      Message{.direction = Direction::Send, .peer = 0, .lane = 0, .parts = on_lane_0}};
  std::array<Request, 2> begun;
  comm.start(batch, begun);
  return begun;
}

/// Lane 0 from rank 1 to rank 0. The receiver copies the first message, as it waits for it, and has
/// others to see to when it has come; the sender brings the second meanwhile, the third afterwards.
/// A sender may then ask without waiting: what two ranks have started needs no third call.
TEST(LocalCopies, WhoStartsAMessagePassesThoseBeforeItToo) {
  for (int attempt = 0; attempt < 2 * kTries; ++attempt) {
    std::atomic<bool> posted = false;
    std::atomic<bool> waited = false;
    std::atomic<bool> asked = false;
    run_ranks(2, [&](Communicator& comm) {
      Bytes small(1);
      Bytes medium(kLarge / 4);
      Bytes large(kLarge);
      const std::array<Strided, 3> parts = {whole(std::span(large)), whole(std::span(small)),
                                            whole(std::span(medium))};
      const std::span all(parts);
      if (comm.rank() == 0) {
        const Request other = comm.irecv(1, 1, all.subspan(2, 1));
        const Request first = comm.irecv(1, 0, all.subspan(0, 1));
        const Request second = comm.irecv(1, 0, all.subspan(1, 1));
        const Request third = comm.irecv(1, 0, all.subspan(1, 1));
        posted = true;
        comm.wait(first);
        waited = true;
        spin_until(asked);
        for (const Request& request : {other, second, third}) comm.wait(request);
        return;
      }
      spin_until(posted);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // The receiver sleeps by then.
      std::array<Request, 2> begun = send_two(comm, all.subspan(2, 1), all.subspan(0, 1));
      const Request second = comm.isend(0, 0, all.subspan(1, 1));
      spin_until(waited);
      const Request third = comm.isend(0, 0, all.subspan(1, 1));
      EXPECT_TRUE(comm.done(second)) << "attempt " << attempt;
      EXPECT_TRUE(comm.done(third)) << "attempt " << attempt;
      asked = true;
      for (const Request& request : {begun[0], begun[1], second, third}) comm.wait(request);
    });
  }
}

// The same, but the receiver only asks for the second: what it left when the first had come, it
// copies then.
TEST(LocalCopies, WhoAsksOftenEnoughNeedNotWait) {
  for (int attempt = 0; attempt < 2 * kTries; ++attempt) {
    std::atomic<bool> posted = false;
    run_ranks(2, [&](Communicator& comm) {
      Bytes small(1);
      Bytes medium(kLarge / 4);
      Bytes large(kLarge);
      const std::array<Strided, 3> parts = {whole(std::span(large)), whole(std::span(small)),
                                            whole(std::span(medium))};
      const std::span all(parts);
      if (comm.rank() == 0) {
        const Request other = comm.irecv(1, 1, all.subspan(2, 1));
        const Request first = comm.irecv(1, 0, all.subspan(0, 1));
        const Request second = comm.irecv(1, 0, all.subspan(1, 1));
        posted = true;
        comm.wait(first);
        const auto begin = std::chrono::steady_clock::now();
        while (!comm.done(second) &&
               std::chrono::steady_clock::now() - begin < std::chrono::seconds(5)) {
        }
        EXPECT_TRUE(comm.done(second)) << "attempt " << attempt;
        for (const Request& request : {other, second}) comm.wait(request);
        return;
      }
      spin_until(posted);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // The receiver sleeps by then.
      std::array<Request, 2> begun = send_two(comm, all.subspan(2, 1), all.subspan(0, 1));
      const Request second = comm.isend(0, 0, all.subspan(1, 1));
      for (const Request& request : {begun[0], begun[1], second}) comm.wait(request);
    });
  }
}

}  // namespace
}  // namespace armillary::comm
