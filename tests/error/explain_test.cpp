// explain_test.cpp: `armillary explain` as a user sees it: bad input, and the texts about runs that
// the test has recorded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "armillary/host/recorder/recorder.h"
#include "tests/error/program.h"

namespace armillary::error {
namespace {

using recorder::Recorder;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

TEST(ExplainError, FoldersThatAreNone) {
  const Folder folder;
  expect_error({"explain"}, HasSubstr("run is required"));
  expect_error({"explain", folder.path("none")},
               HasSubstr("none/flight' does not exist; the folder of a run is"));
  std::filesystem::create_directories(folder.path("run/flight"));
  expect_error({"explain", folder.path("run")}, HasSubstr("run/flight' has no flight files; the"));
  expect_error({"explain", folder.path("run"), "--jsn"}, HasSubstr("nearest: --json"));
}

TEST(ExplainError, FilesThatAreNone) {
  const Folder folder;
  std::filesystem::create_directories(folder.path("run/flight"));
  folder.write("run/flight/rank-0000.bin", "");
  expect_error({"explain", folder.path("run")},
               HasSubstr("rank-0000.bin' has 0 bytes; a flight file of 102368 bytes is required"));
  folder.write("run/flight/rank-0000.bin", std::string(102368, 'x'));
  expect_error({"explain", folder.path("run")},
               HasSubstr("rank-0000.bin' is no flight file; one that `armillary train` wrote is"));
}

TEST(ExplainError, ATraceThatCannotBeWritten) {
  const Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    { const Recorder recorder(folder.path("run"), {.world = 1}); }
    std::_Exit(0);
  }
  waitpid(child, nullptr, 0);
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  expect_error(
      {"explain", folder.path("run"), "--trace", folder.path("pipe")},
      HasSubstr("explain: cannot write '" + folder.path("pipe") + "' (is a pipe); a file"));
}

/// The children that record are gone when the program looks.
TEST(Explain, SaysWhoWaitedForWhom) {
  const Folder folder;
  for (const int rank : {0, 1}) {
    const pid_t child = fork();
    if (child == 0) {
      Recorder recorder(folder.path("run"), {.world = 2, .rank = rank});
      const std::uint8_t words = recorder.words(plan::attention_words());
      recorder.begin_step(3);
      recorder.begin_call("ring", words, static_cast<int>(plan::Pass::Backward));
      if (rank == 0) recorder.start({.kind = plan::OpKind::AttendGrad, .plan_step = 1, .index = 6});
      if (rank == 1) {
        sleep(1);
        recorder.start({.kind = plan::OpKind::Recv, .lane = 1, .index = 5, .peer = 0, .bytes = 96});
        recorder.wait(recorder::Wait::Messages);
      }
      std::_Exit(0);
    }
    waitpid(child, nullptr, 0);
  }
  const ProgramRun text = run({"explain", folder.path("run")});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out,
              ContainsRegex("^cause: rank 0 \\(host .*, pid [0-9]+, gone\\) has done nothing "
                            "for 1\\.?[0-9]* s, in step 3, ring backward of call 1, plan "
                            "step 1, attend_grad \\(op 6\\); rank 1 waits for it: rank 1 in plan "
                            "step 0, recv \\(op 5\\) of 96 bytes from rank 0 on lane 1\n"
                            "run: gone, 2 ranks\nrank 0: host "));
  EXPECT_THAT(text.out, HasSubstr("recv (op 5) of 96 bytes from rank 0 on lane 1; waits "));
  EXPECT_THAT(text.out, testing::EndsWith("\nwaits: 1 -> 0\n"));
  const nlohmann::json json =
      nlohmann::json::parse(run({"explain", folder.path("run"), "--json"}).out);
  EXPECT_EQ(json["verdict"], "gone");
  EXPECT_EQ(json["causes"], nlohmann::json::array({0}));
  EXPECT_EQ("cause: " + json["cause"].get<std::string>(), text.out.substr(0, text.out.find('\n')));
  EXPECT_EQ(json["ranks"][1]["waits_for"], nlohmann::json::array({0}));
  EXPECT_EQ(json["ranks"][1]["ops"][0]["bytes"], 96);
  EXPECT_EQ(json["ranks"][1]["ops"][0]["kind"], "recv");
}

TEST(Explain, ARunThatEndedWellSaysSo) {
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  const Folder folder;
  folder.write("text.txt", std::string(200, 'a'));
  folder.write("tiny.toml",
               fmt::format("[training]\nseq_len = 16\nsteps = 2\ndataset_path = '{}'\n[model]\n"
                           "dim = 16\n[parallelism]\ncontext_parallel_degree = 2\n[job]\n"
                           "dump_folder = '{}'\n",
                           folder.path("text.txt"), folder.path("run")));
  const ProgramRun trained = run({"train", folder.path("tiny.toml")});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const ProgramRun text = run({"explain", folder.path("run")});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, testing::StartsWith("cause: none: all 2 ranks ended well, in step 2\n"
                                            "run: ended, 2 ranks\nrank 0: host "));
}

}  // namespace
}  // namespace armillary::error
