// problem_test.cpp: problems and strategies that cannot be, given to `plan` and `verify`: exit code
// 2 and one line that says what was given, what is required, and the nearest legal choice.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

struct Refused {
  std::vector<std::string> flags;
  std::string text;
};

/// Both verbs read the same flags with the same code, so they alternate: starting a program that
/// links libtorch costs more than anything it does here.
void expect_all_refused(const std::vector<Refused>& table) {
  for (std::size_t row = 0; row < table.size(); ++row) {
    std::vector<std::string> arguments{row % 2 == 0 ? "plan" : "verify"};
    arguments.insert(arguments.end(), table[row].flags.begin(), table[row].flags.end());
    expect_error(arguments, testing::Eq(table[row].text));
  }
}

constexpr const char* kWhole = " given; a whole number from 1 to 2147483647 is required";
constexpr const char* kLength = " given; a whole number from 0 to 9223372036854775807 is required";

TEST(ProblemError, SizesThatAreNoSizes) {
  std::vector<Refused> table;
  for (const std::string flag : {"--world", "--heads", "--kv-heads", "--head-dim", "--value-dim"}) {
    for (const std::string size : {"0", "-1", "four", "2.5", "1e3", "99999999999999999999"}) {
      table.push_back(
          {{flag, size}, std::string(flag).append(": '").append(size).append("'").append(kWhole)});
    }
    table.push_back({{flag, ""}, flag + ": '' given; a value is required"});
  }
  for (const std::string flag : {"--seq", "--kv-seq"}) {
    for (const std::string size : {"-1", "4k", "99999999999999999999"}) {
      table.push_back(
          {{flag, size}, std::string(flag).append(": '").append(size).append("'").append(kLength)});
    }
  }
  table.push_back({{"--batch", "0"},
                   "--batch: '0' given; a whole number from 1 to 9223372036854775807 is required"});
  expect_all_refused(table);
}

TEST(ProblemError, NumbersThatOverflow) {
  expect_all_refused(
      {{{"--seq", "9223372036854775807"},
        "mask: 9223372036854775807 queries and 9223372036854775807 keys given; lengths of 0 to "
        "72057594037927936 are required"},
       {{"--batch", "9223372036854775807"},
        "problem: world x batch x heads x dim x tokens x bytes = 4 x 9223372036854775807 x 8 x 64 "
        "x "
        "4096 x 8; a product below 2^62 is required"},
       {{"--seq", "3500000000", "--heads", "1", "--head-dim", "1"},
        "problem: batch x heads x visible pairs = 1 x 1 x 6125000001750000000; a product below "
        "2^62 "
        "is required"}});
}

TEST(ProblemError, WorldsThatCannotBePlanned) {
  expect_all_refused(
      {{{"--world", "16384"},
        "plan: world 16384; the programs of at most 1024 ranks can be made together"},
       {{"--world", "99999999"}, "problem: world 99999999 given; 1 to 16384 is required"}});
  expect_error(
      {"verify", "--world", "4096", "--pass", "forward"},
      testing::Eq("verify: ring forward on 4096 ranks, layout contiguous: no two ranks are alike, "
                  "and its 39851776 ops are too many to prove all ranks one by one, at most "
                  "16777216; ranks are alike if every block sees every other, in shards of one "
                  "length (mask full, or causal with layout striped), and the strategy is a grid, "
                  "or startrail with c^2 or c^3 ranks; nearest: layout striped:1"));
}

TEST(ProblemError, HeadsThatDoNotDivide) {
  const std::string required =
      " given; heads that are a multiple of kv_heads are required; nearest kv_heads: ";
  expect_all_refused({{{"--heads", "6", "--kv-heads", "4"},
                       "problem: 6 heads and 4 kv_heads" + required + "3 or 6"},
                      {{"--heads", "8", "--kv-heads", "16"},
                       "problem: 8 heads and 16 kv_heads" + required + "8"}});
}

TEST(ProblemError, Masks) {
  const std::string names =
      "full, causal, window, prefix, block_causal, documents or bands is required";
  expect_all_refused(
      {{{"--mask", "causl"}, "mask: 'causl' is not known; " + names + "; nearest is 'causal'"},
       {{"--mask", "sliding_window"}, "mask: 'sliding_window' is not known; " + names},
       {{"--mask", "cau\nsal"},
        R"(mask: 'cau\x0asal' is not known; )" + names + "; nearest is 'causal'"},
       {{"--mask", "documents:10,20", "--seq", "40"},
        "mask documents: lengths add up to 30, the sequence has 40 tokens; equal sums are "
        "required; nearest: 30 as the last"},
       {{"--mask", "documents:9223372036854775807,1", "--seq", "40"},
        "mask documents: a document of 9223372036854775807 tokens after 0 given; lengths of 0 and "
        "more that add up to 40 are required"},
       {{"--mask", "documents:50,-10", "--seq", "40"},
        std::string("mask documents: '-10'") + kLength},
       {{"--mask", "bands:0-8/0-8/..;4-12/4-12/..", "--seq", "16"},
        "mask: bands 0-8/0-8/.. and 4-12/4-12/.. overlap at query 4, key 4; disjoint bands are "
        "required"},
       {{"--mask", "bands:0-8/0-17/..", "--seq", "16"},
        "mask: band 0-8/0-17/.. given; ranges inside 0-16/0-16 are required"},
       {{"--mask", "window:left=3"}, "mask window: no right given; right=NUMBER is required"},
       {{"--mask", "prefix:17", "--seq", "16"},
        "mask prefix: 17 of 16 keys given; 0 to 16 is required"},
       {{"--mask", "causal", "--seq", "8", "--kv-seq", "16"},
        "mask causal: 8 queries, 16 keys and no align given; where lengths differ, align=start "
        "(first query on first key) or align=end (last query on last key) is required"}});
}

