// bench_test.cpp: `armillary bench` refuses bad input before it measures anything, and every bench
// measures in its smallest size.
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::Contains;
using testing::Eq;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::json;

class Bench : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_torch()) {
      GTEST_SKIP() << "[SKIP] the program was built without libtorch";
    }
  }

  static void expect_bench_refused(const std::string& bench, const std::vector<std::string>& flags,
                                   const std::string& error) {
    std::vector<std::string> arguments{"bench", bench};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    expect_error(arguments, StartsWith(error));
  }

  /// The JSON lines of a bench that takes as few turns as it can.
  static std::vector<Json> measure(std::vector<std::string> arguments,
                                   const std::string& input = "") {
    arguments.insert(arguments.begin(), "bench");
    const ProgramRun result = run(arguments, input);
    EXPECT_EQ(result.code, 0) << result.err;
    std::vector<Json> lines;
    std::istringstream out(result.out);
    for (std::string line; std::getline(out, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  static void expect_above_zero(const Json& line, const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      EXPECT_GT(line.value(key, 0.0), 0) << key << " of " << line.dump();
    }
  }
};

using BenchError = Bench;

TEST_F(BenchError, BenchesThatThereAreNot) {
  expect_error({"bench"}, Eq("bench: what to measure is not named; kernel, layer, overlap, live, "
                             "collectives, merge, cores or turns is required"));
  expect_error({"bench", "kernl"}, Eq("bench: 'kernl' is not known; kernel, layer, overlap, live, "
                                      "collectives, merge, cores or turns is "
                                      "required; nearest is 'kernel'"));
  expect_error({"bench", "kernel", "--token", "8"}, HasSubstr("nearest: --tokens"));
}

TEST_F(BenchError, KernelsThatThereAreNot) {
  expect_bench_refused("kernel", {"--head-dim", "257", "--tokens", "64"},
                       "attend: head dim 257; 1 to 256 is required");
  expect_bench_refused("kernel", {"--head-dim", "0"}, "--head-dim: '0' given");
  expect_bench_refused("kernel", {"--tokens", "-1"}, "--tokens: '-1' given");
  expect_bench_refused("kernel", {"--threads", "0"}, "--threads: '0' given");
  expect_bench_refused("kernel", {"--threads", "100000"},
                       "bench: 100000 threads; 1 to 1024 is required");
  expect_bench_refused("kernel", {"--seconds", "-1"}, "--seconds: '-1' given");
  expect_bench_refused("kernel", {"--dtype", "fp64"},
                       "bench: dtype fp64; fp32, bf16 or fp16 is required");
  expect_bench_refused("kernel", {"--dtype", "int8"}, "dtype: 'int8' is not known");
  expect_bench_refused("kernel", {"--mask", "causl"}, "mask: 'causl' is not known");
  expect_bench_refused("kernel", {"--pass", "both"}, "--pass: 'both' is not known");
  expect_bench_refused("kernel", {"--heads", "6", "--kv-heads", "4"},
                       "bench: 4096 tokens, world 1, 6 heads, 4 KV heads;");
}

TEST_F(BenchError, LayersAndMergesThatThereAreNot) {
  expect_bench_refused("layer", {"--tokens", "0"}, "--tokens: '0' given");
  expect_bench_refused("layer", {"--world", "0"}, "--world: '0' given");
  expect_bench_refused("layer", {"--dtype", "fp64"}, "bench: dtype fp64;");
  expect_bench_refused("layer", {"--strategy", "rong"}, "strategy: unknown name 'rong'");
  expect_bench_refused("layer", {"--strategy", "ulysses", "--heads", "1"},
                       "strategy: ulysses spreads heads 2 ways");
  expect_bench_refused("layer", {"--layout", "zigzack"}, "layout: 'zigzack' is not known");
  expect_bench_refused("merge", {"--tokens", "0"}, "--tokens: '0' given");
  expect_bench_refused(
      "layer", {"--world", "2000"},
      "bench: 1024 tokens a rank, world 2000; at least 1 each, at most 1024 ranks, are");
  expect_bench_refused("merge", {"--threads", "0"}, "--threads: '0' given");
  expect_bench_refused(
      "merge", {"--threads", "2000"},
      "bench: 16384 tokens, 8 heads, head dim 128, 2000 threads; at least 1 each, at ");
}

TEST_F(BenchError, CollectivesThatThereAreNot) {
  expect_bench_refused("collectives", {"--bytes", "3"}, "--bytes: '3' given");
  expect_bench_refused("collectives", {"--bytes", "6"},
                       "bench: 6 bytes for fp32; a multiple of 4 from 4 on is required");
  expect_bench_refused("collectives", {"--world", "1"}, "bench: 1 rank; at least 2 are required");
}

TEST_F(BenchError, TurnsThatThereAreNot) {
  expect_bench_refused("turns", {}, "turns: no program given; at least one --against COMMAND");
  const std::vector<std::string> other{"--against", "exit 1"};
  const auto refused = [&](const std::string& flag, const std::string& value) {
    expect_bench_refused("turns", {other[0], other[1], flag, value},
                         flag + ": '" + value + "' given");
  };
  refused("--seconds", "-1");
  refused("--least", "0");
  refused("--deadline", "0");
  expect_bench_refused("kernel", {other[0], other[1], "--on-request"},
                       "--against excludes --on-request");
}

TEST_F(Bench, KernelMeasures) {
  const auto lines = measure({"kernel", "--tokens", "64", "--heads", "2", "--pass", "backward",
                              "--sdpa", "--seconds", "0", "--json"});
  ASSERT_EQ(lines.size(), 1U);
  expect_above_zero(lines[0], {"flops", "gflops", "peak_gflops", "of_peak", "max_error",
                               "sdpa_gflops", "over_sdpa", "sdpa_max_error"});
  EXPECT_EQ(lines[0]["turns"], 3);
  EXPECT_LT(lines[0]["max_error"], 1e-5);
  EXPECT_LT(lines[0]["sdpa_max_error"], 1e-5);
}

/// Its gradients of Q and K are zero: the rest that rounding leaves is no error.
TEST_F(Bench, KernelMeasuresOneToken) {
  const auto lines = measure({"kernel", "--tokens", "1", "--heads", "1", "--head-dim", "2",
                              "--pass", "backward", "--seconds", "0", "--json"});
  ASSERT_EQ(lines.size(), 1U);
  expect_above_zero(lines[0], {"gflops"});
}

TEST_F(Bench, LayerMeasuresEveryStrategyAndPass) {
  const auto lines =
      measure({"layer", "--tokens", "32", "--heads", "2", "--head-dim", "8", "--strategy", "ring",
               "--strategy", "ulysses", "--seconds", "0", "--json"});
  ASSERT_EQ(lines.size(), 4U);
  for (const Json& line : lines) {
    expect_above_zero(line, {"seconds", "kernel_seconds", "one_rank_seconds", "efficiency",
                             "busy_rank_seconds", "efficiency_busy", "gflops", "ops", "max_error"});
    EXPECT_LT(line["max_error"], 1e-5);
  }
  EXPECT_EQ(lines[1]["strategy"], "ring");
  EXPECT_EQ(lines[1]["pass"], "forward+backward");
}

TEST_F(Bench, MergeMeasures) {
  const auto lines = measure({"merge", "--tokens", "64", "--seconds", "0", "--json"});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["what"], "merge");
  EXPECT_EQ(lines[1]["what"], "add");
  for (const Json& line : lines) expect_above_zero(line, {"gbytes_per_s", "of_memory"});
}

