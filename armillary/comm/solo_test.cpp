#include "armillary/comm/solo.h"

#include <gtest/gtest.h>

#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

TEST(Solo, IsRankZeroOfOne) {
  const auto comm = make_solo();
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->world(), 1);
  EXPECT_NO_THROW(comm->throw_if_failed());
  EXPECT_THROW(comm->isend(0, 0, {}), InvalidArgument);
}

TEST(Solo, KeepsItsFirstFailure) {
  const auto comm = make_solo();
  comm->abort("first");
  comm->abort("second");
  try {
    comm->throw_if_failed();
    FAIL() << "the group has failed";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 0 failed: first");
  }
}

}  // namespace
}  // namespace armillary::comm
