// report_test.cpp: the verb `report`: the pages that it writes, of passes, runs and prompts, and
// requests that it refuses.
#include <gtest/gtest.h>

#include "armillary/host/recorder/problems.h"
#include "armillary/host/recorder/recorder.h"
#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::Eq;
using testing::HasSubstr;
using testing::StartsWith;

const std::vector<std::string> kSmall{"report",     "--cluster", "c6",    "--world", "2",
                                      "--head-dim", "128",       "--seq", "256"};

std::vector<std::string> with(const std::vector<std::string>& more) {
  std::vector<std::string> all = kSmall;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Report, WritesAPage) {
  const Folder folder;
  const ProgramRun result = run(with({"--out", folder.path("a.html")}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("a.html: 0."));
  EXPECT_THAT(folder.read("a.html"),
              AllOf(StartsWith("<!doctype html>"), HasSubstr("ring on 2 ranks of c6"),
                    HasSubstr("\"strategies\":[{\"name\":"), EndsWith("</html>\n")));
  ASSERT_EQ(run(with({"--no-table", "--out", folder.path("new/folder/b.html")})).code, 0);
  EXPECT_THAT(folder.read("new/folder/b.html"), HasSubstr("\"strategies\":[]"));
}

TEST(Report, ShowsThePhasesOfAPrompt) {
  const Folder folder;
  const std::vector<std::string> words{"report",    "--cluster", "c5",    "--serve",
                                       "llama3-8b", "--world",   "8",     "--tp",
                                       "2",         "--seq",     "65536", "--no-table"};
  std::vector<std::string> all = words;
  all.insert(all.end(), {"--out", folder.path("a.html")});
  const ProgramRun result = run(all);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(", 1 pass of 4 ranks\n"));
  EXPECT_THAT(folder.read("a.html"),
              AllOf(HasSubstr("\"phases\":[{\"name\":\"time to first token\",\"total_us\":"),
                    HasSubstr("\"heads\":16,\"kv_heads\":4,"),
                    HasSubstr("llama3-8b reads 65536 tokens over cp 4, tp 2;")));
  all = words;
  all.insert(all.end(), {"--pass", "backward"});
  expect_error(all, StartsWith("report: --pass given with --serve"));
  expect_error(
      {"report", "--cluster", "c5", "--serve", "llama3-8b", "--seq", "67108864"},
      StartsWith("report: 1 sequence of 67108864 tokens over cp 16, tp 1 of c5: does not"));
}

TEST(ReportError, RequestsThatCannotBeMet) {
  const Folder folder;
  folder.write("file", "text");
  expect_error(
      with({"--out", folder.path("file/a.html")}),
      Eq(fmt::format("report: cannot write '{}' (Not a directory); a file that can be written "
                     "is required",
                     folder.path("file/a.html"))));
  // Folders are made for a page that is written, not for one that is refused.
  expect_error(with({"--out", folder.path("new/folder/a.html"), "--run", folder.path("none")}),
               HasSubstr("none"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("new")));
  expect_error({"report", "--cluster", "c1:nodes=64", "--world", "512"},
               StartsWith("report: world 512; at most 256 ranks fit into a page"));
  expect_error({"report", "--cluster", "c6", "--world", "2", "--mask", "full", "--seq", "33554432",
                "--no-table", "--out", folder.path("a.html")},
               AllOf(StartsWith("ring on c6: 33554432 tokens: does not fit: needs "),
                     HasSubstr(", the longest sequence that fits is ")));
  expect_error({"report", "--world", "2"}, HasSubstr("--cluster"));
}

/// Readers of runs serve several verbs, so they name none of them.
TEST(ReportError, RunsThatAreNone) {
  const Folder folder;
  const auto expect_refused = [&](const std::string& text) {
    expect_error({"report", "--cluster", "c6", "--run", folder.path("run")}, Eq(text));
  };
  const std::string flight = folder.path("run/flight");
  expect_refused(fmt::format("'{}' does not exist; the folder of a run is required", flight));
  std::filesystem::create_directories(flight);
  expect_refused(fmt::format("'{}' has no flight files; the folder of a run is required", flight));
  folder.write("run/flight/rank-0000.bin", "no flight");
  expect_refused(fmt::format(
      "'{}/rank-0000.bin' has 9 bytes; a flight file of 102368 bytes is required", flight));
}

/// A problem of another world than the run's is refused before its plans are made.
TEST(ReportError, ProblemsThatAreNotOfTheRun) {
  const Folder folder;
  pid_t child = fork();
  if (child == 0) {
    const recorder::Recorder recorder(folder.path("run"), {.world = 1});
    recorder::ProblemLog log(folder.path("run"));
    log.begin({.world = 1}, "ring");
    std::_Exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  std::string text = folder.read("run/flight/problems.json");
  const std::string one = R"("--world":"1")";
  ASSERT_NE(text.find(one), std::string::npos) << text;
  text.replace(text.find(one), one.size(), R"("--world":"1024")");
  folder.write("run/flight/problems.json", text);
  expect_error(
      {"report", "--cluster", "c6", "--run", folder.path("run"), "--out", folder.path("a.html")},
      Eq(fmt::format("report: '{0}/flight/problems.json' has a problem of world 1024, the "
                     "run has 1 rank; it is left out if it is removed",
                     folder.path("run"))));
}

}  // namespace
}  // namespace armillary::error
