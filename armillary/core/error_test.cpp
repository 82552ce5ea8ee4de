#include "armillary/core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace armillary {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Fail, ThrowsTheKindThatWasAskedFor) {
  EXPECT_THAT([] { fail<InvalidArgument>("ring: world {}; at least 1 is required", 0); },
              ThrowsMessage<InvalidArgument>("ring: world 0; at least 1 is required"));
  EXPECT_THAT([] { fail<IoError>("{}: cannot be read", "text.txt"); },
              ThrowsMessage<Error>("text.txt: cannot be read"));
}

TEST(Check, NamesPlaceAndCondition) {
  const int bands = 3;
  EXPECT_NO_THROW(ARMILLARY_CHECK(bands == 3));
  EXPECT_THAT([=] { ARMILLARY_CHECK(bands == 4); },
              ThrowsMessage<InternalError>(
                  AllOf(HasSubstr("error_test.cpp:"), EndsWith("invariant broken: bands == 4"))));
}

}  // namespace
}  // namespace armillary
