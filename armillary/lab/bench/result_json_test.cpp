// result_json_test.cpp: the lines of a bench, made from medians that are given, against quotients
// and counts made by hand.
#include "armillary/lab/bench/result_json.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace armillary::bench {
namespace {

using Json = nlohmann::ordered_json;

TEST(ResultJson, OfAKernel) {
  for (const auto& [pass, products] :
       {std::pair(plan::Pass::Forward, 2), std::pair(plan::Pass::Backward, 5)}) {
    const KernelCase example{.head_dim = 8,
                             .tokens = 32,
                             .heads = 4,
                             .kv_heads = 2,
                             .pass = pass,
                             .threads = 2,
                             .sdpa = true};
    const KernelRate rate(example);
    EXPECT_EQ(at::get_num_threads(), 2);
    EXPECT_EQ(rate.facts().flops, products * 2.0 * 8 * 4 * (32 * 33 / 2));
    const TurnSummary turns{.count = 3, .medians = {{"kernel", 6}, {"peak", 24}, {"sdpa", 4}}};
    const auto lines = result_lines(example, rate, turns);
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(lines[0]["gflops"], 6);
    EXPECT_EQ(lines[0]["of_peak"], 0.25);
    EXPECT_EQ(lines[0]["sdpa_gflops"], 4);
    EXPECT_EQ(lines[0]["over_sdpa"], 1.5);
  }
}

/// Zigzag: rank 0 of 2 holds the first and the last quarter.
TEST(ResultJson, OfAKernelOnTheTokensOfARank) {
  const KernelCase example{
      .head_dim = 4, .tokens = 8, .heads = 1, .kv_heads = 1, .layout = "zigzag", .world = 2};
  // Queries 0 to 3 of 16 see 1 to 4 keys here, 12 to 15 the first four and 1 to 4.
  EXPECT_EQ(KernelRate(example).facts().flops, 4.0 * 4 * (10 + 4 * 4 + 10));
}

TEST(ResultJson, TheFlashKernelIsAskedOnlyWhereItKnowsTheMask) {
  const auto sides_of = [](const char* mask) {
    return KernelRate({.head_dim = 8, .tokens = 16, .mask = mask, .sdpa = true}).sides().size();
  };
  EXPECT_EQ(sides_of("causal"), 3U);
  EXPECT_EQ(sides_of("full"), 3U);
  EXPECT_EQ(sides_of("window:left=3,right=0"), 2U);
}

TEST(ResultJson, OfALayer) {
  const LayerCase example{.head_dim = 8, .tokens = 16, .heads = 2, .kv_heads = 1, .world = 2};
  LayerRate rate(example);
  const double pairs = 32 * 33 / 2;
  EXPECT_EQ(rate.flops(false), 4.0 * 8 * 2 * pairs);
  EXPECT_EQ(rate.flops(true), 14.0 * 8 * 2 * pairs);
  ASSERT_EQ(rate.facts().size(), 1U);
  EXPECT_GT(rate.facts()[0].ops[0], 3);
  EXPECT_GT(rate.facts()[0].ops[1], 2 * rate.facts()[0].ops[0]);
  TurnSummary turns{.count = 5};
  turns.medians = {{"peak", 50}};
  for (const std::string pass : {"forward", "forward+backward"}) {
    turns.medians["one_rank " + pass] = 8e-3;
    turns.medians["busy_rank " + pass] = 10e-3;
    turns.medians["ring " + pass] = 5e-3;
    turns.medians["ring kernels " + pass] = 4e-3;
    turns.leasts["ring " + pass] = 4.5e-3;
    turns.leasts["ring kernels " + pass] = 3.75e-3;
  }
  const auto lines = result_lines(example, rate, turns);
  ASSERT_EQ(lines.size(), 2U);
  for (const int both : {0, 1}) {
    const Json& line = lines[static_cast<std::size_t>(both)];
    const double gflops = rate.flops(both != 0) / 5e-3 / 1e9;
    const auto is = [&](const char* key, double expected) {
      EXPECT_NEAR(line.at(key).get<double>(), expected, 1e-9 * expected) << key << " pass " << both;
    };
    is("seconds", 5e-3);
    is("gflops", gflops);
    is("of_peak", gflops / 50);
    is("efficiency", 0.8);
    is("efficiency_busy", 1);
    is("over_kernels_us", 1000);
    is("least_over_kernels_us", 750);
    is("us_an_op", 1000.0 / static_cast<double>(rate.facts()[0].ops[both]));
  }
}

TEST(ResultJson, SaysWhichTurnsAreLeftOut) {
  const auto line_of = [](const TurnSummary& turns) {
    return result_lines(CoresCase(), CoresRate({}), turns)[0];
  };
  const TurnSummary none{.count = 3, .medians = {{kCoresSide, 1.9}}};
  EXPECT_EQ(left_out_text(none), "no turn of 3 left out");
  EXPECT_EQ(line_of(none)["left_out_turns"], 0);
  const TurnSummary some{.count = 3, .medians = {{kCoresSide, 1.9}}, .left_out = {1.312, 1.5}};
  EXPECT_EQ(left_out_text(some),
            "2 of 5 turns left out: two cores had 1.31, 1.50 of the rate of one; 1.8 is required");
  EXPECT_EQ(line_of(some)["turns"], 3);
  EXPECT_EQ(line_of(some)["left_out_turns"], 2);
  EXPECT_EQ(line_of(some)["left_out_cores"], Json::array({1.312, 1.5}));
  EXPECT_EQ(line_of(some)["all_left_out"], false);
  const TurnSummary all{
      .count = 1, .medians = {{kCoresSide, 1}}, .left_out = {1}, .all_left_out = true};
  EXPECT_EQ(left_out_text(all),
            "1 of 1 turns left out: two cores had 1.00 of the rate of one; 1.8 is required; NO "
            "turn had two cores: the medians above are of all of them");
  EXPECT_EQ(line_of(all)["all_left_out"], true);
  const TurnSummary unasked{.count = 3, .medians = {{"kernel", 6}, {"peak", 24}}};
  EXPECT_EQ(left_out_text(unasked), "");
  const KernelCase one_thread{.head_dim = 8, .tokens = 16};
  EXPECT_FALSE(
      result_lines(one_thread, KernelRate(one_thread), unasked)[0].contains("left_out_turns"));
}

TEST(ResultJson, OfMergesIsOverTheFasterOfTheTwoSpeedsOfMemory) {
  const MergeCase example{.tokens = 32, .heads = 2, .head_dim = 8};
  const MergeRate rate(example);
  EXPECT_EQ(rate.tensor_bytes(), 32 * 2 * 8 * 4);
  for (const auto& [loop, memcpy] : {std::pair(8.0, 5.0), std::pair(5.0, 8.0)}) {
    const TurnSummary turns{
        .count = 3, .medians = {{"merge", 4}, {"add", 6}, {"loop", loop}, {"memcpy", memcpy}}};
    const auto lines = result_lines(example, rate, turns);
    ASSERT_EQ(lines.size(), 2U);
    EXPECT_EQ(lines[0]["of_memory"], 0.5);
    EXPECT_EQ(lines[1]["of_memory"], 0.75);
  }
}

TEST(ResultJson, OfTurnsHasAllSidesAndContenders) {
  const std::string silent = "echo 'not there' >&2";
  const Contenders contenders(std::vector<std::string>{silent}, 30);
  const TurnSummary turns{.count = 3,
                          .medians = {{"a", 0.25}, {kCoresSide, 1.9}},
                          .leasts = {{"a", 0.2}, {kCoresSide, 1.85}},
                          .left_out = {1.5},
                          .reasons = {{"b", "no backward"}}};
  EXPECT_EQ(turns_json(turns, contenders), Json::parse(R"({
    "bench": "turns", "turns": 3,
    "left_out_turns": 1, "left_out_cores": [1.5], "all_left_out": false,
    "medians": {"a": 0.25, "cores": 1.9}, "leasts": {"a": 0.2, "cores": 1.85},
    "reasons": {"b": "no backward"},
    "contenders": [{"command": "echo 'not there' >&2", "facts": {}, "reason": "not there"}]})"));
  EXPECT_THAT(turns_text(turns, contenders),
              testing::ElementsAre("a: median 0.25, least 0.2", "cores: median 1.9, least 1.85",
                                   "b: not measured: no backward",
                                   "`echo 'not there' >&2` takes no turns: not there"));
}

}  // namespace
}  // namespace armillary::bench
