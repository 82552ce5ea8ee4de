#include "armillary/plan/each_rank.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace armillary::plan {
namespace {

TEST(EachRank, IsWorkedOnOnce) {
  for (const int world : {0, 1, 5, 64, 1000}) {
    std::vector<int> calls(world);
    for_each_rank(world, [&](Rank rank) { ++calls[rank]; });
    EXPECT_EQ(calls, std::vector<int>(world, 1));
  }
}

TEST(EachRank, OfFewStartsNoThread) {
  std::vector<std::thread::id> threads(8);
  for_each_rank(8, [&](Rank rank) { threads[rank] = std::this_thread::get_id(); });
  EXPECT_EQ(std::set(threads.begin(), threads.end()), std::set{std::this_thread::get_id()});
}

TEST(EachRank, PassesOnTheFailureOfTheLowest) {
  for (const int world : {7, 1000}) {
    std::vector<int> calls(world);
    try {
      for_each_rank(world, [&](Rank rank) {
        ++calls[rank];
        if (rank > 2) throw std::runtime_error(std::to_string(rank));
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()), "3");
    }
    EXPECT_EQ(calls, std::vector<int>(world, 1));
  }
}

}  // namespace
}  // namespace armillary::plan
