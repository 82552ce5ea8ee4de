// simulate_test.cpp: the verb `simulate`: its output, and clusters and problems that cannot be
// used.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::Eq;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kCluster = R"(name = "mine"
[nodes]
count = 2
devices = 2
[device]
name = "card"
memory_GiB = 1
memory_GBps = 100
peak_TFLOPs = 10
[[device.kernel]]
pass = "both"
mask = "both"
head_dim = 64
dtype = "bf16"
TFLOPs = 5
[[link]]
from = "device"
to = "switch{n}"
GBps = 10
[[link]]
from = "switch{n}"
to = "network"
GBps = 1
)";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kCluster;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// Expects that `simulate` refuses a cluster file. The error begins with the place in it.
void expect_no_cluster(const std::string& text, const testing::Matcher<const std::string&>& error) {
  const Folder folder;
  const std::string path = folder.write("mine.toml", text);
  expect_error({"simulate", "--cluster", path, "--world", "4"}, error);
}

TEST(Simulate, PrintsATableJsonAndPresets) {
  const Folder folder;
  const std::string path = folder.write("mine.toml", kCluster);
  const ProgramRun table = run({"simulate", "--cluster", path, "--seq", "1024"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("ring forward on mine: 4 ranks"),
                               HasSubstr("ring backward on mine: 4 ranks"),
                               HasSubstr("exposed messages"), HasSubstr("switch0>network")));
  const ProgramRun folded =
      run({"simulate", "--cluster", path, "--seq", "1024", "--mask", "full", "--fold"});
  EXPECT_THAT(folded.out,
              HasSubstr("ring forward on mine: 4 ranks; folded: 2 simulated, which stand for all"));
  const ProgramRun json = run({"simulate", "--cluster", path, "--json", "--pass", "forward"});
  EXPECT_EQ(json.code, 0) << json.err;
  EXPECT_THAT(json.out, AllOf(StartsWith("{\"strategy\":\"ring\",\"pass\":\"forward\""),
                              HasSubstr("\"flows\":[")));
  const ProgramRun compared =
      run({"simulate", "--cluster", path, "--compare", "--heads", "4", "--seq", "256"});
  EXPECT_EQ(compared.code, 0) << compared.err;
  EXPECT_THAT(compared.out, AllOf(StartsWith("| strategy | total ms | forward ms"),
                                  HasSubstr("\n| ulysses | "), HasSubstr("\n| tokenring | ")));
  EXPECT_THAT(run({"simulate", "--clusters"}).out, AllOf(HasSubstr("c1 "), HasSubstr("\nc6 ")));
}

TEST(Simulate, WritesATrace) {
  const Folder folder;
  const std::string path = folder.write("mine.toml", kCluster);
  const std::string trace = folder.path("trace.json");
  ASSERT_EQ(run({"simulate", "--cluster", path, "--seq", "64", "--trace", trace}).code, 0);
  EXPECT_THAT(folder.read("trace.json"), AllOf(HasSubstr("\"traceEvents\":["),
                                               HasSubstr("\"rank 3\""), HasSubstr("\"ph\":\"X\"")));
  const std::vector<std::string> traced{"simulate", "--cluster", path, "--seq", "64", "--trace"};
  const auto to = [&](const std::string& file) {
    std::vector<std::string> all = traced;
    all.push_back(folder.path(file));
    return all;
  };
  EXPECT_EQ(run(to("new/folder/t.json")).code, 0);
  EXPECT_THAT(folder.read("new/folder/t.json"), HasSubstr("\"traceEvents\":["));
  expect_error(to("trace.json/t.json"), HasSubstr("trace.json/t.json' (Not a directory); a file"));
}

