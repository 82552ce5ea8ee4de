// help_test.cpp: verbs, help texts and their examples, which must work as printed, and output that
// cannot be written.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "armillary/core/user_text.h"
#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::Eq;
using testing::HasSubstr;

TEST(Help, EveryVerbHasExamples) {
  for (const std::string verb :
       {"plan", "verify", "simulate", "tune", "advise", "report", "explain", "runs", "data",
        "train", "eval", "generate", "sample", "export", "check", "calibrate", "doctor"}) {
    for (const std::string flag : {"--help", "-h"}) {
      if (verb != "plan" && verb != "verify" && verb != "simulate" && verb != "tune" &&
          verb != "advise" && verb != "report" && verb != "explain" && verb != "runs" &&
          verb != "data" && !has_torch())
        continue;
      const ProgramRun result = run({verb, flag});
      EXPECT_EQ(result.code, 0) << verb;
      EXPECT_EQ(result.err, "") << verb;
      EXPECT_THAT(result.out, HasSubstr("Examples:\n  armillary " + verb)) << verb;
    }
  }
}

// `armillary` starts in milliseconds because it does not know libtorch.
TEST(Help, VerbsThatNeedLibtorchAreHandedOver) {
  const auto knows_libtorch = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string program{std::istreambuf_iterator<char>(file), {}};
    return program.find("libtorch_cpu.so") != std::string::npos;
  };
  EXPECT_FALSE(knows_libtorch(ARMILLARY_PROGRAM));
  EXPECT_EQ(knows_libtorch(ARMILLARY_PROGRAM "-torch"), has_torch());
  EXPECT_EQ(run({"plan", "--world", "2"}, "", start_the_file).code, 0);
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"train", "--help"},
                                                    {"bench", "layer", "-h"},
                                                    {"doctor", "--help"},
                                                    {"train"},
                                                    {"train", "no such.toml", "--set", "a=b c"},
                                                    {"bench", "layer", "--tokens", "x"},
                                                    {"train", "--", "--help"}}) {
    const ProgramRun here = run(arguments);
    const ProgramRun there = run(arguments, "", start_the_file);
    EXPECT_EQ(there.code, here.code) << fmt::format("{}", fmt::join(arguments, " "));
    EXPECT_EQ(there.out, here.out);
    EXPECT_EQ(there.err, here.err);
  }
}

TEST(Help, NamesVerbsAndExitCodes) {
  for (const std::string flag : {"--help", "-h"}) {
    const ProgramRun result = run({flag});
    EXPECT_EQ(result.code, 0);
    for (const std::string text : {"plan", "verify", "simulate", "report", "explain", "train",
                                   "doctor", "0 done", "1 a run failed", "2 bad input"}) {
      EXPECT_THAT(result.out, HasSubstr(text));
    }
  }
}

/// Every example of the help texts that ends in a plan or a proof does what it says.
TEST(Help, ExamplesWork) {
  for (const std::string verb : {"plan", "verify"}) {
    const std::string help = run({verb, "--help"}).out;
    const std::string start = "\n  armillary " + verb + " ";
    int examples = 0;
    for (std::size_t at = help.find(start); at != std::string::npos;
         at = help.find(start, at + 1)) {
      const std::size_t begin = at + start.size();
      std::string line = help.substr(begin, help.find('\n', begin) - begin);
      if (line.find('|') != std::string::npos) continue;  // A pipe: in verify_test.cpp.
      line = line.substr(0, line.find(" >"));
      std::vector<std::string> arguments{verb};
      for (std::size_t word = 0; word < line.size();) {
        const std::size_t end = std::min(line.find(' ', word), line.size());
        arguments.push_back(line.substr(word, end - word));
        word = end + 1;
      }
      const Folder folder;  // for what an example writes
      std::replace(arguments.begin(), arguments.end(), std::string("proofs"),
                   folder.path("proofs"));
      // A recipe is read by the program with libtorch.
      const bool reads_recipe = arguments[1].starts_with("recipes/");
      if (reads_recipe && !has_torch()) continue;
      if (reads_recipe) arguments[1].insert(0, ARMILLARY_SOURCE_DIR "/");
      const ProgramRun result = run(arguments, "", reads_recipe ? start_the_file : be_the_program);
      const bool broken = line.find("--break") != std::string::npos;
      EXPECT_EQ(result.code, broken ? 1 : 0) << line << '\n' << result.err;
      EXPECT_NE(result.out, "") << line;
      ++examples;
    }
    EXPECT_GE(examples, 3) << verb;
  }
}

