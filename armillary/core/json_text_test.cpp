#include "armillary/core/json_text.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace armillary {
namespace {

TEST(JsonText, KeepsTheOrderOfKeys) {
  const std::string text = R"({"b":1,"a":[true,null,"x"],"c":{}})";
  const JsonRead read = read_json_text(text);
  EXPECT_FALSE(read.fault);
  EXPECT_EQ(json_text(read.value), text);
  EXPECT_EQ(read.value["a"][2], "x");
}

std::string fault_of(std::string_view text) {
  const JsonRead read = read_json_text(text);
  return read.fault ? to_string(*read.fault, /*first_byte=*/100) : "none";
}

TEST(JsonText, SaysWhatIsWrongInItsOwnWords) {
  EXPECT_EQ(fault_of(""), "is no JSON at byte 101");
  EXPECT_EQ(fault_of("{"), "is no JSON at byte 102");
  EXPECT_EQ(fault_of(R"({"a":1}})"), "is no JSON at byte 108");
  EXPECT_EQ(fault_of("\"\xff\""), "is no JSON at byte 102");
  EXPECT_EQ(fault_of("[1e999]"), "has a number that is too large at byte 100");
  EXPECT_EQ(fault_of(R"([{"a":{"a":1}},{"a":2,"a":3}])"),
            "has key 'a' twice in one object at byte 122");
}

// The library prints, copies and compares by recursion: a hundred thousand levels end the stack.
TEST(JsonText, DepthIsBoundedBeforeItIsWalked) {
  const auto nested = [](int levels) {
    return std::string(levels, '[') + R"("[[\"[{")" + std::string(levels, ']');
  };
  EXPECT_EQ(fault_of(nested(kMostJsonDepth)), "none") << "brackets in a string are text";
  EXPECT_EQ(fault_of(nested(kMostJsonDepth + 1)), "is nested deeper than 64 at byte 164");
  EXPECT_EQ(fault_of(nested(1'000'000)), "is nested deeper than 64 at byte 164");
}

TEST(JsonText, WritesTextThatIsNoUtf8) {
  EXPECT_EQ(json_text("a\xff"), "\"a\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace armillary
