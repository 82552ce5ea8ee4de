// sweep_test.cpp: the verb `sweep`: its table, and ranges that it refuses.
#include <gtest/gtest.h>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::vector<std::string> small_sweep(const std::vector<std::string>& more) {
  std::vector<std::string> all{"sweep", "--cluster", "c6",   "--world", "2..8",   "--head-dim",
                               "128",   "--seq",     "4096", "--pass",  "forward"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Sweep, WritesCsv) {
  const Folder folder;
  const ProgramRun printed = run(small_sweep({"--strategies", "ring", "ulysses"}));
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(printed.out, AllOf(StartsWith("world,seq,heads,bandwidth,strategy,total_s,forward_s"),
                                 HasSubstr("\n2,4096,8,1,\""), HasSubstr("\n8,4096,8,1,\"")));
  const ProgramRun written =
      run(small_sweep({"--strategies", "ring", "ulysses", "--csv", folder.path("new/a.csv")}));
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(folder.read("new/a.csv"), printed.out);
}

TEST(Sweep, SaysTheProblemInEachRow) {
  const ProgramRun printed = run(small_sweep({"--strategies", "ring", "--kv-heads", "2"}));
  EXPECT_THAT(printed.out,
              AllOf(HasSubstr(",kv_seq,kv_heads,cluster,mask,layout,batch,head_dim,value_dim,dtype,"
                              "wire\n"),
                    EndsWith(",4096,2,\"c6\",\"causal\",\"contiguous\",\"1\",\"128\",\"128\","
                             "\"bf16\",\"accumulator\"\n")));
}

TEST(SweepError, RangesThatAreNone) {
  expect_error(small_sweep({"--bandwidth", "1,x"}),
               StartsWith("--bandwidth is 'x'; numbers above 0"));
  expect_error(small_sweep({"--heads", "8..4"}), StartsWith("--heads is '8..4'; a range that"));
  expect_error(small_sweep({"--heads", "0"}), HasSubstr("--heads"));
  // The double of the last value but one does not fit into 63 bits.
  expect_error({"sweep", "--cluster", "c6", "--world", "1", "--strategies", "ring", "--seq",
                "1..9223372036854775807"},
               StartsWith("problem: batch x heads x visible pairs"));
  expect_error(
      small_sweep({"--csv", "/dev/null/a.csv"}),
      StartsWith("sweep: cannot write '/dev/null/a.csv' (Not a directory); a file that can"));
  expect_error(small_sweep({"--strategies", "rink"}), HasSubstr("nearest: ring"));
}

}  // namespace
}  // namespace armillary::error
