// trial_test.cpp: results of commands that stand in for a layer on two ranks, and one that hangs.
#include "armillary/host/doctor/trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace armillary::doctor {
namespace {

using testing::HasSubstr;

Trial of_shell(const std::string& script, double limit_s = 60) {
  return run_trial({"/bin/sh", "-c", script}, limit_s);
}

TEST(TrialRun, ReadsTheLargestError) {
  const Trial test =
      of_shell("echo '{\"max_error\": 1e-7}'; echo text; echo '{\"max_error\": 2e-6}'");
  EXPECT_TRUE(test.works) << test.reason;
  EXPECT_EQ(test.max_error, 2e-6);
  EXPECT_GT(test.seconds, 0);
  EXPECT_EQ(test.reason, "");
}

TEST(TrialRun, TellsTheLastLineOfAFailure) {
  const Trial test = of_shell("echo first >&2; echo 'no route to host' >&2; exit 3");
  EXPECT_FALSE(test.works);
  EXPECT_EQ(test.reason, "no route to host");
  EXPECT_EQ(of_shell("exit 3").reason, "exit code 3");
  EXPECT_EQ(of_shell("true").reason, "it printed no result");
}

TEST(TrialRun, EndsWhatHangs) {
  const Trial test = of_shell("sleep 600", 0.1);
  EXPECT_FALSE(test.works);
  EXPECT_THAT(test.reason, HasSubstr("not done after 0.1 s"));
  EXPECT_LT(test.seconds, 60);
}

TEST(TrialRun, HasNoPlaceInTheRunOfThisProcess) {
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  setenv("OMPI_MCA_btl_tcp_if_include", "eth7", 1);
  const Trial test = of_shell(
      "[ -z \"${OMPI_COMM_WORLD_RANK+set}\" ] && echo \"$OMPI_MCA_btl_tcp_if_include\" >&2; exit "
      "1");
  unsetenv("OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_MCA_btl_tcp_if_include");
  EXPECT_EQ(test.reason, "eth7") << "the user's own settings stay";
}

TEST(TrialRun, RanksAreProcessesOfALauncherButForThreads) {
  EXPECT_EQ(trial_command("armillary", "threads")[1], "bench");
  EXPECT_THAT(trial_command("armillary", "c10d"), testing::Contains("c10d"));
}

}  // namespace
}  // namespace armillary::doctor