TEST(Simulate, PricesAPromptOfAModel) {
  const std::vector<std::string> words{"simulate", "--serve", "llama3-8b", "--cluster", "c5"};
  const auto with_words = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const ProgramRun table = run(with_words({"--world", "8", "--tp", "2", "--seq", "65536"}));
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out,
              AllOf(StartsWith("llama3-8b on c5: 1 sequence of 65536 tokens over 8 ranks, cp 4, tp "
                               "2, ring and zigzag\n  time to first token "),
                    HasSubstr("\n  time per token "), HasSubstr(" 131072 bytes a token on all\n"),
                    HasSubstr("\n  longest prompt ")));
  // All devices of the cluster.
  const ProgramRun json =
      run(with_words({"--seq", "1048576", "--json", "--strategy", "usp:u=8", "--batch", "1"}));
  EXPECT_EQ(json.code, 0) << json.err;
  EXPECT_THAT(json.out, AllOf(StartsWith("{\"prompt\":1048576,\"sequences\":1,\"cp\":16,\"tp\":1,"
                                         "\"strategy\":\"usp:u=8\""),
                              HasSubstr("\"cache_bytes\":8589934592.0")));
  expect_error(with_words({"--seq", "67108864"}),
               AllOf(StartsWith("simulate: 1 sequence of 67108864 tokens over cp 16, tp 1 of c5: "
                                "does not fit: needs "),
                     HasSubstr("the longest prompt that fits is ")));
  expect_error(with_words({"--heads", "8"}),
               StartsWith("simulate: --heads given with --serve, whose model has heads"));
  expect_error(with_words({"--csv", "a.csv"}), StartsWith("simulate: --csv given with --serve"));
  expect_error(with_words({"--world", "8", "--tp", "3"}), HasSubstr("is required; nearest: 2"));
  expect_error({"simulate", "--cluster", "c5", "--tp", "2"}, HasSubstr("--serve"));
  expect_error({"simulate", "--cluster", "c5", "--serve", "my.toml"},
               HasSubstr("nearest: advise my.toml --step prefill"));
}

TEST(SimulateError, ClustersThatDoNotExist) {
  expect_error({"simulate"}, StartsWith("--cluster: none given; a preset"));
  expect_error({"simulate", "--cluster", "c66"},
               AllOf(StartsWith("cluster: preset 'c66' does not exist; astra-sim-hgx-h100, b200, "),
                     HasSubstr(" or a .toml file is required; nearest: c6")));
  expect_error({"simulate", "--cluster", "none.toml"},
               Eq("cluster: 'none.toml' does not exist; a TOML file or the name of a preset is "
                  "required"));
  const Folder folder;
  ASSERT_EQ(mkfifo(folder.path("pipe.toml").c_str(), 0600), 0);
  expect_error({"simulate", "--cluster", folder.path("pipe.toml")}, HasSubstr("is a pipe; a TOML"));
  expect_error({"simulate", "--cluster", "c1:nodes=0"}, HasSubstr("nodes"));
  expect_error({"simulate", "--cluster", "c1:nods=2"}, HasSubstr("nods"));
}