TEST(Plan, ListsAndComparesStrategies) {
  const ProgramRun list = run({"plan", "--list"});
  const ProgramRun table = run({"plan", "--compare", "--world", "4"});
  EXPECT_EQ(list.code, 0) << list.err;
  EXPECT_EQ(table.code, 0) << table.err;
  for (const std::string name : {"ring", "allgather", "ulysses", "usp:u="}) {
    EXPECT_THAT(list.out, HasSubstr(name));
    EXPECT_THAT(table.out, HasSubstr("| " + name));
  }
}

// 2 neighbours are a node: with Ulysses inside, only K, V of the ring leave it.
TEST(Plan, ComparesWhatLeavesNodes) {
  const ProgramRun table = run({"plan", "--compare", "--world", "4", "--ranks-per-node", "2"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("| between nodes MiB | backward |"));
  const ProgramRun together = run({"plan", "--compare", "--world", "4", "--ranks-per-node", "4"});
  EXPECT_THAT(together.out, HasSubstr("| 0.00 | 0.00 |\n"));
}

TEST(Plan, PrintsAGrid) {
  const ProgramRun result = run({"plan", "--world", "2", "--seq", "8", "--mask", "full"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, testing::AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"),
                                         HasSubstr("step 0    kv0>r1"), HasSubstr("q0*kv1")));
}

TEST(VerbError, VerbsThatDoNotExist) {
  const std::string required =
      "plan, verify, simulate, tune, advise, report, explain, runs, launch, data, train, eval, "
      "generate, sample, export, check, bench, calibrate or doctor is required";
  expect_error({}, Eq("no verb given; " + required));
  expect_error({"plna"}, Eq("unknown verb 'plna'; " + required + "; nearest: plan"));
  expect_error({"Verify"}, Eq("unknown verb 'Verify'; " + required + "; nearest: verify"));
  expect_error({"optimise"}, Eq("unknown verb 'optimise'; " + required));
  expect_error({""}, Eq("unknown verb ''; " + required));
  expect_error({"--world", "4"}, Eq("flag '--world' before the verb; plan, verify, simulate, "
                                    "tune, advise, report, explain, runs, launch, data, "
                                    "train, eval, generate, sample, export, check, bench, "
                                    "calibrate or doctor is required first, or "
                                    "--help"));
  expect_error({"sweep", "--cluster", "c6"},
               Eq("sweep: simulate takes ranges now; `armillary simulate --world 8..64 ..` is "
                  "required"));
  expect_error({"validate"},
               Eq("validate: simulate predicts published measurements now; `armillary simulate "
                  "--published` is required"));
  expect_error({"plan", "verify"},
               Eq("'verify' given, which is not known here; arguments of --help are required"));
}

// A terminal obeys control characters, and nobody reads a key of 100,000 letters.
TEST(VerbError, TextOfUsersIsPrintableAndShort) {
  expect_error({"\x1b[2J\xff"}, HasSubstr("unknown verb '\\x1b[2J\\xff'; plan, "));
  expect_error({"plan", "--strategy", "r\nng"}, HasSubstr("strategy: unknown name 'r\\x0ang'"));
  const std::string letters(100'000, 'k');
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {letters},
           {"--" + letters},
           {"plan", letters},
           {"plan", "--" + letters},
           {"plan", "--strategy", letters},
           {"plan", "--strategy", "usp:" + letters + "=2"},
           {"plan", "--strategy", "ring:" + letters},
           {"plan", "--world", letters},
           {"plan", "--mask", letters},
           {"plan", "--mask", "window:" + letters},
           {"plan", "--layout", letters},
           {"plan", "--lower", letters},
           {"plan", "--dtype", letters},
           {"verify", "--break", letters},
           {"simulate", "--cluster", letters},
           {"simulate", "--cluster", "c1:" + letters + "=1"},
           {"simulate", "--cluster", "c6", "--seq", letters + ",1"},
           {"simulate", "--cluster", "c6", "--seq", "8192", "--bandwidth", letters},
           {"tune", "--cluster", "c6", "--seq", "8192", "--strategies", letters},
           {"advise", letters, "c6", "--seq", "8192"}}) {
    const ProgramRun result = run(arguments);
    EXPECT_EQ(result.code, 2) << arguments.front().substr(0, 20);
    EXPECT_LT(result.err.size(), 9000U) << result.err.substr(0, 200);
    EXPECT_THAT(result.err, HasSubstr("bytes")) << result.err.substr(0, 200);
  }
}

