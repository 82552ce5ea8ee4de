#include "armillary/proof/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::proof {
namespace {

TEST(Verdict, KeepsTheGravestAndOfThoseTheFirst) {
  Verdict verdict;
  verdict.raise(Finding::RefusedInput, "a");
  verdict.raise(Finding::RefusedInput, "b");
  EXPECT_STREQ(verdict.text, "a");
  verdict.raise(Finding::Different, "c");
  verdict.raise(Finding::RefusedPlan, "d");
  EXPECT_STREQ(verdict.text, "c");
  EXPECT_EQ(verdict.finding, Finding::Different);
  verdict.raise(Finding::Fine, "e");
  EXPECT_STREQ(verdict.text, "c");
}

TEST(Verdict, OfALongTextBothEndsStay) {
  for (const std::size_t length : {502U, 503U, 504U, 2000U}) {
    const std::string text = "begin" + std::string(length - 8, '.') + "end";
    Verdict verdict;
    verdict.raise(Finding::RefusedInput, text);
    const std::string short_text = verdict.text;
    EXPECT_EQ(short_text.size(), std::min<std::size_t>(length, 503));
    EXPECT_THAT(short_text, testing::StartsWith("begin"));
    EXPECT_THAT(short_text, testing::EndsWith("end"));
    EXPECT_EQ(short_text == text, length < 504);
  }
}

// Each rank throws its own verdict, with the exception type of its own finding.
TEST(Verdict, IsThrownByAllRanks) {
  for (const int world : {1, 2, 5, 13}) {
    std::vector<std::string> texts(world);
    const auto body = [&](comm::Communicator& comm) {
      throw_together(comm, {});
      Verdict verdict;
      const bool is_of_plan = comm.rank() % 2 == 0;
      verdict.raise(is_of_plan ? Finding::RefusedPlan : Finding::Different,
                    "of rank " + std::to_string(comm.rank()));
      try {
        throw_together(comm, verdict);
      } catch (const PlanError& error) {
        texts[comm.rank()] = std::string("plan ") + error.what();
        comm.abort(error.what());
      } catch (const InvalidArgument& error) {
        texts[comm.rank()] = std::string("input ") + error.what();
        comm.abort(error.what());
      }
    };
    EXPECT_THROW(comm::run_ranks(world, body, {.timeout_s = 20}), CommError);
    for (int rank = 0; rank < world; ++rank) {
      EXPECT_EQ(texts[rank],
                (rank % 2 == 0 ? "plan of rank " : "input of rank ") + std::to_string(rank));
    }
  }
}

}  // namespace
}  // namespace armillary::proof
