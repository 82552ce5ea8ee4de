// Groups made by split(): their ranks, their messages beside those of other groups, and failures,
// which all of them share.
#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/split_communicator.h"
#include "armillary/core/error.h"
#include "tests/conformance/conformance.h"

namespace armillary::comm {
namespace {

std::vector<std::int64_t> gathered(Communicator& comm, std::int64_t value) {
  std::vector<std::int64_t> all(comm.world());
  all_gather(comm, array(std::span(&value, 1)), array(std::span(all)));
  return all;
}

/// Sends `value` to the next rank and returns the value of the previous one.
int from_previous(Communicator& comm, int lane, int value) {
  if (comm.world() == 1) return value;
  int came = -1;
  const Strided out = whole(std::span(&value, 1));
  const Strided in = whole(std::span(&came, 1));
  const int next = (comm.rank() + 1) % comm.world();
  const int previous = (comm.rank() + comm.world() - 1) % comm.world();
  const std::vector<Message> batch = {{Direction::Send, next, lane, {&out, 1}},
                                      {Direction::Receive, previous, lane, {&in, 1}}};
  comm.wait_all(comm.start(batch));
  return came;
}

TEST_P(CommunicatorConformance, SplitOrdersByKeyThenRank) {
  ARMILLARY_NEEDS_RANKS(6);
  run(6, [](Communicator& comm) {
    const int self = comm.rank();
    const auto rows = comm.split(self / 3, 0);
    EXPECT_EQ(rows->world(), 3);
    EXPECT_EQ(rows->rank(), self % 3);
    EXPECT_EQ(rows->lanes(), comm.lanes());
    const std::int64_t first = self < 3 ? 0 : 3;
    EXPECT_EQ(gathered(*rows, self), (std::vector<std::int64_t>{first, first + 1, first + 2}));

    const auto backwards = comm.split(0, -self);
    EXPECT_EQ(backwards->rank(), 5 - self);
    EXPECT_EQ(gathered(*backwards, self), (std::vector<std::int64_t>{5, 4, 3, 2, 1, 0}));

    const auto some = comm.split(self < 2 ? 7 : -1, 0);
    ASSERT_EQ(some == nullptr, self >= 2);
    if (some) {
      EXPECT_EQ(gathered(*some, self), (std::vector<std::int64_t>{0, 1}));
    }
  });
}

TEST_P(CommunicatorConformance, MessagesOfGroupsDoNotMeet) {
  ARMILLARY_NEEDS_RANKS(6);
  if (GetParam().strict_lanes) GTEST_SKIP() << "a receive holds up the sends of its lane";
  run(6, [](Communicator& comm) {
    const auto rows = comm.split(comm.rank() / 3, comm.rank());
    const auto columns = comm.split(comm.rank() % 3, comm.rank());
    const auto halves = rows->split(rows->rank() % 2, 0);
    const auto others = columns->split(0, -columns->rank());
    // Receives of all groups are under way on one lane at once, and each gets its own message.
    std::vector<Communicator*> groups{&comm, rows.get(), columns.get(), halves.get(), others.get()};
    std::vector<int> came(groups.size(), -1);
    std::vector<Request> receives;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const Communicator& group = *groups[i];
      if (group.world() == 1) continue;
      const Strided in = whole(std::span(&came[i], 1));
      receives.push_back(
          groups[i]->irecv((group.rank() + group.world() - 1) % group.world(), 3, {&in, 1}));
    }
    for (std::size_t i = groups.size(); i-- > 0;) {
      Communicator& group = *groups[i];
      if (group.world() == 1) continue;
      const int value = static_cast<int>(100 * i) + group.rank();
      const Strided out = whole(std::span(&value, 1));
      group.wait(group.isend((group.rank() + 1) % group.world(), 3, {&out, 1}));
    }
    comm.wait_all(receives);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const int world = groups[i]->world();
      if (world == 1) continue;
      EXPECT_EQ(came[i], static_cast<int>(100 * i) + (groups[i]->rank() + world - 1) % world);
    }
  });
}

TEST_P(CommunicatorConformance, BatchesOfGroupsDoNotMeet) {
  ARMILLARY_NEEDS_RANKS(6);
  run(6, [](Communicator& comm) {
    const auto rows = comm.split(comm.rank() / 3, comm.rank());
    const auto columns = comm.split(comm.rank() % 3, -comm.rank());
    // Batches of all groups are under way on one lane at once.
    std::array<int, 3> out{};
    std::array<int, 3> in{};
    std::vector<Request> requests;
    const std::array<Communicator*, 3> groups{&comm, rows.get(), columns.get()};
    for (int i = 0; i < 3; ++i) {
      Communicator& group = *groups[i];
      const int P = group.world();
      out[i] = 100 * i + group.rank();
      const Strided from = whole(std::span(&out[i], 1));
      const Strided to = whole(std::span(&in[i], 1));
      const std::vector<Message> batch = {
          {Direction::Send, (group.rank() + 1) % P, 3, {&from, 1}},
          {Direction::Receive, (group.rank() + P - 1) % P, 3, {&to, 1}}};
      for (Request& request : group.start(batch)) requests.push_back(std::move(request));
    }
    for (std::size_t i = 0; i < 3; ++i) {
      Communicator& group = *groups[i];
      group.wait(requests[2 * i]);
      group.wait(requests[2 * i + 1]);
      EXPECT_EQ(in[i], 100 * int(i) + (group.rank() + group.world() - 1) % group.world());
    }
  });
}

