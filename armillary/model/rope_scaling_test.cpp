// rope_scaling_test.cpp: frequencies as transformers 5.24 computes them (ROPE_INIT_FUNCTIONS in
// fp32, theta 10000, heads of 16), texts there and back, and what is refused.
#include "armillary/model/rope_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::model {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kLongRope =
    "longrope:factor=4,original=64,short=1;1.1;1.2;1.3;1.4;1.5;1.6;1.7,long=1;2;3;4;5;6;7;8";

struct RopeCase {
  std::string text;
  std::int64_t seq_len;
  std::vector<double> frequencies;
  double scale = 1;
};

const std::vector<RopeCase>& rope_cases() {
  static const std::vector<RopeCase> cases{
      {"none",
       0,
       {1.0, 0.31622776, 0.1, 0.031622779, 0.0099999998, 0.0031622779, 0.001, 0.00031622779}},
      {"linear:factor=4",
       0,
       {0.25, 0.079056941, 0.025, 0.0079056947, 0.0024999999, 0.00079056947, 0.00025000001,
        7.9056947e-05}},
      {"dynamic:factor=2,original=64",
       200,
       {1.0, 0.24952847, 0.062264454, 0.015536753, 0.0038768628, 0.00096738752, 0.00024139074,
        6.0233862e-05}},
      {"dynamic:factor=2,original=64",
       64,
       {1.0, 0.31622776, 0.1, 0.031622779, 0.0099999998, 0.0031622779, 0.001, 0.00031622779}},
      {"llama3:factor=8,original=64,low=1,high=4",
       512,
       {1.0, 0.24438459, 0.013042256, 0.0039528473, 0.00125, 0.00039528473, 0.00012500001,
        3.9528473e-05}},
      {"yarn:factor=4,original=64",
       256,
       {1.0, 0.23717082, 0.049999997, 0.0079056947, 0.0024999999, 0.00079056947, 0.00025000001,
        7.9056947e-05},
       1.138629436111989},
      {"yarn:factor=4,original=640,attention=1.5,beta_fast=16,beta_slow=2,truncate=false",
       2560,
       {1.0, 0.31622776, 0.083712593, 0.013341174, 0.0024999999, 0.00079056947, 0.00025000001,
        7.9056947e-05},
       1.5},
      {kLongRope,
       64,
       {1.0, 0.28747976, 0.083333336, 0.024325214, 0.0071428572, 0.0021081853, 0.00062499999,
        0.00018601633},
       1.1547005383792517},
      {kLongRope,
       65,
       {1.0, 0.15811388, 0.033333335, 0.0079056947, 0.0020000001, 0.00052704633, 0.00014285714,
        3.9528473e-05},
       1.1547005383792517}};
  return cases;
}

TEST(RopeScaling, FrequenciesAreThoseOfTransformers) {
  for (const RopeCase& example : rope_cases()) {
    const RotaryFrequencies got =
        rotary_frequencies(parse_rope_scaling(example.text),
                           {.head_dim = 16, .theta = 10000, .seq_len = example.seq_len});
    EXPECT_NEAR(got.scale, example.scale, 1e-12) << example.text;
    ASSERT_EQ(got.of_pair.size(), 8U);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(got.of_pair[i], example.frequencies[i], 1e-6 * example.frequencies[i])
          << example.text << " pair " << i;
    }
  }
}

TEST(RopeScaling, TextsGiveThemselvesBack) {
  for (const RopeCase& example : rope_cases()) {
    const RopeScaling scaling = parse_rope_scaling(example.text);
    EXPECT_EQ(parse_rope_scaling(to_string(scaling)), scaling) << example.text;
  }
  EXPECT_EQ(to_string(parse_rope_scaling("yarn:original=64,truncate=true,factor=1,beta_slow=1")),
            "yarn:factor=1,original=64");
  EXPECT_EQ(to_string(RopeScaling()), "none");
}

TEST(RopeScaling, WhatHasNoMeaningIsRefused) {
  const auto refused = [](const std::string& text, const std::string& part) {
    EXPECT_THAT([&] { parse_rope_scaling(text); },
                ThrowsMessage<InvalidArgument>(testing::AllOf(
                    testing::StartsWith("recipe: model.rope_scaling"), HasSubstr(part))))
        << text;
  };
  refused("lnear:factor=2",
          "'lnear' is not known; none, linear, dynamic, llama3, yarn or longrope");
  refused("none:factor=2", "no key is allowed");
  refused("linear", "no factor given; factor=NUMBER is required");
  refused("linear:factor=0.5", "factor: '0.5' given; a number from 1 on");
  refused("linear:factor=nan", "'nan' given");
  refused("linear:factor=1e999", "'1e999' given");
  refused("linear:factr=2", "nearest is 'factor'");
  refused("dynamic:factor=2,original=1", "'1' given; a whole number from 2");
  refused("llama3:factor=8,low=4,high=4,original=64", "high 4 with low 4; above low");
  refused("yarn:factor=2,original=64,truncate=yes", "truncate: 'yes' given; true or false");
  refused("yarn:factor=2,original=64,beta_fast=1,beta_slow=2", "beta_fast 1 with beta_slow 2");
  refused("longrope:original=64,short=1;0,long=1;1", "short: '0' given");
  EXPECT_THAT([] { rotary_frequencies(parse_rope_scaling(kLongRope), {.head_dim = 8}); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("8 divisors given; 4, half of a head of 8, are required")));
  EXPECT_THAT(
      [] {
        rotary_frequencies(parse_rope_scaling("dynamic:factor=2,original=64"), {.head_dim = 2});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("heads of 2 dims; at least 4")));
  EXPECT_THAT(
      [] {
        rotary_frequencies(parse_rope_scaling("yarn:factor=2,original=64"),
                           {.head_dim = 8, .theta = 1});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("model.rope_theta 1; above 1 is required")));
}

}  // namespace
}  // namespace armillary::model
