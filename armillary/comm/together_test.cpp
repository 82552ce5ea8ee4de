#include "armillary/comm/together.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// Runs `action(rank)` together on 3 ranks and returns what each was told.
template <class E, class Action>
std::vector<std::string> told_on_each_rank(const Action& action) {
  std::vector<std::string> told(3);
  const auto body = [&](Communicator& comm) {
    try {
      run_together(comm, [&] { action(comm.rank()); });
    } catch (const E& error) {
      told[comm.rank()] = error.what();
    }
  };
  run_ranks(3, body, {.timeout_s = 20});
  return told;
}

TEST(RunTogether, GoesOnIfNoRankThrows) {
  EXPECT_EQ(told_on_each_rank<Error>([](int) {}), std::vector<std::string>(3));
}

TEST(RunTogether, TheErrorOfOneRankIsThatOfAll) {
  const auto io_error = [](int rank) {
    if (rank == 1) throw IoError("no disk");
  };
  EXPECT_EQ(told_on_each_rank<IoError>(io_error), std::vector<std::string>(3, "rank 1: no disk"));
  const auto several = [](int rank) {
    if (rank == 2) throw InvalidArgument("later");
    if (rank == 1) throw std::runtime_error(std::string(3000, 'x'));
  };
  EXPECT_EQ(told_on_each_rank<Error>(several),
            std::vector<std::string>(3, "rank 1: " + std::string(3000, 'x')));
}

TEST(RunTogether, TheSameErrorOnAllRanksIsOfNoneInParticular) {
  EXPECT_EQ(told_on_each_rank<InvalidArgument>([](int) { throw InvalidArgument("bad"); }),
            std::vector<std::string>(3, "bad"));
}

TEST(TextOfRank, IsThatOfTheRoot) {
  run_ranks(3, [](Communicator& comm) {
    EXPECT_EQ(text_of_rank(comm, 2, "of " + std::to_string(comm.rank())), "of 2");
    EXPECT_EQ(text_of_rank(comm, 0, comm.rank() == 0 ? "" : "other"), "");
  });
}

TEST(TextOfRank, IsMadeThereAloneAndItsErrorIsThatOfAll) {
  std::vector<std::string> told(3);
  const auto body = [&](Communicator& comm) {
    const auto make = [&]() -> std::string {
      EXPECT_EQ(comm.rank(), 1);
      throw PlanError("no plan");
    };
    try {
      text_of_rank(comm, 1, make);
    } catch (const PlanError& error) {
      told[comm.rank()] = error.what();
    }
  };
  run_ranks(3, body, {.timeout_s = 20});
  EXPECT_EQ(told, std::vector<std::string>(3, "no plan"));
}

}  // namespace
}  // namespace armillary::comm