/// Counts the groups that have ended.
class Ended : public RankState {
 public:
  explicit Ended(std::vector<const Communicator*>& groups) : groups_(groups) {}
  void forget(const Communicator& group) noexcept override { groups_.push_back(&group); }

 private:
  std::vector<const Communicator*>& groups_;
};

TEST_P(CommunicatorConformance, GroupsOfARankHaveOneState) {
  ARMILLARY_NEEDS_RANKS(4);
  run(4, [](Communicator& comm) {
    std::vector<const Communicator*> ended;
    Communicator& root = comm.root();  // Another group if `comm` itself was split.
    EXPECT_EQ(comm.root_rank(comm.rank()), root.rank());
    EXPECT_EQ(root.rank_state(), nullptr);
    {
      const auto before = comm.split(0, 0);  // There was nothing to tell at its end.
    }
    comm.rank_state() = std::make_unique<Ended>(ended);
    auto backwards = comm.split(0, -comm.rank());
    auto pair = backwards->split(comm.rank() / 2, 0);
    const auto alone = group_of_one(*pair);
    for (Communicator* const group : {backwards.get(), pair.get(), alone.get()}) {
      EXPECT_EQ(&group->root(), &root);
      EXPECT_EQ(&group->rank_state(), &root.rank_state());
      EXPECT_EQ(group->root_rank(group->rank()), root.rank());
    }
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(root.root_rank(rank), rank);
      EXPECT_EQ(backwards->root_rank(rank), comm.root_rank(3 - rank));
    }
    EXPECT_EQ(pair->root_rank(1 - pair->rank()), comm.root_rank(comm.rank() ^ 1));
    EXPECT_TRUE(ended.empty());
    const Communicator* const first = pair.get();
    pair.reset();
    EXPECT_EQ(ended, std::vector<const Communicator*>{first});
    const Communicator* const second = backwards.get();
    backwards.reset();
    EXPECT_EQ(ended, (std::vector<const Communicator*>{first, second}));
    comm.rank_state().reset();
  });
}

TEST_P(CommunicatorConformance, SplitAgainAndAgain) {
  ARMILLARY_NEEDS_RANKS(4);
  run(4, [](Communicator& comm) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      // Ranks 0 and 1 have taken more lanes than the others when all ranks split again.
      const auto pair = comm.split(comm.rank() < 2 ? 0 : -1, 0);
      if (pair) {
        EXPECT_EQ(from_previous(*pair, 1, comm.rank()), 1 - comm.rank());
      }
      const auto again = pair ? pair->split(0, 0) : nullptr;
      if (again) {
        EXPECT_EQ(from_previous(*again, 1, comm.rank()), 1 - comm.rank());
      }
      const auto all = comm.split(0, repeat % 2 == 0 ? comm.rank() : -comm.rank());
      const int previous = (all->rank() + 3) % 4;
      EXPECT_EQ(from_previous(*all, 1, comm.rank()), repeat % 2 == 0 ? previous : 3 - previous);
    }
  });
}

TEST_P(CommunicatorConformance, AFailureOfOneGroupEndsAll) {
  ARMILLARY_NEEDS_RANKS(4);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto body = [](Communicator& comm) {
    const auto pair = comm.split(comm.rank() / 2, 0);
    if (comm.rank() == 3) return pair->abort("out of memory");
    const auto text_of = [](const std::function<void()>& call) -> std::string {
      try {
        call();
      } catch (const CommError& e) {
        return e.what();
      }
      return "no exception";
    };
    // Rank 2 waits for the rank that left, rank 0 in another group, and rank 1 in the group of all.
    const std::string required = "rank 3 failed: out of memory";
    EXPECT_EQ(text_of([&] { comm.rank() == 1 ? barrier(comm) : barrier(*pair); }), required);
    EXPECT_EQ(text_of([&] { pair->throw_if_failed(); }), required);
    EXPECT_EQ(text_of([&] { comm.split(0, 0); }), required);
  };
  EXPECT_THROW(run(4, body), CommError);
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 15 + GetParam().start_s);
}

TEST_P(CommunicatorConformance, GroupsHaveDeadlinesOfTheirOwn) {
  ARMILLARY_NEEDS_RANKS(3);
  EXPECT_THROW(run(3,
                   [](Communicator& comm) {
                     const auto group = comm.split(0, -comm.rank());
                     group->set_timeout(0.05);
                     if (group->rank() != 0) return;
                     try {
                       from_previous(*group, 0, 1);
                       ADD_FAILURE() << "no exception";
                     } catch (const CommError& e) {
                       EXPECT_THAT(e.what(), testing::ContainsRegex("after 0\\.(0[5-9]|[1-9])"));
                     }
                   }),
               CommError);
}

}  // namespace
}  // namespace armillary::comm
