// contender_test.cpp: contenders are programs that a benchmark starts and talks to by lines. Here
// they are shell scripts that answer, refuse, die, hang and never stop writing; each must leave a
// reason, no process, and the other sides running.
#include "armillary/lab/bench/contender.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace armillary::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::ThrowsMessage;
using testing::UnorderedElementsAre;
using Json = nlohmann::ordered_json;

constexpr double kDeadlineS = 120;  // of scripts that do answer

/// A script with the sides `fast`, `refusing`, `mute` and so on, each as `cases` says it answers.
std::string script(const std::string& cases) {
  return R"(echo '{"sides": ["fast", "other"], "version": 3}'; while read side; do case $side in )" +
         cases + " esac; done";
}

std::string answers(double value) {
  return script(fmt::format(R"(*) echo "{{\"side\": \"$side\", \"value\": {}}}";;)", value));
}

/// A killed process may stay as a zombie where nobody reaps orphans, as in some containers.
bool is_zombie(pid_t process) {
  std::ifstream stat(fmt::format("/proc/{}/stat", process));
  std::string number, name, state;
  stat >> number >> name >> state;
  return state == "Z";
}

bool ends_soon(pid_t process) {
  for (int i = 0; i < 6000; ++i) {
    if (kill(process, 0) != 0 && errno == ESRCH) return true;
    if (is_zombie(process)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(Contender, AnswersForItsSides) {
  Contender contender(answers(0.25), kDeadlineS);
  EXPECT_EQ(contender.reason(), "");
  EXPECT_THAT(contender.sides(), ElementsAre("fast", "other"));
  EXPECT_EQ(contender.facts(), Json::parse(R"({"version": 3})"));
  EXPECT_EQ(contender.run("fast"), 0.25);
  EXPECT_EQ(contender.run("other"), 0.25);
}

TEST(Contender, FactsOfAnswersJoinThoseOfTheFirstLine) {
  Contender contender(
      script(R"(*) echo "{\"side\": \"$side\", \"value\": 1, \"facts\": {\"bytes\": 7}}";;)"),
      kDeadlineS);
  contender.run("fast");
  EXPECT_EQ(contender.facts(), Json::parse(R"({"version": 3, "bytes": 7})"));
}

TEST(Contender, ASideThatRefusesLeavesTheOthers) {
  Contender contender(script(R"(fast) echo '{"side": "fast", "value": 2}';;
                                other) echo '{"side": "other", "error": "not today"}';;)"),
                      kDeadlineS);
  EXPECT_THAT([&] { contender.run("other"); }, ThrowsMessage<SideRefused>("not today"));
  EXPECT_EQ(contender.reason(), "");
  EXPECT_EQ(contender.run("fast"), 2);
}

TEST(Contender, OneThatDiesHasTheLastLineOfStandardErrorAsReason) {
  Contender contender(script("*) echo first >&2; echo 'out of luck' >&2; exit 3;;"), kDeadlineS);
  for (const char* side : {"fast", "other"}) {
    EXPECT_THAT([&] { contender.run(side); }, ThrowsMessage<SideRefused>("out of luck")) << side;
  }
  EXPECT_EQ(contender.reason(), "out of luck");
  Contender silent(script("*) exit;;"), kDeadlineS);
  EXPECT_THAT([&] { silent.run("fast"); },
              ThrowsMessage<SideRefused>("it ended without an answer"));
}

TEST(Contender, OneThatIsNeverReadyHasAReasonAndNoSides) {
  for (const auto& [command, reason] :
       {std::pair("echo 'no such module' >&2; exit 1", "no such module"),
        std::pair("exit 0", "it ended without an answer"),
        std::pair("echo ready", "answered 'ready'; a JSON object is required"),
        std::pair("echo '{}'", "its first line has no list of sides"),
        std::pair("echo '{\"error\": \"no GPU\"}'", "no GPU")}) {
    Contender contender(command, kDeadlineS);
    EXPECT_EQ(contender.reason(), reason);
    EXPECT_TRUE(contender.sides().empty()) << command;
    EXPECT_THAT([&] { contender.run("fast"); }, ThrowsMessage<SideRefused>(reason));
  }
}

TEST(Contender, AnswersThatCannotBeUsedEndIt) {
  for (const auto& [cases, reason] :
       {std::pair(R"(*) echo '{"side": "slow", "value": 1}';;)", "side 'fast' is required"),
        std::pair(R"(*) echo '{"side": "fast", "value": "1"}';;)", "a number as value is required"),
        std::pair(R"(*) echo '{"side": "fast"}';;)", "a number as value is required")}) {
    Contender contender(script(cases), kDeadlineS);
    EXPECT_THAT([&] { contender.run("fast"); }, ThrowsMessage<SideRefused>(HasSubstr(reason)));
    EXPECT_THAT(contender.reason(), HasSubstr(reason));
  }
}

TEST(Contender, OneThatHangsIsEndedAtItsDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  Contender never_ready("sleep 600", 0.2);
  EXPECT_EQ(never_ready.reason(), "no answer within 0.2 s");
  Contender contender(script("*) sleep 600;;"), 1);
  EXPECT_THAT([&] { contender.run("fast"); }, ThrowsMessage<SideRefused>("no answer within 1 s"));
  EXPECT_THAT([&] { contender.run("other"); }, ThrowsMessage<SideRefused>("no answer within 1 s"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

/// The script ends when its standard input does; the process that it started would not.
TEST(Contender, OneThatNeverStopsWritingIsEndedAtItsDeadline) {
  EXPECT_EQ(Contender("yes >&2", 0.2).reason(), "no answer within 0.2 s");
  EXPECT_EQ(Contender("yes | tr -d '\\n'", 0.2).reason(), "no answer within 0.2 s");
}

TEST(Contender, ItsChildrenEndWithIt) {
  pid_t child = 0;
  {
    const Contender contender(R"(sleep 60 & echo "{\"sides\": [], \"child\": $!}"; read line)",
                              kDeadlineS);
    ASSERT_EQ(contender.reason(), "");
    child = contender.facts().at("child").get<pid_t>();
    EXPECT_EQ(kill(child, 0), 0);
  }
  EXPECT_TRUE(ends_soon(child));
}

TEST(Contender, MuchOnStandardErrorDoesNotStopIt) {
  Contender contender(
      script(R"(*) head -c 300000 /dev/zero >&2; echo '{"side": "fast", "value": 1}';;)"),
      kDeadlineS);
  EXPECT_EQ(contender.run("fast"), 1);
}

TEST(Contenders, TakeTurnsWithTheSidesOfThisProcess) {
  const std::vector<std::string> commands{answers(5),
                                          script(R"(fast) echo '{"side": "fast", "value": 6}';;
                other) echo '{"side": "other", "error": "not today"}';;)"),
                                          "echo 'not there' >&2"};
  Contenders contenders(commands, kDeadlineS);
  std::vector<Side> sides{{"fast", [] { return 1.0; }}};
  contenders.add_sides(sides);
  const TurnSummary turns = take_turns(sides, {.seconds = 0, .least = 2});
  EXPECT_EQ(turns.count, 2);
  EXPECT_THAT(turns.medians, UnorderedElementsAre(Pair("fast", 1), Pair("fast #1", 5),
                                                  Pair("other", 5), Pair("fast #2", 6)));
  EXPECT_THAT(turns.reasons, ElementsAre(Pair("other #2", "not today")));
  const Json list = contenders.json();
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0]["command"], commands[0]);
  EXPECT_EQ(list[0]["facts"], Json::parse(R"({"version": 3})"));
  EXPECT_FALSE(list[0].contains("reason"));
  EXPECT_EQ(list[2]["reason"], "not there");
}

TEST(Contenders, ANeighbourIsSeenByTheCoresOfAContender) {
  const std::vector<std::string> commands{
      R"(echo '{"sides": ["cores"]}'; while read side; do echo '{"side": "cores", "value": 1.5}'; )"
      "done"};
  Contenders contenders(commands, kDeadlineS);
  std::vector<Side> sides{{kCoresSide, [] { return 1.9; }}, {"side", [] { return 7.0; }}};
  contenders.add_sides(sides);
  const TurnSummary turns = take_turns(sides, {.seconds = 0, .least = 1});
  EXPECT_TRUE(turns.all_left_out);
  EXPECT_THAT(turns.left_out, ElementsAre(1.5));
}

}  // namespace
}  // namespace armillary::bench
