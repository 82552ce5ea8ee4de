// sweep_test.cpp: the verb `sweep`: its files, and ranges that it refuses.
#include <gtest/gtest.h>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::vector<std::string> small_sweep(const std::vector<std::string>& more) {
  std::vector<std::string> all{"sweep", "--cluster", "c6",   "--world", "2..8",   "--head-dim",
                               "128",   "--seq",     "4096", "--pass",  "forward"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Sweep, WritesCsvAndCharts) {
  const Folder folder;
  const ProgramRun printed = run(small_sweep({"--strategies", "ring", "ulysses"}));
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(printed.out, AllOf(StartsWith("world,seq,heads,bandwidth,strategy,total_s,forward_s"),
                                 HasSubstr("\n2,4096,8,1,\""), HasSubstr("\n8,4096,8,1,\"")));
  const ProgramRun written = run(small_sweep(
      {"--strategies", "ring", "ulysses", "--csv", folder.path("a.csv"), "--plot",
       "speedup=" + folder.path("a.svg"), "--plot", "scaling=" + folder.path("new/b.svg")}));
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(folder.read("a.csv"), printed.out);
  EXPECT_THAT(folder.read("a.svg"), AllOf(StartsWith("<svg "), EndsWith("</svg>\n")));
  EXPECT_THAT(folder.read("new/b.svg"), HasSubstr("TFLOP/s of each rank"));
  EXPECT_THAT(folder.read("new/b.svg"), Not(HasSubstr("times as fast")));
  ASSERT_EQ(run(small_sweep({"--strategies", "ring", "--bandwidth", "0.5", "--csv",
                             folder.path("c.csv"), "--plot", "scaling=" + folder.path("c.svg")}))
                .code,
            0);
  EXPECT_THAT(folder.read("c.svg"), HasSubstr("all links 0.5 times as fast"));
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
      StartsWith("sweep: cannot write /dev/null/a.csv (Not a directory); a file that can"));
  expect_error(small_sweep({"--plot", "speedup"}), StartsWith("--plot is 'speedup'; KIND=FILE"));
  expect_error(small_sweep({"--plot", "sped=a.svg"}), HasSubstr("nearest is 'speedup'"));
  expect_error(small_sweep({"--strategies", "rink"}), HasSubstr("nearest: ring"));
  expect_error(small_sweep({"--strategies", "usp", "--plot", "speedup=a.svg"}),
               StartsWith("sweep: no row of ring"));
  expect_error(
      small_sweep({"--strategies", "ring", "--bandwidth", "0.5,2", "--plot", "scaling=a.svg"}),
      StartsWith("sweep: 2 values of --bandwidth given; the chart scaling has one axis"));
}

}  // namespace
}  // namespace armillary::error
