// Processes that fail: this program starts itself under mpirun with --fault=KIND, and looks at the
// exit code, the output, the time, and the processes that are left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "armillary/comm/mpi.h"
#include "tests/conformance/faults.h"
#include "tests/conformance/mpi.h"
#include "tests/sanitized.h"

namespace armillary::comm {

int run_fault(std::string_view kind) {
  return exit_code_of_rank([&] {
    run_mpi_rank([&](Communicator& comm) { ring_with_fault(kind, comm); }, {.timeout_s = 1});
  });
}

namespace {

using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;

/// Seconds from the start of mpirun, which is most of it: half of those after which it is ended.
constexpr double kRunS = 60;

struct ProgramEnd {
  int exit_code = 0;
  std::string output;
  double seconds = 0;
};

/// Command lines of processes, this one's children of children included, that contain `text`.
std::vector<std::string> processes_with(const std::string& text) {
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    if (line.find(text) != std::string::npos) texts.push_back(line);
  }
  return texts;
}

ProgramEnd run_with_fault(const std::string& kind) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  // The mark makes the processes of this run known by their command lines.
  const std::string mark = "--mark=" + std::to_string(getpid()) + kind;
  const std::string command =
      "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 "
      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 5 120 mpirun -n 3 " +
      program + " --fault=" + kind + " " + mark + " 2>&1";
  const auto begin = std::chrono::steady_clock::now();
  ProgramEnd outcome;
  FILE* const pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const std::size_t size = fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.output.append(buffer.data(), size);
  }
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_THAT(processes_with(mark), testing::IsEmpty());
  testing::Test::RecordProperty("seconds", std::to_string(outcome.seconds));
  return outcome;
}

class MpiFaults : public testing::Test {
 protected:
  void SetUp() override {
    if (!mpi_available()) GTEST_SKIP() << "[SKIP] no MPI";
    if (kSanitized) GTEST_SKIP() << "[SKIP] MPI libraries leak";
  }
};

TEST_F(MpiFaults, ARankThatThrowsEndsAll) {
  const ProgramEnd outcome = run_with_fault("throw");
  EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("error: the disk is full"));
  EXPECT_THAT(outcome.output, HasSubstr("error: rank 1 failed: the disk is full"));
  EXPECT_LT(outcome.seconds, kRunS);
}

TEST_F(MpiFaults, AnAbortOfAnotherThreadEndsAllWhileTheRankComputes) {
  const ProgramEnd outcome = run_with_fault("abort");
  EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("error: rank 1 failed: the watchdog barked"));
  EXPECT_LT(outcome.seconds, kRunS);
}

TEST_F(MpiFaults, ARankThatExitsEndsAll) {
  const ProgramEnd outcome = run_with_fault("exit");
  EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
  EXPECT_LT(outcome.seconds, kRunS);
}

TEST_F(MpiFaults, ARankThatIsKilledEndsAll) {
  const ProgramEnd outcome = run_with_fault("kill");
  EXPECT_NE(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("signal 9"));
  EXPECT_LT(outcome.seconds, kRunS);
}

TEST_F(MpiFaults, ARankThatLeavesMissesItsPeersDeadline) {
  const ProgramEnd outcome = run_with_fault("leave");
  EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
  // Both ranks wait, as the one that leaves waits for its peer. Either may say so first.
  EXPECT_THAT(outcome.output, AnyOf(ContainsRegex("rank 1 on lane 1 not done after [1-9]"),
                                    ContainsRegex("leave: rank 1 has waited [1-9]")));
  EXPECT_LT(outcome.seconds, kRunS);
}

TEST_F(MpiFaults, ARankThatIsStoppedMissesItsPeersDeadline) {
  const ProgramEnd outcome = run_with_fault("stop");
  EXPECT_NE(outcome.exit_code, 0) << outcome.output;
  // The first that gives up waits for rank 1, or for a rank that does.
  EXPECT_THAT(outcome.output, AnyOf(ContainsRegex("rank 1 on lane 1 not done after [1-9]"),
                                    ContainsRegex("not done after [1-9].*; rank 1 .host [^)]*. ")));
  EXPECT_LT(outcome.seconds, kRunS);
}

}  // namespace
}  // namespace armillary::comm
