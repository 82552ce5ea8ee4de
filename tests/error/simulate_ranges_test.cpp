// simulate_ranges_test.cpp: ranges of the verb `simulate`: their table, and those that it refuses.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::Eq;
using testing::HasSubstr;
using testing::StartsWith;

std::vector<std::string> ranges_with(const std::vector<std::string>& more) {
  std::vector<std::string> all{"simulate", "--cluster", "c6",   "--world", "2..8",   "--head-dim",
                               "128",      "--seq",     "4096", "--pass",  "forward"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(SimulateRanges, WriteCsv) {
  const Folder folder;
  const ProgramRun printed = run(ranges_with({"--strategies", "ring", "ulysses"}));
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(printed.out, AllOf(StartsWith("world,seq,heads,bandwidth,strategy,total_s,forward_s"),
                                 HasSubstr("\n2,4096,8,1,\""), HasSubstr("\n8,4096,8,1,\"")));
  const ProgramRun written =
      run(ranges_with({"--strategies", "ring", "ulysses", "--csv", folder.path("new/a.csv")}));
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(folder.read("new/a.csv"), printed.out);
}

TEST(SimulateRanges, SayTheProblemInEachRow) {
  const ProgramRun printed = run(ranges_with({"--strategies", "ring", "--kv-heads", "2"}));
  EXPECT_THAT(printed.out,
              AllOf(HasSubstr(",kv_seq,kv_heads,cluster,mask,layout,batch,head_dim,value_dim,dtype,"
                              "wire\n"),
                    EndsWith(",4096,2,\"c6\",\"causal\",\"contiguous\",\"1\",\"128\",\"128\","
                             "\"bf16\",\"accumulator\"\n")));
}

TEST(SimulateRangesError, RangesThatAreNone) {
  expect_error(ranges_with({"--bandwidth", "1,x"}),
               StartsWith("--bandwidth is 'x'; numbers above 0"));
  expect_error(ranges_with({"--heads", "8..4"}), StartsWith("--heads is '8..4'; a range that"));
  expect_error(ranges_with({"--heads", "0"}), HasSubstr("--heads"));
  // The double of the last value but one does not fit into 63 bits.
  expect_error({"simulate", "--cluster", "c6", "--world", "1", "--strategies", "ring", "--seq",
                "1..9223372036854775807"},
               StartsWith("problem: batch x heads x visible pairs"));
  expect_error(
      ranges_with({"--csv", "/dev/null/a.csv"}),
      StartsWith("simulate: cannot write '/dev/null/a.csv' (Not a directory); a file that can"));
  expect_error(ranges_with({"--strategies", "rink"}), HasSubstr("nearest: ring"));
}

/// The strategy of --strategy, those of --strategies, or all; a single problem without a flag of
/// ranges is a table.
TEST(SimulateRanges, HaveTheStrategiesThatWereAskedFor) {
  const std::vector<std::string> one{"simulate",   "--cluster", "c6",    "--world", "2",
                                     "--head-dim", "128",       "--seq", "4096"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = one;
    all.insert(all.end(), more.begin(), more.end());
    return run(all).out;
  };
  const auto rows = [](const std::string& csv) { return std::ranges::count(csv, '\n') - 1; };
  EXPECT_THAT(with({}), StartsWith("ring forward on c6: 2 ranks"));
  EXPECT_EQ(rows(with({"--bandwidth", "1", "--strategies", "ring", "ulysses"})), 2);
  const std::string table = with({"--bandwidth", "0.5,1", "--strategy", "ulysses"});
  EXPECT_EQ(rows(table), 2);
  EXPECT_THAT(table, AllOf(HasSubstr("\n2,4096,8,0.5,\"ulysses\","),
                           HasSubstr("\n2,4096,8,1,\"ulysses\",")));
  EXPECT_GT(rows(with({"--weak"})), 2) << "all strategies";
}

TEST(SimulateRangesError, FlagsOfOneProblem) {
  const std::string rest =
      " with ranges, which give CSV; one value each of --world, --seq and --heads, without "
      "--bandwidth, --weak, --strategies and --csv, is required";
  for (const std::string flag : {"--json", "--fold", "--compare"}) {
    expect_error(ranges_with({flag}), Eq(fmt::format("simulate: {}{}", flag, rest)));
  }
  expect_error(ranges_with({"--trace", "t.json"}), Eq("simulate: --trace" + rest));
  expect_error(ranges_with({"--lower", "none"}), Eq("simulate: --lower" + rest));
  expect_error(ranges_with({"--strategy", "ring", "--strategies", "usp"}),
               AllOf(HasSubstr("--strategy"), HasSubstr(" excludes "), HasSubstr("--strategies")));
  expect_error({"simulate", "--world", "2..8"}, StartsWith("--cluster: none given; a preset"));
}

}  // namespace
}  // namespace armillary::error
