// supervisor_test.cpp: programs started and ended together. They are shells, in forks of this
// process whose output is a file: they fail, ignore signals, stop themselves and leave children.
#include "armillary/host/launch/supervisor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "armillary/core/error.h"
#include "armillary/host/launch/launch_folder.h"

namespace armillary::launch {
namespace {

using testing::HasSubstr;

std::vector<ChildCommand> shells(const std::vector<std::string>& scripts) {
  std::vector<ChildCommand> commands;
  commands.reserve(scripts.size());
  for (const std::string& script : scripts) {
    commands.push_back(
        {.label = fmt::format("rank {}", commands.size()), .words = {"sh", "-c", script}});
  }
  return commands;
}

/// Seconds, for a machine that is busy: less than programs sleep, and than they are left running.
constexpr double kSoonS = 30;

struct Observed {
  int code = -1;
  std::string output;  ///< Both streams, and the description of the first failure.
  double seconds = 0;
};

/// Supervises in a child of this process. `meanwhile` gets its pid, when the output has the word
/// "ready".
Observed observe(const std::vector<std::string>& scripts, const SuperviseOptions& options = {},
                 const std::function<void(pid_t)>& meanwhile = {}) {
  const std::string path =
      std::filesystem::temp_directory_path() / fmt::format("armillary_launch_test_{}", getpid());
  std::ofstream(path).close();
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) {
    const int file = open(path.c_str(), O_WRONLY | O_APPEND);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    alarm(120);
    try {
      const std::vector<Ending> failed = supervise(shells(scripts), options);
      for (const Ending& ending : failed) {
        fmt::print(stderr, "{}{}\n", describe(ending), ending.stopped ? ", stopped" : "");
      }
      _exit(failed.empty() ? 0 : failed[0].code);
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.what());
      _exit(99);
    }
  }
  const auto text = [&] {
    std::ifstream stream(path);
    return std::string{std::istreambuf_iterator<char>(stream), {}};
  };
  if (meanwhile) {
    for (int i = 0; i < 12000 && text().find("ready") == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    meanwhile(child);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Observed observed{.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, .output = text()};
  observed.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::filesystem::remove(path);
  return observed;
}

TEST(Supervisor, ForwardsBothStreamsAndEndsWithAll) {
  const Observed all = observe({"echo out; echo err >&2", "sleep 0.1; printf unfinished"});
  EXPECT_EQ(all.code, 0) << all.output;
  EXPECT_THAT(all.output, HasSubstr("[rank 0] out\n"));
  EXPECT_THAT(all.output, HasSubstr("[rank 0] err\n"));
  EXPECT_THAT(all.output, HasSubstr("[rank 1] unfinished\n"));
  EXPECT_THAT(observe({"echo out"}, {.prefix = false}).output, "out\n");
}

TEST(Supervisor, ReturnsTheFirstFailureAndEndsTheOthers) {
  const Observed exited = observe({"sleep 600", "exit 3", "sleep 1; exit 4"}, {.grace_s = 2});
  EXPECT_EQ(exited.code, 3);
  EXPECT_THAT(exited.output,
              testing::ContainsRegex("rank 1 \\(host .*, pid [0-9]+\\) exited with 3"));
  EXPECT_LT(exited.seconds, kSoonS);

  const Observed killed = observe({"sleep 600 & wait", "kill -9 $$"});
  EXPECT_EQ(killed.code, 128 + 9);
  EXPECT_THAT(killed.output, testing::ContainsRegex("rank 1 .* signal 9 \\(Killed\\)"));
  EXPECT_LT(killed.seconds, kSoonS);
}

TEST(Supervisor, LetsTheOthersSayWhyBeforeTheyAreEnded) {
  const Observed all =
      observe({"exit 3", "sleep 0.2; echo my peer has failed; exit 1"}, {.grace_s = 60});
  EXPECT_EQ(all.code, 3);
  EXPECT_THAT(all.output, HasSubstr("[rank 1] my peer has failed"));
}

TEST(Supervisor, LetsTheOthersRefuseWhatOneRefuses) {
  const SuperviseOptions patient{.grace_s = 0.05, .refusal_code = 2, .refusal_s = 60};
  const Observed late = observe({"exit 2", "sleep 1; echo refused too; exit 2"}, patient);
  EXPECT_EQ(late.code, 2);
  EXPECT_THAT(late.output, HasSubstr("[rank 1] refused too"));
  EXPECT_LT(late.seconds, kSoonS);
  // Neither a failure is waited behind, nor a program that is stopped, nor one that never ends.
  const Observed failed = observe({"exit 2", "sleep 0.2; exit 3", "sleep 600"}, patient);
  EXPECT_EQ(failed.code, 2);
  EXPECT_LT(failed.seconds, kSoonS);
  EXPECT_LT(observe({"exit 2", "kill -STOP $$"}, patient).seconds, kSoonS);
  const SuperviseOptions brief{.grace_s = 0.05, .refusal_code = 2, .refusal_s = 0.2};
  EXPECT_LT(observe({"exit 2", "sleep 600"}, brief).seconds, kSoonS);
}

// Programs that others have started tell their endings, here before the one that is supervised.
TEST(Supervisor, EndsWhenAllProgramsOfOthersHaveRefused) {
  for (const int told : {1, 2}) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    for (int rank = 0; rank < told; ++rank) {
      const Ending ending{.label = fmt::format("rank {}", rank), .host = "h", .pid = 1, .code = 2};
      const std::string line = to_line(ending) + "\n";
      ASSERT_EQ(write(ends[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
    }
    SuperviseOptions options{.grace_s = 0.05, .refusal_code = 2, .refusal_s = 60};
    options.endings = ends[0];
    options.told_programs = 2;
    options.on_failure = [] { fmt::print(stderr, "all have refused\n"); };
    const Observed all = observe({told == 2 ? "sleep 600" : "sleep 1; exit 3"}, options);
    EXPECT_EQ(all.code, 2) << told;
    EXPECT_LT(all.seconds, kSoonS) << told;
    EXPECT_THAT(all.output, HasSubstr("all have refused\n")) << told;
    close(ends[0]);
    close(ends[1]);
  }
}

TEST(Supervisor, EndsAProgramThatIsStoppedOrIgnoresSignals) {
  // A stopped one is given no time to say what it knows.
  const Observed stopped = observe({"kill -STOP $$", "sleep 0.2; exit 3"}, {.grace_s = 60});
  EXPECT_EQ(stopped.code, 3);
  EXPECT_LT(stopped.seconds, kSoonS);
  EXPECT_THAT(stopped.output, HasSubstr("was stopped (SIGSTOP, or a debugger)"));
  const Observed stubborn = observe({"trap '' TERM; sleep 600", "exit 3"}, {.end_signal = SIGTERM});
  EXPECT_EQ(stubborn.code, 3);
  EXPECT_LT(stubborn.seconds, kSoonS);
}

// Nobody waits for a program that is stopped alone: mpirun, or the only rank.
TEST(Supervisor, EndsProgramsThatAreAllStoppedForLong) {
  const Observed alone = observe({"kill -STOP $$"}, {.stopped_s = 0.5});
  EXPECT_EQ(alone.code, 128 + SIGSTOP);
  EXPECT_LT(alone.seconds, kSoonS);
  EXPECT_THAT(alone.output, HasSubstr("was stopped (SIGSTOP, or a debugger)"));
  const Observed all =
      observe({"kill -STOP $$", "sleep 0.3; kill -STOP $$", "exit 0"}, {.stopped_s = 0.5});
  EXPECT_EQ(all.code, 128 + SIGSTOP);
  EXPECT_LT(all.seconds, kSoonS);
}

TEST(Supervisor, WaitsForProgramsThatGoOnOrThatOthersWaitFor) {
  const std::string continued = "(sleep 1; kill -CONT $$) & kill -STOP $$; echo went on; ";
  // Four times of a second are not one of four.
  const std::string twice = continued + "sleep 0.2; " + continued + "sleep 0.2; ";
  const Observed again = observe({twice + twice}, {.stopped_s = 3.5});
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("went on"));
  const std::string mark =
      std::filesystem::temp_directory_path() / fmt::format("armillary_went_on_{}", getpid());
  const Observed one =
      observe({continued + "touch " + mark, "until [ -e " + mark + " ]; do sleep 0.05; done"},
              {.stopped_s = 0.1});
  std::filesystem::remove(mark);
  EXPECT_EQ(one.code, 0) << one.output;
  const Observed never = observe({continued}, {.stopped_s = 0});
  EXPECT_EQ(never.code, 0) << never.output;
}

/// Whether the command line of any process has the text.
bool is_anywhere(const std::string& text) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    if (line.find(text) != std::string::npos) return true;
  }
  return false;
}

TEST(Supervisor, LeavesNoProcessBehind) {
  const std::string mark = fmt::format("left behind by {}", getpid());
  const std::string script =
      fmt::format("sh -c 'sleep 600; : {}' >/dev/null 2>&1 & sleep 0.1; exit 3", mark);
  EXPECT_EQ(observe({script}).code, 3);
  // A process that was killed is gone a moment later.
  for (int i = 0; i < 6000 && is_anywhere(mark); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(is_anywhere(mark));
}

TEST(Supervisor, AsksAllToStopAtTheFirstSignal) {
  const Observed all =
      observe({"trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"}, {},
              [](pid_t supervisor) { kill(supervisor, SIGINT); });
  EXPECT_EQ(all.code, 0) << all.output;
  EXPECT_THAT(all.output, HasSubstr("[rank 0] saved"));
}

TEST(Supervisor, EndsAllAtTheSecondSignal) {
  const Observed all =
      observe({"trap '' TERM; echo ready; while :; do sleep 0.05; done"}, {}, [](pid_t supervisor) {
        kill(supervisor, SIGTERM);
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        kill(supervisor, SIGINT);
      });
  EXPECT_EQ(all.code, 128 + SIGINT) << all.output;
  EXPECT_THAT(all.output, HasSubstr("was ended by signal 2 (Interrupt)"));
  EXPECT_LT(all.seconds, kSoonS);
}

// A program that is asked before it can answer: that ends the others, and is no failure.
TEST(Supervisor, TellsAProgramThatWasStoppedBeforeItCouldAnswer) {
  const Observed all =
      observe({"echo ready; sleep 600", "trap '' TERM; echo ready; while :; do sleep 0.05; done"},
              {}, [](pid_t supervisor) { kill(supervisor, SIGINT); });
  EXPECT_THAT(all.output, HasSubstr("was ended by signal 15 (Terminated), stopped"));
  EXPECT_LT(all.seconds, kSoonS);
}

// Peers of a program that fails may end before it.
TEST(Supervisor, WaitsForTheEndOfTheProgramToBlame) {
  SuperviseOptions options{.grace_s = 0.05};
  options.blame = [](const Ending& failed) { return failed.code == 3 ? "rank 1" : ""; };
  // It is waited for half a second longer; a busy machine may delay its end, though not each time.
  Observed all;
  for (int tries = 0; tries < 5 && all.output.find("exited with 2") == std::string::npos; ++tries) {
    all = observe({"exit 3", "sleep 0.2; exit 2"}, options);
  }
  EXPECT_THAT(all.output, testing::ContainsRegex("rank 1 .* exited with 2"));
  const Observed never = observe({"exit 3", "sleep 600"}, options);
  EXPECT_EQ(never.code, 3);
  EXPECT_LT(never.seconds, kSoonS);
}

TEST(Supervisor, AsksToStopWhenTheLineSaysSo) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "", 1), 1);  // before the program has started
  const Observed all = observe({"trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done"},
                               {.stop_signals = {}, .ask_signal = SIGTERM, .stop_line = ends[0]});
  // The shell may be asked before it has its trap.
  EXPECT_THAT(all.output, testing::AnyOf(HasSubstr("saved"), HasSubstr("stopped")));
  EXPECT_LT(all.seconds, kSoonS);
  close(ends[0]);
  close(ends[1]);
}

