#include "armillary/core/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
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

TEST(JsonText, TellsOfKeysAndObjectsWhileItReads) {
  std::vector<std::string> met;
  read_json_text(R"({"a":{"b":2}})", [&](const JsonEvent& event) {
    const std::string depth = std::to_string(event.depth);
    if (event.begins_object) met.push_back("begin " + depth);
    if (event.is_key) met.push_back(event.value.get<std::string>() + " " + depth);
    if (event.ends_object) met.push_back("end " + depth);
  });
  EXPECT_THAT(met, ElementsAre("begin 0", "a 1", "begin 1", "b 2", "end 1", "end 0"));
}

TEST(JsonText, PassesOnWhatTheWatcherThrows) {
  EXPECT_THROW(read_json_text("[1]", [](const JsonEvent&) { throw std::string("no"); }),
               std::string);
}

}  // namespace
}  // namespace armillary