/// Efficiencies of two ranks are those of turns with two cores; results say so where they are not.
TEST_F(Bench, SeveralThreadsSayWhichTurnsAreLeftOut) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"layer", "--tokens", "16", "--heads", "1", "--head-dim", "8", "--no-kernels"},
           {"kernel", "--tokens", "16", "--heads", "1", "--head-dim", "8", "--threads", "2"},
           {"merge", "--tokens", "64", "--threads", "2"},
           {"cores"}}) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--seconds", "0", "--json"});
    for (const Json& line : measure(all)) {
      const int left_out = line["left_out_turns"];
      EXPECT_EQ(line["left_out_cores"].size(), left_out) << line.dump();
      EXPECT_EQ(line["all_left_out"], left_out == 3) << line.dump();
      EXPECT_EQ(line["turns"], left_out == 3 ? 3 : 3 - left_out) << line.dump();
    }
  }
  const auto one = measure({"kernel", "--tokens", "16", "--seconds", "0", "--json"});
  EXPECT_FALSE(one[0].contains("left_out_turns")) << one[0].dump();
  const ProgramRun text = run({"bench", "cores", "--seconds", "0"});
  EXPECT_THAT(text.out, HasSubstr("left out"));
}

TEST_F(Bench, SidesRunOnRequest) {
  const auto lines = measure({"kernel", "--tokens", "64", "--on-request"}, "kernel\npeak\n");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[0]["sides"], Contains("kernel"));
  EXPECT_EQ(lines[1]["side"], "kernel");
  EXPECT_EQ(lines[2]["side"], "peak");
  expect_above_zero(lines[1], {"value"});
  const ProgramRun unknown = run({"bench", "kernel", "--tokens", "64", "--on-request"}, "kernal\n");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("side: 'kernal' is not known"));
}