// As by an end signal: those that run have a moment, those that are stopped none.
TEST(Supervisor, EndsWhenTheLineSaysSo) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "", 1), 1);
  const SuperviseOptions options{.end_signals_grace_s = 60, .end_line = ends[0]};
  const Observed stopped = observe({"kill -STOP $$"}, options);
  EXPECT_EQ(stopped.code, 128 + SIGTERM);
  EXPECT_THAT(stopped.output, HasSubstr("was stopped (SIGSTOP, or a debugger)"));
  EXPECT_LT(stopped.seconds, kSoonS);
  EXPECT_THAT(observe({"sleep 0.3; echo knows"}, options).output, HasSubstr("knows"));
  close(ends[0]);
  close(ends[1]);
}

TEST(Supervisor, CallsOnFailureOnce) {
  SuperviseOptions options;
  options.on_failure = [] { fmt::print(stderr, "a failure\n"); };
  const std::string output = observe({"exit 3", "exit 2", "exit 0"}, options).output;
  EXPECT_EQ(output.find("a failure"), output.rfind("a failure"));
  EXPECT_THAT(output, HasSubstr("a failure"));
}

TEST(Supervisor, SaysThatAProgramIsNotThere) {
  try {
    const ChildCommand missing{.label = "rank 0", .words = {"/no/such/program"}};
    supervise(std::span(&missing, 1));
    FAIL() << "it started";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "launch: /no/such/program cannot be started: No such file or directory");
  }
}

}  // namespace
}  // namespace armillary::launch
