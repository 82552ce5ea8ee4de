// label_test.cpp: texts of fixed size that still differ where the texts do.
#include "armillary/comm/label.h"

#include <gtest/gtest.h>

namespace armillary::comm {
namespace {

TEST(Label, KeepsAShortText) {
  const Label label = label_of("all_gather of 3 fp32");
  EXPECT_STREQ(label.text.data(), "all_gather of 3 fp32");
  EXPECT_TRUE(is_same(&label, &label));
  EXPECT_FALSE(is_same(&label, nullptr));
  EXPECT_TRUE(is_same(nullptr, nullptr));
}

TEST(Label, OfALongTextEndsWithItsHash) {
  const std::string text = "all_gather of 1000 fp32 as 1+2+3+4+5+6+7+8+9+10+11+12+13+14";
  const Label label = label_of(text);
  EXPECT_EQ(label.text.back(), '\0');
  EXPECT_EQ(std::string(label.text.data()).substr(0, 44), text.substr(0, 44));
  EXPECT_NE(label, label_of(text + "0")) << "texts that differ behind the end";
}

TEST(Label, DifferenceNamesTheLowerRankFirst) {
  const Label three = label_of("all_gather of 3 fp32");
  const Label four = label_of("all_gather of 4 fp32");
  EXPECT_EQ(difference_text(2, &four, 0, &three),
            "rank 0 calls all_gather of 3 fp32, rank 2 calls all_gather of 4 fp32; the same call "
            "is required on all ranks");
  EXPECT_EQ(difference_text(0, nullptr, 1, &four),
            "rank 0 calls a function that is not a collective, rank 1 calls all_gather of "
            "4 fp32; the same call is required on all ranks");
}

}  // namespace
}  // namespace armillary::comm
