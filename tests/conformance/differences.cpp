// Ranks that make different calls of collectives: every rank is told both, at once, by whichever
// rank finds it, and the group ends.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/label.h"
#include "armillary/core/error.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/messages.h"
#include "tests/sanitized.h"

namespace armillary::comm {
namespace {

/// Memory of one rank, for any call below.
struct Memory {
  explicit Memory(int world) : mine(kMost), all(kMost * static_cast<std::size_t>(world)) {}
  static constexpr std::size_t kMost = 5000;  ///< Long enough for messages of every kind.
  Array first(std::vector<float>& values, std::size_t count) const {
    return array(std::span(values).first(count));
  }
  Array part(std::size_t count) { return first(mine, count); }
  Array whole(std::size_t count) { return first(all, count * all.size() / kMost); }
  std::vector<float> mine, all;
};

/// A call, which blocks or is waited for, and how its texts begin.
struct CollectiveCall {
  std::string text;
  std::function<void(Communicator&, Memory&)> run;
  bool is_started = false;
};

/// No two of them agree, in any world.
std::vector<CollectiveCall> calls_of(int world) {
  std::vector<CollectiveCall> calls;
  const auto add = [&](std::string text, std::function<void(Communicator&, Memory&)> run) {
    calls.push_back({.text = std::move(text), .run = std::move(run)});
  };
  const auto add_started = [&](std::string text,
                               std::function<Request(Communicator&, Memory&)> start) {
    const auto run = [start = std::move(start)](Communicator& comm, Memory& memory) {
      comm.wait(start(comm, memory));
    };
    calls.push_back({.text = std::move(text), .run = run, .is_started = true});
  };
  add("barrier", [](Communicator& comm, Memory&) { barrier(comm); });
  for (const int root : {0, 1, world - 1}) {
    if (root == 1 && world == 2) continue;
    add(fmt::format("broadcast of 3 fp32 from rank {}", root),
        [root](Communicator& comm, Memory& memory) { broadcast(comm, memory.part(3), root); });
  }
  for (const std::size_t count : {std::size_t{0}, Memory::kMost}) {
    add(fmt::format("broadcast of {} fp32 from rank 0", count),
        [count](Communicator& comm, Memory& memory) { broadcast(comm, memory.part(count), 0); });
  }
  for (const std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{4}, Memory::kMost}) {
    add(fmt::format("all_reduce_sum of {} fp32", count),
        [count](Communicator& comm, Memory& memory) { all_reduce(comm, memory.part(count)); });
  }
  add("all_reduce_max of 3 fp32",
      [](Communicator& comm, Memory& memory) { all_reduce(comm, memory.part(3), Reduction::Max); });
  add("all_reduce_sum of 3 int64", [](Communicator& comm, Memory& memory) {
    Array values = memory.part(6);
    values.count = 3;
    values.dtype = ElementType::Int64;
    all_reduce(comm, values);
  });
  add(fmt::format("scatter_sum of {} fp32", 3 * world), [](Communicator& comm, Memory& memory) {
    reduce_scatter(comm, memory.whole(3), memory.part(3));
  });
  for (const std::size_t count : {std::size_t{0}, std::size_t{3}}) {
    add(fmt::format("all_gather of {} fp32", count * world),
        [count](Communicator& comm, Memory& memory) {
          all_gather(comm, memory.part(count), memory.whole(count));
        });
  }
  add("all_to_all of ", [](Communicator& comm, Memory& memory) {
    Array to = memory.whole(3);
    Array from = memory.whole(6);
    from.data += to.bytes();
    from.count = to.count;
    all_to_all(comm, from, to);
  });
  add_started(fmt::format("all_gather of {} fp32", 4 * world),
              [](Communicator& comm, Memory& memory) {
                return start_all_gather(comm, memory.part(4), memory.whole(4));
              });
  add_started(fmt::format("scatter_max of {} fp32", 3 * world),
              [](Communicator& comm, Memory& memory) {
                return start_reduce_scatter(comm, memory.whole(3), memory.part(3), Reduction::Max);
              });
  return calls;
}

/// Runs the other call on the ranks of a set, a bit for each, and expects every rank to be told
/// both, in its call or, if it has no part in the difference, soon after it.
void expect_told(const Launcher& launcher, int world, unsigned others, const CollectiveCall& one,
                 const CollectiveCall& other) {
  const auto body = [&](Communicator& comm) {
    Memory memory(world);
    const CollectiveCall& own =
        (others >> static_cast<unsigned>(comm.rank()) & 1U) != 0 ? other : one;
    const std::string text = text_of<CommError>([&] {
      own.run(comm, memory);
      for (const auto begin = Clock::now(); seconds_since(begin) < 60;) {
        comm.throw_if_failed();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
    EXPECT_THAT(text, testing::HasSubstr(" calls " + one.text));
    EXPECT_THAT(text, testing::HasSubstr(" calls " + other.text));
    EXPECT_THAT(text, testing::EndsWith("; the same call is required on all ranks"));
  };
  EXPECT_THROW(launcher.run(world, body), CommError);
}

/// Sets of ranks that make the other call. Groups of threads are made at once, and try all sets, or
/// of 5 ranks some; elsewhere the last rank alone differs.
std::vector<unsigned> sets_of(int world, bool threads) {
  const unsigned all = (1U << static_cast<unsigned>(world)) - 1;
  if (!threads) return {(all + 1) / 2};
  std::vector<unsigned> sets;
  for (unsigned set = 1; set < all; set += world < 5 ? 1 : 4) sets.push_back(set);
  return sets;
}

TEST_P(CommunicatorConformance, RanksThatCallDifferentCollectivesAreToldBoth) {
  const bool threads = GetParam().name == "local";
  for (const int world : worlds({2, 3, 4, threads ? 5 : 4})) {
    std::vector<CollectiveCall> calls = calls_of(world);
    // Messages of device memory are not compared.
    if (!GetParam().sees_sizes) std::erase_if(calls, [](auto& call) { return call.is_started; });
    for (std::size_t i = 1; i < calls.size(); ++i) {
      for (std::size_t j = threads && !sanitizer_samples() ? 0 : i - 1; j < i; ++j) {
        for (const unsigned others : sets_of(world, threads)) {
          SCOPED_TRACE(fmt::format("{} of {} ranks: {}, else {}", others, world, calls[i].text,
                                   calls[j].text));
          expect_told(GetParam(), world, others, calls[j], calls[i]);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Short messages, and those that engines move apart from their label.
TEST_P(CommunicatorConformance, SizesThatDifferUnderOneLabelFailTheGroup) {
  ARMILLARY_NEEDS_RANKS(2);
  if (!GetParam().sees_sizes) GTEST_SKIP() << "messages of device memory are not compared";
  for (const std::int64_t bytes : {8, 5000}) {
    std::vector<std::byte> memory(6000);
    const Label label = label_of("a call");
    const auto body = [&](Communicator& comm) {
      const bool sends = comm.rank() == 0;
      const Strided part = whole(std::span(memory).first(sends ? bytes : bytes + 7));
      const Message message{.direction = sends ? Direction::Send : Direction::Receive,
                            .peer = 1 - comm.rank(),
                            .lane = kCollectiveLane,
                            .parts = {&part, 1},
                            .label = &label};
      const std::string text = text_of<CommError>([&] {
        comm.wait_all(comm.start({&message, 1}));
        barrier(comm);
      });
      EXPECT_THAT(text, testing::HasSubstr("equal sizes are required"));
      EXPECT_THAT(text, testing::HasSubstr(fmt::format("receives {} bytes", bytes + 7)));
    };
    EXPECT_THROW(run(2, body), CommError);
  }
}

// Ranks 1 and 2 need nothing of the last rank in the broadcast and go on to the all-gather, in
// which that one is already.
TEST_P(CommunicatorConformance, ARankThatLeavesOutACollectiveIsToldBoth) {
  ARMILLARY_NEEDS_RANKS(4);
  const auto body = [](Communicator& comm) {
    Memory memory(4);
    const std::string text = text_of<CommError>([&] {
      if (comm.rank() < 3) broadcast(comm, memory.part(3), 0);
      all_gather(comm, memory.part(3), memory.whole(3));
      barrier(comm);
    });
    EXPECT_THAT(text, testing::HasSubstr(" calls broadcast of 3 fp32 from rank 0"));
    EXPECT_THAT(text, testing::HasSubstr(" calls all_gather of 12 fp32"));
  };
  EXPECT_THROW(run(4, body), CommError);
}

}  // namespace
}  // namespace armillary::comm
