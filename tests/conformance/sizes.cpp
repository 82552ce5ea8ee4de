// sizes.cpp: messages of many sizes and shapes, from one byte to more than an int counts, and peers
// that come late or are busy.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "armillary/core/error.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/messages.h"
#include "tests/sanitized.h"

namespace armillary::comm {
namespace {

TEST_P(CommunicatorConformance, SizesFromOneByteToManyMegabytes) {
  ARMILLARY_NEEDS_RANKS(2);
  run(2, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    const auto value = [](int rank, std::size_t i) { return std::byte(i * 31 + i / 251 + rank); };
    // Under sanitizers 4 MiB: test code looks at every byte.
    const unsigned most = 1u << (sanitizer_samples() ? 22 : 26);
    for (const std::size_t size : {1u, 2u, 3u, 4095u, 4097u, 65537u, most}) {
      std::vector<std::byte> out(size);
      std::vector<std::byte> in(size);
      for (std::size_t i = 0; i < size; ++i) out[i] = value(comm.rank(), i);
      const Strided out_part = whole(std::span(out));
      const Strided in_part = whole(std::span(in));
      const std::vector<Message> batch = {{Direction::Send, peer, 1, {&out_part, 1}},
                                          {Direction::Receive, peer, 1, {&in_part, 1}}};
      comm.wait_all(comm.start(batch));
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < size; ++i) wrong += in[i] != value(peer, i);
      EXPECT_EQ(wrong, 0u) << "rank " << comm.rank() << ", " << size << " bytes";
    }
  });
}

// Takes twice 2 GiB and a few seconds: only if ./dev test --all asks for it.
TEST_P(CommunicatorConformance, MoreBytesThanAnIntCounts) {
  ARMILLARY_NEEDS_RANKS(2);
  if (!std::getenv("ARMILLARY_TEST_ALL")) GTEST_SKIP() << "takes 4 GiB: ./dev test --all";
  if (!GetParam().huge_messages) GTEST_SKIP() << GetParam().name << " has short messages";
  run(2, [](Communicator& comm) {
    constexpr std::size_t kSize = (std::size_t{1} << 31) + 12345;
    std::vector<std::byte> bytes(kSize);
    const std::vector<std::size_t> marks = {0, 12344, 12345, (std::size_t{1} << 30) + 12345,
                                            kSize - 1};
    if (comm.rank() == 0) {
      for (std::size_t i = 0; i < marks.size(); ++i) bytes[marks[i]] = std::byte(i + 1);
    }
    const Strided part = whole(std::span(bytes));
    comm.wait(comm.rank() == 0 ? comm.isend(1, 0, {&part, 1}) : comm.irecv(0, 0, {&part, 1}));
    for (std::size_t i = 0; i < marks.size(); ++i) EXPECT_EQ(bytes[marks[i]], std::byte(i + 1));
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte(0)), kSize - marks.size());
  });
}

TEST_P(CommunicatorConformance, StridedMemoryOfManyRows) {
  ARMILLARY_NEEDS_RANKS(2);
  run(2, [](Communicator& comm) {
    // 1000 rows of 300 ints in a matrix of 700 columns; the gaps stay as they are.
    constexpr int kRows = 1000;
    std::vector<int> matrix(700'000, -1);
    const auto at = [&](int row, int column) -> int& { return matrix[row * 700 + column]; };
    if (comm.rank() == 0) std::iota(matrix.begin(), matrix.end(), 0);
    const Strided part = {reinterpret_cast<std::byte*>(&at(0, 100)), kRows, 1200, 2800};
    comm.wait(comm.rank() == 0 ? comm.isend(1, 0, {&part, 1}) : comm.irecv(0, 0, {&part, 1}));
    if (comm.rank() == 0) return;
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < 700; ++column) {
        const bool is_inside = column >= 100 && column < 400;
        ASSERT_EQ(at(row, column), is_inside ? row * 700 + column : -1) << row << ", " << column;
      }
    }
  });
}

TEST_P(CommunicatorConformance, LatePeersFindTheirMessages) {
  ARMILLARY_NEEDS_RANKS(2);
  // The sender is done with its small messages before the receiver asks; large ones wait for it.
  run(2, [](Communicator& comm) {
    for (const int late : {0, 1}) {
      if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::vector<std::vector<int>> values;
      std::vector<Request> requests;
      values.reserve(20);
      for (int i = 0; i < 20; ++i) {
        const int count = i % 2 == 0 ? 10 : 100000;
        values.push_back(comm.rank() == 0 ? numbers(count, i) : std::vector<int>(count, -1));
        requests.push_back(comm.rank() == 0 ? send(comm, 1, i % 3, values[i])
                                            : receive(comm, 0, i % 3, values[i]));
      }
      comm.wait_all(requests);
      for (int i = 0; i < 20; ++i) ASSERT_EQ(values[i], numbers(values[i].size(), i)) << i;
    }
  });
}

TEST_P(CommunicatorConformance, ARankThatComputesLearnsOfAFailure) {
  ARMILLARY_NEEDS_RANKS(2);
  EXPECT_THROW(run(2,
                   [](Communicator& comm) {
                     if (comm.rank() == 0) return comm.abort("out of paper");
                     // throw_if_failed() makes no progress by itself.
                     const auto begin = Clock::now();
                     const std::string text = text_of<CommError>([&] {
                       while (seconds_since(begin) < 20) {
                         comm.throw_if_failed();
                         std::this_thread::yield();
                       }
                     });
                     EXPECT_EQ(text, "rank 0 failed: out of paper");
                   }),
               CommError);
}

}  // namespace
}  // namespace armillary::comm
