// spec_test.cpp: the parsers of text specifications, such as `name:key=value,..`: what they read,
// and the exact text of every refusal with its nearest choice.
#include "armillary/core/spec.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/error.h"

namespace armillary {
namespace {

using testing::ElementsAre;
using testing::ThrowsMessage;

void expect_error(const std::function<void()>& read, const std::string& error) {
  EXPECT_THAT(read, ThrowsMessage<InvalidArgument>(error));
}

TEST(Split, KeepsEmptyParts) {
  EXPECT_THAT(split("a,b,c", ','), ElementsAre("a", "b", "c"));
  EXPECT_THAT(split(",a,", ','), ElementsAre("", "a", ""));
  EXPECT_THAT(split("", ','), ElementsAre(""));
}

TEST(SplitKeyValue, EndsTheKeyAtTheFirstEqualsSign) {
  const auto sides_of = [](std::string_view part) {
    const std::optional<KeyValue> pair = split_key_value(part);
    return pair ? std::vector{pair->key, pair->value} : std::vector<std::string_view>{};
  };
  EXPECT_THAT(sides_of("left=4"), ElementsAre("left", "4"));
  EXPECT_THAT(sides_of("a=b=c"), ElementsAre("a", "b=c"));
  EXPECT_THAT(sides_of(" a = b "), ElementsAre(" a ", " b "));
}

TEST(SplitKeyValue, KeepsEmptySides) {
  const std::optional<KeyValue> no_value = split_key_value("left=");
  ASSERT_TRUE(no_value.has_value());
  EXPECT_EQ(no_value->key, "left");
  EXPECT_EQ(no_value->value, "");
  const std::optional<KeyValue> no_key = split_key_value("=4");
  ASSERT_TRUE(no_key.has_value());
  EXPECT_EQ(no_key->key, "");
  EXPECT_EQ(no_key->value, "4");
  EXPECT_TRUE(split_key_value("=").has_value());
}

TEST(SplitKeyValue, FindsNothingWithoutAnEqualsSign) {
  EXPECT_FALSE(split_key_value("left").has_value());
  EXPECT_FALSE(split_key_value("").has_value());
}

TEST(ParseChoice, FindsTheIndexOrSaysWhatIsNear) {
  constexpr std::array<std::string_view, 3> kNames = {"causal", "full", "window"};
  EXPECT_EQ(parse_choice("mask", "causal", kNames), 0u);
  EXPECT_EQ(parse_choice("mask", "window", kNames), 2u);
  const std::string required = "' is not known; causal, full or window is required";
  expect_error([&] { parse_choice("mask", "ful", kNames); },
               "mask: 'ful" + required + "; nearest is 'full'");
  expect_error([&] { parse_choice("mask", "entanglement", kNames); },
               "mask: 'entanglement" + required);
}

TEST(ParseInteger, ReadsDigitsOnly) {
  EXPECT_EQ(parse_integer("seq", "0"), 0);
  EXPECT_EQ(parse_integer("seq", "9223372036854775807"), 9223372036854775807);
  EXPECT_EQ(parse_integer("lo", "-12", {-12, 12}), -12);
  for (const std::string text : {"", " 1", "1 ", "+1", "-1", "1.0", "1e3", "0x10", "1k", "--1",
                                 "9223372036854775808", "99999999999999999999"}) {
    expect_error(
        [&] { parse_integer("seq", text); },
        "seq: '" + text + "' given; a whole number from 0 to 9223372036854775807 is required");
  }
  expect_error(
      [] {
        parse_integer("lo", "-13", {-12, 12});
      },
      "lo: '-13' given; a whole number from -12 to 12 is required");
}

TEST(ParseSpec, EndsTheNameAtTheFirstColon) {
  EXPECT_EQ(parse_spec("usp").name, "usp");
  EXPECT_FALSE(parse_spec("usp").arguments.has_value());
  EXPECT_EQ(parse_spec("usp:u=4:x").name, "usp");
  EXPECT_EQ(parse_spec("usp:u=4:x").arguments, "u=4:x");
  EXPECT_EQ(parse_spec("usp:").arguments, "");
}

TEST(Arguments, TakesValuesAndKeysApart) {
  const Arguments arguments("mask documents", "5,7,within=full", {"within", "left"});
  EXPECT_THAT(arguments.values(), ElementsAre("5", "7"));
  EXPECT_EQ(arguments.find("within"), "full");
  EXPECT_FALSE(arguments.find("left").has_value());
  EXPECT_EQ(Arguments("usp", "u=4", {"u"}).integer("u"), 4);
  EXPECT_EQ(Arguments("mask prefix", "4", {}).value("the prefix"), "4");
  EXPECT_NO_THROW(Arguments("ring", std::nullopt, {}).refuse_values());
}

TEST(Arguments, RefusesWhatItDoesNotUnderstand) {
  const std::string empty = "' has an empty part; a value is required after ':', ',' and '='";
  for (const std::string text : {"", ",", "u=4,", ",u=4", "u=", "u=4,,r=2"}) {
    expect_error(
        [&] {
          Arguments("usp", text, {"u", "r"});
        },
        fmt::format("usp: '{}{}", text, empty));
  }
  expect_error(
      [] {
        Arguments("usp", "v=4", {"u", "r"});
      },
      "usp key: 'v' is not known; u or r is required; nearest is 'u'");
  expect_error(
      [] {
        Arguments("usp", "=4", {"u", "r"});
      },
      "usp key: '' is not known; u or r is required; nearest is 'u'");
  expect_error([] { Arguments("ring", "u=4", {}); }, "ring: key 'u' given; no key is allowed");
  expect_error([] { Arguments("usp", "u=4,u=4", {"u"}); },
               "usp: key 'u' is given twice; once is required");
  expect_error([] { Arguments("usp", "u=four", {"u"}).integer("u"); },
               "usp u: 'four' given; a whole number from 0 to 9223372036854775807 is required");
  expect_error(
      [] {
        Arguments("usp", "u=0", {"u"}).integer("u", {1, 8});
      },
      "usp u: '0' given; a whole number from 1 to 8 is required");
  expect_error(
      [] {
        Arguments("usp", "r=4", {"u", "r"}).integer("u");
      },
      "usp: no u given; u=NUMBER is required");
  expect_error([] { Arguments("usp", "4", {"u"}).refuse_values(); },
               "usp: '4' given; no value without a key is allowed");
  expect_error([] { Arguments("prefix", "1,2", {}).value("the prefix"); },
               "prefix: 2 values given; exactly one, the prefix, is required");
}

}  // namespace
}  // namespace armillary
