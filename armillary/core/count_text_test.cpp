#include "armillary/core/count_text.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace armillary {
namespace {

TEST(CountText, OneIsSingular) {
  EXPECT_EQ(count_of(1, "rank"), "1 rank");
  EXPECT_EQ(count_of(0, "rank"), "0 ranks");
  EXPECT_EQ(count_of(2, "rank"), "2 ranks");
  EXPECT_EQ(count_of(std::size_t{1}, "query", "queries"), "1 query");
  EXPECT_EQ(count_of(std::int64_t{3}, "query", "queries"), "3 queries");
  EXPECT_EQ(count_of(-1, "rank"), "-1 ranks");
}

}  // namespace
}  // namespace armillary