/// A contender as a user would write it: it answers 0.5 for every side.
const char* const kHalf =
    R"(echo '{"sides": ["half"], "version": 3}'; while read side; do echo '{"side": "half", )"
    R"("value": 0.5}'; done)";

TEST_F(Bench, OtherProgramsTakeTurnsWithEveryBench) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"kernel", "--tokens", "16", "--heads", "1", "--head-dim", "8"},
           {"layer", "--tokens", "16", "--heads", "1", "--head-dim", "8", "--no-kernels"},
           {"merge", "--tokens", "64"}}) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--against", kHalf, "--against", "echo 'not there' >&2", "--seconds",
                           "0", "--json"});
    const auto lines = measure(all);
    ASSERT_GE(lines.size(), 2U);
    const Json& turns = lines.back();
    EXPECT_EQ(turns["bench"], "turns");
    EXPECT_EQ(turns["medians"]["half"], 0.5);
    EXPECT_EQ(turns["contenders"][0]["facts"], Json({{"version", 3}}));
    EXPECT_EQ(turns["contenders"][1]["reason"], "not there");
    EXPECT_EQ(turns["turns"], lines[0]["turns"]);
    EXPECT_GT(turns["medians"].size(), 2U) << "the sides of this program";
  }
}

TEST_F(Bench, TurnsAreOfOtherProgramsAlone) {
  const auto lines = measure({"turns", "--against", kHalf, "--against", kHalf, "--seconds", "0",
                              "--least", "5", "--json"});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["turns"], 5);
  EXPECT_EQ(lines[0]["medians"], Json({{"half", 0.5}, {"half #2", 0.5}}));
  const auto with_cores =
      measure({"turns", "--against", kHalf, "--cores", "--seconds", "0", "--json"});
  EXPECT_TRUE(with_cores[0].contains("left_out_turns"));
  expect_above_zero(with_cores[0]["medians"], {"cores", "half"});
  const ProgramRun text = run({"bench", "turns", "--against", kHalf, "--seconds", "0"});
  EXPECT_EQ(text.out, "half: median 0.5, least 0.5\n");
}

TEST_F(Bench, FlagsAreThoseOfTheCase) {
  const auto kernel =
      measure({"kernel",     "--tokens",  "8",      "--heads", "4",        "--kv-heads",  "2",
               "--head-dim", "4",         "--mask", "full",    "--layout", "zigzag",      "--world",
               "3",          "--threads", "2",      "--dtype", "bf16",     "--on-request"});
  ASSERT_EQ(kernel.size(), 1U);
  const Json wanted_kernel{{"tokens", 8},   {"heads", 4},      {"kv_heads", 2},
                           {"head_dim", 4}, {"mask", "full"},  {"world", 3},
                           {"threads", 2},  {"dtype", "bf16"}, {"layout", "zigzag"}};
  for (const auto& [key, value] : wanted_kernel.items()) EXPECT_EQ(kernel[0][key], value) << key;
  const auto layer = measure({"layer", "--tokens", "8", "--heads", "4", "--kv-heads", "2",
                              "--head-dim", "4", "--mask", "full", "--layout", "striped", "--world",
                              "3", "--no-kernels", "--on-request"});
  ASSERT_EQ(layer.size(), 1U);
  const Json wanted_layer{{"tokens", 8},    {"heads", 4},          {"kv_heads", 2}, {"head_dim", 4},
                          {"mask", "full"}, {"layout", "striped"}, {"world", 3}};
  for (const auto& [key, value] : wanted_layer.items()) EXPECT_EQ(layer[0][key], value) << key;
  EXPECT_THAT(layer[0]["sides"].dump(), Not(HasSubstr("kernels")));
}

}  // namespace
}  // namespace armillary::error
