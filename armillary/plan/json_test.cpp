// json_test.cpp: the JSON of plans: the documented text, the way back for every strategy, pass,
// mask and layout, and a refusal with the path of the key for every edit.
#include "armillary/plan/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/strategy.h"

namespace armillary::plan {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

/// Not a plan that does anything, but one with every part of the format.
Plan small_plan() {
  const Problem problem{.world = 1,
                        .heads = 2,
                        .kv_heads = 1,
                        .head_dim = 8,
                        .value_dim = 4,
                        .dtype = Dtype::Bf16,
                        .mask = causal_mask({.q = 2, .kv = 2}, Align::Start),
                        .layout = parse_layout("striped:3")};
  RankProgram program;
  program.words = &attention_words();
  program.slots = {{.bytes = 64, .external = true}};
  program.tiles = {
      {.tensor = Tensor::DQ, .partial = true, .heads = {0, 2}, .blocks = {0}, .slot = 0}};
  program.ops = {
      {.kind = OpKind::Send,
       .lane = 1,
       .step = 0,
       .peer = 3,
       .collective = Collective::AllToAll,
       .views = {{.tile = 0, .heads = {0, 1}, .blocks = {0}}}},
      {.kind = OpKind::Clear, .step = 1, .views = {{.tile = 0, .heads = {1, 2}, .blocks = {0}}}}};
  program.inputs = {0};
  program.saved = {0, 0};
  return {.problem = problem,
          .strategy = "by hand",
          .pass = Pass::Backward,
          .blocks = {.q = {{.owner = 0, .runs = {{.begin = 0, .count = 2}}}}, .kv = {}},
          .ranks = {program}};
}

constexpr const char* kSmallJson =
    R"({"format_version":4,"strategy":"by hand","pass":"backward",)"
    R"("problem":{"world":1,"batch":1,"heads":2,"kv_heads":1,"head_dim":8,"value_dim":4,)"
    R"("dtype":"bf16","return_lse":false,"wire":"accumulator","layout":"striped:3",)"
    R"("mask":{"q_len":2,"kv_len":2,"bands":[{"q":[0,2],"k":[0,2],"lo":-1,"hi":0}]}},)"
    R"("blocks":{"q":[{"owner":0,"runs":[{"begin":0,"count":2,"step":1,"width":1}]}],"kv":[]},)"
    R"("ranks":[{"rank":0,"slots":[{"bytes":64,"external":true}],)"
    R"("tiles":[{"tensor":"dq","partial":true,"heads":[0,2],"blocks":[0],"slot":0,"narrow":false}],)"
    R"("inputs":[0],"outputs":[],"saved":[0,0],)"
    R"("ops":[{"op":"send","lane":1,"step":0,"peer":3,"collective":"all_to_all",)"
    R"("operands":{"src":{"tile":0,"heads":[0,1],"blocks":[0]}}},)"
    R"({"op":"clear","lane":0,"step":1,)"
    R"("operands":{"dst":{"tile":0,"heads":[1,2],"blocks":[0]}}}]}]})";

TEST(Json, WritesTheDocumentedFormat) {
  EXPECT_EQ(to_json(small_plan()), kSmallJson);
}

TEST(Json, ReadsItBack) {
  EXPECT_EQ(parse_json(kSmallJson), small_plan());
}

TEST(Json, RoundTripsEveryStrategyPassMaskAndLayout) {
  const std::array masks{"full", "window:left=2,right=0,align=end", "prefix:3,align=start",
                         "bands:0-5/0-3/..;5-9/2-10/-4..1"};
  for (const char* strategy : {"ring", "allgather", "ulysses", "usp:u=2"}) {
    for (const char* mask : masks) {
      for (const char* layout : {"contiguous", "zigzag", "striped:2", "balanced"}) {
        for (const Pass pass : {Pass::Forward, Pass::Backward}) {
          const Problem problem{.world = 4,
                                .heads = 4,
                                .kv_heads = 2,
                                .mask = parse_mask(mask, {.q = 9, .kv = 10}),
                                .layout = parse_layout(layout),
                                .return_lse = true};
          const Plan plan = make_plan(problem, parse_strategy(strategy), pass);
          EXPECT_EQ(parse_json(to_json(plan)), plan) << strategy << " " << mask << " " << layout;
        }
      }
    }
  }
}

TEST(Json, RoundTripsPlansThatMakeNoSense) {
  Plan plan = small_plan();
  plan.ranks[0].rank = -7;
  plan.ranks[0].tiles[0].slot = 99;
  plan.ranks[0].ops[1].views[0] = {.tile = -1, .heads = {5, 2}, .blocks = {}};
  EXPECT_EQ(parse_json(to_json(plan)), plan);
}

std::string refusal(const std::string& text) {
  try {
    parse_json(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

/// The error text of the parser if `from` in the small plan becomes `to`.
std::string refusal(const std::string& from, const std::string& to) {
  std::string text = kSmallJson;
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return refusal(text.replace(place, from.size(), to));
}

TEST(Json, RefusesAnotherVersion) {
  EXPECT_EQ(refusal(R"("format_version":4)", R"("format_version":1)"),
            "parse_json: format_version is 1; 4 is required");
}

TEST(Json, NamesTheKeyThatIsMissing) {
  EXPECT_EQ(refusal(R"("format_version":4,)", ""),
            "parse_json: format_version is missing; this key is required");
  EXPECT_EQ(refusal(R"("lane":1,)", ""),
            "parse_json: ranks[0].ops[0].lane is missing; this key is required");
  EXPECT_EQ(refusal(R"("peer":3,)", ""),
            "parse_json: ranks[0].ops[0].peer is missing; this key is required");
  EXPECT_EQ(refusal(R"("width":1)", R"("width":1},{"begin":0,"count":1,"step":1)"),
            "parse_json: blocks.q[0].runs[1].width is missing; this key is required");
}

TEST(Json, NamesTheKeyThatIsNotKnown) {
  EXPECT_EQ(
      refusal(R"("slot":0)", R"("slot":0,"slots":1)"),
      "parse_json: ranks[0].tiles[0].slots is not a known key; tensor, partial, heads, blocks, "
      "slot or narrow is required; nearest: 'slot'");
  EXPECT_EQ(
      refusal(R"("dst":)", R"("src":)"),
      "parse_json: ranks[0].ops[1].operands.src is not a known key; dst is required; nearest: "
      "'dst'");
  EXPECT_EQ(refusal(R"("step":1,"operands")", R"("step":1,"peer":0,"operands")"),
            "parse_json: ranks[0].ops[1].peer is 0; no peer for clear is required");
}

TEST(Json, RefusesAKeyGivenTwice) {
  EXPECT_THAT(refusal(R"("lane":1,)", R"("lane":1,"lane":2,)"),
              StartsWith("parse_json: the text has key 'lane' twice in one object at byte "));
  EXPECT_THAT(refusal(R"("ranks":)", R"("pass":"forward","ranks":)"),
              StartsWith("parse_json: the text has key 'pass' twice in one object at byte "))
      << "other objects between";
}

TEST(Json, RefusesDepthThatNoPlanHas) {
  const auto nested = [](int arrays) {
    return refusal(std::string(arrays, '[') + '1' + std::string(arrays, ']'));
  };
  const std::string too_deep =
      "parse_json: the text is nested deeper than 16 at byte 16; a plan as to_json writes it is "
      "required";
  EXPECT_EQ(nested(16),
            "parse_json: the text is [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]; an object is required");
  EXPECT_EQ(nested(17), too_deep);
  EXPECT_EQ(nested(100'000), too_deep);
}

TEST(Json, NamesTheValueOfAnotherType) {
  EXPECT_EQ(refusal(R"("lane":1)", R"("lane":"x")"),
            "parse_json: ranks[0].ops[0].lane is \"x\"; an integer of 16 bits is required");
  EXPECT_EQ(refusal(R"("lane":1)", R"("lane":1.5)"),
            "parse_json: ranks[0].ops[0].lane is 1.5; an integer of 16 bits is required");
  EXPECT_EQ(refusal(R"("partial":true)", R"("partial":1)"),
            "parse_json: ranks[0].tiles[0].partial is 1; true or false is required");
  EXPECT_EQ(
      refusal(R"("heads":[0,1])", R"("heads":[0,1,2])"),
      "parse_json: ranks[0].ops[0].operands.src.heads is [0,1,2]; an array of begin and end is "
      "required");
  EXPECT_EQ(refusal(R"("inputs":[0])", R"("inputs":{})"),
            "parse_json: ranks[0].inputs is {}; an array is required");
  EXPECT_EQ(refusal(R"("strategy":"by hand")", R"("strategy":null)"),
            "parse_json: strategy is null; a string is required");
}

TEST(Json, RefusesNumbersThatDoNotFit) {
  EXPECT_EQ(refusal(R"("peer":3)", R"("peer":3000000000)"),
            "parse_json: ranks[0].ops[0].peer is 3000000000; an integer of 32 bits is required");
  EXPECT_EQ(refusal(R"("peer":3)", R"("peer":-3000000000)"),
            "parse_json: ranks[0].ops[0].peer is -3000000000; an integer of 32 bits is required");
  EXPECT_EQ(refusal(R"("bytes":64)", R"("bytes":9223372036854775808)"),
            "parse_json: ranks[0].slots[0].bytes is 9223372036854775808; an integer of 64 bits is "
            "required");
}

TEST(Json, RefusesUnknownNames) {
  EXPECT_EQ(
      refusal(R"("op":"clear")", R"("op":"att")"),
      "parse_json: ranks[0].ops[1].op is \"att\"; send, recv, attend, attend_grad, merge, add, "
      "copy, clear, delta, finish, attend_all or attend_grad_all is required");
  EXPECT_EQ(refusal(R"("dtype":"bf16")", R"("dtype":"bf17")"),
            "parse_json: problem.dtype is \"bf17\"; fp64, fp32, bf16 or fp16 is required");
  EXPECT_EQ(refusal(R"("pass":"backward")", R"("pass":"both")"),
            "parse_json: pass is \"both\"; forward, backward or replay is required");
  EXPECT_EQ(refusal(R"("collective":"all_to_all")", R"("collective":"none")"),
            "parse_json: ranks[0].ops[0].collective is \"none\"; all_gather, reduce_scatter or "
            "all_to_all is required");
}

TEST(Json, RefusesProblemsThatAreNone) {
  EXPECT_THAT(refusal(R"("heads":2,)", R"("heads":0,)"), StartsWith("parse_json: problem: "));
  EXPECT_THAT(refusal(R"("layout":"striped:3")", R"("layout":"stripes")"),
              StartsWith("parse_json: problem.layout: "));
  EXPECT_THAT(refusal(R"("k":[0,2])", R"("k":[0,3])"), StartsWith("parse_json: problem.mask: "));
}

TEST(Json, RefusesTextThatIsNoJson) {
  for (const char* text : {"", "{", "[1,", "\"\xff\"", "nul", "{} {}"}) {
    EXPECT_THAT(refusal(text), StartsWith("parse_json: the text is no JSON at byte ")) << text;
    EXPECT_THAT(refusal(text), EndsWith("a plan as to_json writes it is required")) << text;
  }
  EXPECT_EQ(refusal("[]"), "parse_json: the text is []; an object is required");
}

}  // namespace
}  // namespace armillary::plan