TEST(SimulateError, ClustersThatAreMalformed) {
  expect_no_cluster("name = ", HasSubstr("mine.toml:1: 'name = ' is no TOML at column "));
  expect_no_cluster("name = 'a'\nname = 'b'\n",
                    HasSubstr("mine.toml:2: 'name = 'b'' gives a name again at column "));
  // Strings and comments may have dots, over several lines; keys of thousands would be walked.
  const std::string dots(100, '.');
  const std::string text = "name = \"\"\"" + dots + "\n\\\"" + dots + "\"\"\" # " + dots + "\n";
  expect_no_cluster(text, HasSubstr("nodes is missing"));
  expect_no_cluster(text + "a" + dots + "a = 1\n",
                    HasSubstr("mine.toml:3: a key of more than 16 dots; a [table] and a key are"));
  expect_no_cluster(with("memory_GiB", "memry_GiB"),
                    HasSubstr("mine.toml:5: device.memory_GiB is missing; this key is required; "
                              "nearest of those given: memry_GiB"));
  expect_no_cluster(with("peak_TFLOPs = 10", "peak_TFLOPs = 10\nlunch_us = 1"),
                    AllOf(HasSubstr("mine.toml:10: device.lunch_us is not a known key"),
                          EndsWith("nearest: launch_us")));
  expect_no_cluster(with("GBps = 10\n", "GBps = 0\n"),
                    EndsWith("link.GBps is 0; a number above 0 is required"));
  expect_no_cluster(with("GBps = 10\n", "GBps = -1.5\n"),
                    EndsWith("link.GBps is -1.5; a number above 0 is required"));
  expect_no_cluster(with("peak_TFLOPs = 10", "peak_TFLOPs = 10\nslowdown = [1, 0.5]"),
                    EndsWith("device.slowdown has 0.5; factors of at least 1 are required; "
                             "nearest: 1"));
  expect_no_cluster(with("GBps = 10\n", "GBps = inf\n"), HasSubstr("link.GBps is inf"));
  expect_no_cluster(with("GBps = 10\n", "GBps = 1e-320\n"),
                    HasSubstr("; a number from 1e-12 to 1e+24 is required"));
  expect_no_cluster(with("GBps = 10\n", "GBps = 10\nlatency_us = 1e308\n"),
                    HasSubstr("link.latency_us is 1e+308; a number from 1e-12 to 1e+24"));
  expect_no_cluster(with("GBps = 10\n", "GBps = 'x'\n"), HasSubstr("link.GBps is 'x'"));
  expect_no_cluster(with("count = 2", "count = 2.5"),
                    HasSubstr("nodes.count is 2.5; a whole number"));
  expect_no_cluster(with("pass = \"both\"", "pass = \"bth\""), EndsWith("nearest is 'both'"));
  expect_no_cluster(with("[device]", "[device]\nlike = \"a100\""), EndsWith("nearest: a10"));
  expect_no_cluster(with("switch{n}\"\nGBps = 10", "switch{x}\"\nGBps = 10"),
                    HasSubstr("'switch{x}' given; {n}, {i} or {j} is required"));
  expect_no_cluster(with("switch{n}\"\nGBps = 10", "switch{n%0}\"\nGBps = 10"),
                    HasSubstr("'switch{n%0}': '0' given; a whole number from 1"));
}

TEST(SimulateError, DevicesThatNoLinkReaches) {
  expect_no_cluster(with("to = \"network\"", "to = \"network{n}\""),
                    Eq("cluster mine: no link leads from device 0 to device 2 (node 1); links that "
                       "connect all devices are required"));
  const Folder folder;
  const std::string path = folder.write("mine.toml", with("to = \"network\"", "to = \"net{n}\""));
  expect_error({"simulate", "--cluster", path, "--world", "2"},
               StartsWith("cluster mine: no link leads from device 0 to device 2"));
}

TEST(SimulateError, MoreRanksThanDevices) {
  expect_error(
      {"simulate", "--cluster", "c6", "--world", "9"},
      Eq("cluster c6: 9 ranks given; at most its 8 devices (1 x 8) are required; its links "
         "do not connect several nodes"));
  expect_error({"simulate", "--cluster", "c1:nodes=1", "--world", "9"},
               EndsWith("(1 x 8) are required; nearest: c1:nodes=2"));
  const Folder folder;
  const std::string path = folder.write("mine.toml", with("", ""));
  expect_error({"simulate", "--cluster", path, "--world", "5"},
               EndsWith("(2 x 2) are required; nearest: nodes.count = 3 in its file"));
}

TEST(SimulateError, ADtypeWithoutAKernel) {
  expect_error({"simulate", "--cluster", "c6", "--dtype", "fp64"},
               Eq("cluster: device A100-SXM-80GB has no kernel curve for fp64; bf16 is required"));
}

TEST(SimulateError, AProblemThatDoesNotFit) {
  const Folder folder;
  const std::string path = folder.write("mine.toml", kCluster);
  const auto simulate = [&](const std::string& seq) {
    return std::vector<std::string>{"simulate", "--cluster", path, "--mask", "full", "--seq", seq};
  };
  const ProgramRun result = run(simulate("4194304"));
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  const std::string before = "GiB, has 1.00, the longest sequence that fits is ";
  ASSERT_THAT(result.err, AllOf(StartsWith("armillary: ring on mine: 4194304 tokens: does not fit: "
                                           "needs "),
                                HasSubstr(before)));
  // The answer is exact: one token more does not fit.
  const std::int64_t fits = std::stoll(result.err.substr(result.err.find(before) + before.size()));
  EXPECT_EQ(run(simulate(std::to_string(fits))).code, 0);
  EXPECT_EQ(run(simulate(std::to_string(fits + 4))).code, 2);
}

}  // namespace
}  // namespace armillary::error