TEST(VerbError, FlagsThatDoNotGoTogether) {
  expect_error({"plan", "--list", "--json"}, Eq("--json excludes --list"));
  expect_error({"plan", "--compare", "--strategy", "ring"}, Eq("--strategy excludes --compare"));
  expect_error({"plan", "--ranks-per-node", "2"}, Eq("--ranks-per-node requires --compare"));
  expect_error({"plan", "--compare", "--ranks-per-node", "0"},
               HasSubstr("--ranks-per-node: '0' given"));
}

TEST(VerbError, AWorldThatIsTooLargeToCompareGivesNoTable) {
  const ProgramRun refused = run({"plan", "--compare", "--world", "3000"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("at most 1024 ranks"));
}

/// The lower bound is of one length.
TEST(Compare, HasNoBoundWhereQueriesAndKeysDiffer) {
  const std::vector<std::string> common{"plan", "--compare", "--world", "4", "--mask", "full"};
  const auto table = [&](const std::string& kv_len) {
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(), {"--seq", "64", "--kv-seq", kv_len});
    const ProgramRun result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(table("64"), testing::Not(HasSubstr("| - |")));
  EXPECT_THAT(table("6400"), HasSubstr("| - |"));
}

/// A text of a user is shown whole up to kMostQuotedBytes; the rest of each line is ours.
TEST(Errors, LongTextsAreCutWhereverTheyAreEchoed) {
  const Folder folder;
  const std::string text(100'000, 'k');
  std::vector<std::vector<std::string>> lines{
      {text},
      {"plan", text},
      {"plan", "--" + text},
      {"plan", "--world", text},
      {"plan", "--mask", text},
      {"plan", "--mask", "window:" + text + "=3"},
      {"plan", "--mask", "documents:1," + text},
      {"plan", "--layout", text},
      {"plan", "--strategy", text},
      {"plan", "--strategy", "ring:" + text + "=1"},
      {"plan", "--strategy", "ring:backward=" + text},
      {"plan", "--strategy", "auto:" + text},
      {"plan", "--strategy", "auto:cluster=" + text + ".toml"},
      {"plan", "--dtype", text},
      {"plan", "--lower", text},
      {"verify", "--file", text},
      {"verify", "--file", folder.path("plans") + text},
      {"verify", "--break", text},
      {"verify", "--save-proof", text},
      {"simulate", "--cluster", text},
      {"simulate", "--cluster", text + ".toml"},
      {"simulate", "--cluster", "c6", "--trace", text},
      {"simulate", "--cluster", "c6:" + text + "=1"},
      {"tune", "--cluster", text + ".toml"},
      {"tune", "--cluster", "c6", "--placement", text},
      {"tune", "--cluster", "c6", "--against", text},
      {"advise", text, "c6"},
      {"advise", text + ".toml", "c6"},
      {"advise", "llama2-7b", text + ".toml"},
      {"report", "--cluster", "c6", "--run", text},
      {"report", "--cluster", "c6", "--out", text},
      {"simulate", "--cluster", "c6", "--csv", text},
      {"simulate", "--cluster", "c6", "--strategies", text},
      {"simulate", "--rows", text},
      {"simulate", "--rows", folder.path("none") + text},
      {"explain", text},
      {"explain", folder.path("run"), "--trace", text},
      {"runs", text},
      {"launch", "-n", text, "--", "train"},
      {"launch", "-n", "2", "--", text},
      {"launch", "-n", "2", "--engine", text, "--", "train"},
  };
  if (has_torch()) {
    const std::string recipe = ARMILLARY_SOURCE_DIR "/recipes/default.toml";
    lines.insert(lines.end(), {{"train", text},
                               {"train", text + ".toml"},
                               {"train", recipe, "--set", text},
                               {"train", recipe, "--set", "training." + text + "=3"},
                               {"train", recipe, "--set", "training.steps=" + text},
                               {"train", recipe, "--set", "training.dataset_path=" + text},
                               {"train", recipe, "--init-from", text},
                               {"check", text},
                               {"check", recipe, "--init-from", text},
                               {"generate", text, "--prompt-file", recipe},
                               {"generate", folder.path("run"), "--prompt-file", text},
                               {"generate", "x", "--prompt-file", recipe, "--layout", text},
                               {"generate", "x", "--prompt-file", recipe, "--strategy", text},
                               {"export", text, folder.path("out")},
                               {"export", folder.path("run"), text},
                               {"export", folder.path("run"), folder.path("out"), "--format", text},
                               {"bench", text},
                               {"calibrate", "--out", text},
                               {"doctor", text}});
  }
  for (const std::vector<std::string>& line : lines) {
    const ProgramRun refused = run(line);
    std::string shown;
    for (const std::string& word : line) shown += word.substr(0, 40) + " ";
    EXPECT_EQ(refused.code, 2) << shown << refused.err.substr(0, 300);
    EXPECT_NE(refused.err, "") << shown;
    std::size_t most = 0;  // letters of the text in a row
    for (std::size_t at = 0; (at = refused.err.find('k', at)) != std::string::npos;) {
      const std::size_t end = std::min(refused.err.find_first_not_of('k', at), refused.err.size());
      most = std::max(most, end - at);
      at = end;
    }
    EXPECT_LE(most, kMostQuotedBytes) << shown << refused.err.substr(0, 300);
    EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << shown;
  }
}

// Launchers end all processes with the first that exits, perhaps before the others have said
// theirs.
TEST(BadInput, OneOfSeveralProcessesStaysBehindItsLine) {
  const auto seconds = [] {
    const auto begin = std::chrono::steady_clock::now();
    expect_error({"plan", "--strategy", "rng"}, HasSubstr("nearest: ring"));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  setenv("RANK", "1", 1);
  setenv("WORLD_SIZE", "2", 1);
  const double of_two = seconds();
  unsetenv("WORLD_SIZE");
  const double of_unknown = seconds();
  setenv("WORLD_SIZE", "1", 1);
  setenv("RANK", "0", 1);
  const double of_one = seconds();
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  EXPECT_GE(of_two, 1);
  EXPECT_GE(of_unknown, 1);
  EXPECT_LT(of_one, of_two);
}

/// Output that cannot be written is a failure of the program.
TEST(Output, ThatCannotBeWrittenIsAFailure) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "[SKIP] no /dev/full";
  const Folder folder;
  for (const std::string arguments : {"plan", "plan --json --seq 100000 --world 64", "verify"}) {
    const int status = std::system(
        fmt::format("'{}' {} >/dev/full 2>'{}'", ARMILLARY_PROGRAM, arguments, folder.path("err"))
            .c_str());
    ASSERT_TRUE(WIFEXITED(status)) << arguments;
    EXPECT_EQ(WEXITSTATUS(status), 1) << arguments;
    EXPECT_THAT(folder.read("err"), testing::StartsWith("armillary: ")) << arguments;
  }
}

/// Outputs are regular files. A pipe that nobody reads would be waited for.
TEST(Output, PipesAreRefusedAtOnce) {
  const Folder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::vector<std::string> small{"--cluster", "c6", "--world", "2", "--seq", "256"};
  for (std::vector<std::string> line : {std::vector<std::string>{"report", "--out", pipe},
                                        {"simulate", "--csv", pipe},
                                        {"simulate", "--trace", pipe}}) {
    line.insert(line.end(), small.begin(), small.end());
    if (line[1] != "--csv") line.insert(line.end(), {"--head-dim", "128"});
    expect_error(line, Eq(fmt::format("{}: cannot write '{}' (is a pipe); a file that can be "
                                      "written is required",
                                      line[0], pipe)));
  }
  if (!has_torch()) return;
  expect_error({"calibrate", "--out", pipe}, HasSubstr("(is a pipe); a file that can be written"));
  expect_error({"check", ARMILLARY_SOURCE_DIR "/recipes/default.toml", "--report", pipe},
               HasSubstr("(is a pipe); a file that can be written"));
}

/// Streams that the shell has opened, and devices, are written to: `>`, `|`, `>(..)`, /dev/null.
TEST(Output, OpenStreamsAndDevicesAreWritten) {
  const Folder folder;
  const std::string ranges = fmt::format(
      "'{}' simulate --cluster c6 --world 2 --seq 256 --head-dim 128 --strategies ring --csv ",
      ARMILLARY_PROGRAM);
  const auto written = [&](const std::string& rest) {
    const std::string out = folder.path("csv");
    std::filesystem::remove(out);
    const std::string line =
        fmt::format("{} 2>'{}'", ranges + fmt::format(fmt::runtime(rest), out), folder.path("err"));
    EXPECT_EQ(std::system(fmt::format("bash -c \"{}\"", line).c_str()), 0)
        << line << folder.read("err");
    return folder.read("csv");
  };
  for (const std::string rest : {"'{}'", "/dev/stdout >'{}'", "/dev/stdout | cat >'{}'",
                                 "/dev/fd/3 3>&1 | cat >'{}'", "/proc/self/fd/1 | cat >'{}'"}) {
    EXPECT_THAT(written(rest), testing::StartsWith("world,seq,")) << rest;
  }
  EXPECT_EQ(written("/dev/null"), "");
}

/// Ring on 4 ranks, causal, contiguous, fp32: a block of K and V is 2 x 256 tokens x 8 heads x 512
/// values = 8 MiB; the ranks send 1, 2, 3 and 0 of them, and attend to 1, 3, 5 and 7 half blocks of
/// pairs (but for the diagonal).
TEST(Compare, OfRingIsWhatIsWorkedByHand) {
  const auto row_of_ring = [](std::vector<std::string> more) {
    std::vector<std::string> arguments{"plan",    "--compare", "--world",    "4",
                                       "--seq",   "1024",      "--head-dim", "512",
                                       "--dtype", "fp32",      "--heads",    "8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramRun result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    const std::size_t begin = result.out.find("\n| ring |") + 1;
    return result.out.substr(begin, result.out.find('\n', begin) - begin);
  };
  EXPECT_THAT(row_of_ring({}), testing::StartsWith("| ring | 1.75 | 4 | 24.00 | 2.00 |"));
  // Nodes are {0, 1} and {2, 3}: what rank 1 sends leaves its node, and nothing else.
  EXPECT_THAT(row_of_ring({"--ranks-per-node", "2"}), HasSubstr("| 16.00 | "));
}

TEST(Plan, SaysWhatTheBusiestRankSendsAndReceives) {
  const ProgramRun result = run({"plan", "--world", "4", "--seq", "1024", "--head-dim", "512",
                                 "--dtype", "fp32", "--heads", "8"});
  // Rank 2 sends 3 blocks of K and V of 8 MiB; rank 3 receives 3. Rank 0 receives none.
  EXPECT_THAT(result.out, HasSubstr("world 4, 4 steps; most on one rank: 25165824 bytes sent, "
                                    "25165824 received, "));
}

TEST(Help, SaysItsVersion) {
  const ProgramRun result = run({"--version"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, testing::MatchesRegex("armillary [0-9]+\\.[0-9]+\\.[0-9]+.*\n"));
}

/// Rank 0 has 2 of 5 tokens and sends them to three; the others have one, and receive at most 4. A
/// token's K and V are 2048 bytes.
TEST(Plan, WhatIsReceivedIsNotWhatIsSent) {
  const ProgramRun result =
      run({"plan", "--strategy", "allgather", "--world", "4", "--seq", "5", "--mask", "full"});
  EXPECT_THAT(result.out, HasSubstr("most on one rank: 12288 bytes sent, 8192 received, "));
}

}  // namespace
}  // namespace armillary::error