TEST(ProblemError, LayoutsPassesAndDtypes) {
  expect_all_refused(
      {{{"--layout", "zigzg"},
        "layout: 'zigzg' is not known; contiguous, zigzag, striped or balanced is required; "
        "nearest "
        "is 'zigzag'"},
       {{"--layout", "striped:0"},
        "layout striped: '0' given; a whole number from 1 to 9223372036854775807 is required"},
       {{"--pass", "backwards"},
        "--pass: 'backwards' is not known; forward, backward, replay or both is required; nearest "
        "is "
        "'backward'"},
       {{"--lower", "fuse,alais"},
        "lower: 'alais' is no pass; fuse, alias, coalesce, zero_copy, none or all is required; "
        "nearest: "
        "'alias'"},
       {{"--dtype", "bfloat16"},
        "dtype: 'bfloat16' is not known; fp64, fp32, bf16 or fp16 is required; nearest is "
        "'bf16'"}});
}

TEST(ProblemError, Strategies) {
  const std::string heads = "u must not exceed the heads; nearest: usp:u=";
  expect_all_refused(
      {{{"--strategy", "rign"},
        "strategy: unknown name 'rign'; one of ring, allgather, ulysses, usp, double_ring, "
        "bidirectional_ring, "
        "tokenring, attention2d, startrail, grid or auto; nearest: ring"},
       {{"--strategy", "usp"},
        "strategy: usp needs the key 'u'; write "
        "usp:u=U[,inner=ulysses|ring][,qkv=separate|packed][,backward=kv|q|cheaper]"},
       {{"--strategy", "usp:v=2"},
        "strategy: usp was given the key 'v'; its keys are u, inner, qkv or backward"},
       {{"--strategy", "usp:u=2,u=2"},
        "strategy: 'usp:u=2,u=2' gives the key 'u' twice; once is enough"},
       {{"--strategy", "usp:u=0"}, std::string("strategy usp: u: '0'") + kWhole},
       {{"--strategy", "usp:u=3", "--world", "4"},
        "usp: u=3 with world 4; u must divide world; nearest: u=2"},
       {{"--strategy", "usp:u=8", "--world", "8", "--heads", "6"},
        "strategy: usp:u=8 spreads heads 8 ways but there are 6 query heads; " + heads + "4"},
       {{"--strategy", "ulysses", "--world", "13"},
        "strategy: ulysses spreads heads 13 ways but there are 8 query heads; " + heads + "1"}});
}

TEST(ProblemError, Flags) {
  expect_all_refused(
      {{{"--wrld", "4"},
        "'4 --wrld' given, which is not known here; arguments of --help are required; nearest: "
        "--world"},
       {{"--jsno"},
        "'--jsno' given, which is not known here; arguments of --help are required; nearest: "
        "--json"},
       {{"extra"}, "'extra' given, which is not known here; arguments of --help are required"},
       {{"--world"}, "--world: no value given; one is required"},
       {{"--world", "4", "--world", "8"}, "--world: 2 values given; at most 1 is required"}});
}

/// An empty shard is no error.
TEST(ProblemError, LegalEdgesAreNotRefused) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--world", "13", "--seq", "5"},
           {"--world", "1"},
           {"--seq", "0"},
           {"--seq", "0", "--kv-seq", "7", "--mask", "full"},
           {"--strategy", "ulysses", "--world", "8", "--kv-heads", "1"},
           {"--strategy", "usp:u=3", "--world", "9", "--heads", "8", "--kv-heads", "2"},
           {"--mask", "documents:0,4096,0", "--layout", "balanced"}}) {
    for (const std::string verb : {"plan", "verify"}) {
      std::vector<std::string> arguments{verb};
      arguments.insert(arguments.end(), flags.begin(), flags.end());
      const ProgramRun result = run(arguments);
      EXPECT_EQ(result.code, 0) << fmt::format("{}: ", fmt::join(arguments, " ")) << result.err;
      EXPECT_EQ(result.err, "");
      EXPECT_NE(result.out, "");
    }
  }
}

}  // namespace
}  // namespace armillary::error
