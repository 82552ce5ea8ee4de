#include "armillary/core/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace armillary {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;

TEST(JsonText, KeepsTheOrderOfKeys) {
  const std::string text = R"({"b":1,"a":[true,null,"x"],"c":{}})";
  EXPECT_EQ(json_text(read_json_text(text)), text);
  EXPECT_EQ(read_json_text(text)["a"][2], "x");
}

TEST(JsonText, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", R"({"a":1}})", "nul"}) {
    EXPECT_THROW(read_json_text(text), Json::parse_error) << text;
  }
  EXPECT_THROW(json_text("\xff"), Json::type_error);
}

TEST(JsonText, TheWatcherMeetsEqualKeysAndMayRefuseThem) {
  const char* const text = R"({"a":1,"a":2})";
  EXPECT_EQ(read_json_text(text).size(), 1);
  std::vector<std::string> keys;
  const auto watch = [&](int /*depth*/, Json::parse_event_t event, Json& parsed) {
    if (event != Json::parse_event_t::key) return true;
    keys.push_back(parsed.get<std::string>());
    if (keys.size() == 2) throw std::invalid_argument("twice");
    return true;
  };
  EXPECT_THROW(read_json_text(text, watch), std::invalid_argument);
  EXPECT_THAT(keys, ElementsAre("a", "a"));
}

}  // namespace
}  // namespace armillary
