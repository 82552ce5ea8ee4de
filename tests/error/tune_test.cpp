// tune_test.cpp: the verbs `tune` and `advise`: their output, the cache, measurements on threads,
// and questions that cannot be answered.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// A small question; flags are added to it.
std::vector<std::string> asking(std::vector<std::string> flags) {
  std::vector<std::string> all{"tune", "--cluster", "c8", "--seq", "4096", "--head-dim", "128"};
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

TEST(Tune, PrintsATableExplanationsAndJson) {
  const Folder folder;
  setenv("ARMILLARY_CACHE", folder.path("cache").c_str(), 1);
  const ProgramRun table = run(asking({"--explain"}));
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr(" on c8: 4 ranks, "), HasSubstr(" simulated\n"),
                               HasSubstr("| candidate | ms |"), HasSubstr("| chosen |"),
                               HasSubstr(" times as long: ")));
  const ProgramRun again = run(asking({"--explain"}));
  EXPECT_EQ(again.out, table.out);
  EXPECT_EQ(run(asking({"--explain", "--no-cache"})).out, table.out);
  EXPECT_THAT(run(asking({"--json"})).out, StartsWith("{\"floor_s\":"));
  const ProgramRun some = run(asking({"--strategies", "startrail", "--top", "40", "--no-cache"}));
  EXPECT_THAT(some.out, AllOf(StartsWith("startrail:c=2"), HasSubstr(",placement=p2p_intra, "),
                              Not(HasSubstr("| ring")), Not(HasSubstr("| usp"))));
  unsetenv("ARMILLARY_CACHE");
}

TEST(TuneError, QuestionsThatCannotBeAnswered) {
  expect_error({"tune"}, StartsWith("--cluster: none given; a preset"));
  expect_error({"tune", "--cluster", "c88"}, HasSubstr("nearest: c8"));
  expect_error(asking({"--world", "5", "--no-cache"}), HasSubstr("5"));
  expect_error(asking({"--placement", "here"}), HasSubstr("by_node"));
  expect_error(asking({"--layout", "zigzg"}), HasSubstr("nearest is 'zigzag'"));
  expect_error(asking({"--top", "0"}), HasSubstr("--top"));
  expect_error(asking({"--strategies", "ring,startrial"}),
               AllOf(StartsWith("--strategies: 'startrial' is no name of a strategy; "),
                     HasSubstr("nearest: startrail")));
  expect_error(asking({"--strategies", "startrail:c=2"}), HasSubstr("nearest: startrail"));
  expect_error(asking({"--strategies", "ring,PipeFusion"}),
               AllOf(StartsWith("--strategies: 'PipeFusion' attends to K and V of an earlier"),
                     HasSubstr("nearest: ring")));
  expect_error(asking({"--strategies", "ring,"}), StartsWith("--strategies: '' is no name"));
  expect_error(asking({"--strategies", std::string(100000, 'k')}),
               HasSubstr("kk.. (99745 bytes left out) ..kk"));
  expect_error(asking({"--dtype", "fp64", "--no-cache"}), HasSubstr("no kernel curve for fp64"));
  expect_error({"tune", "--cluster", "c8", "--seq", "40000000", "--no-cache"},
               AllOf(HasSubstr(": does not fit: needs "), HasSubstr(" GiB, has "),
                     HasSubstr(", the longest sequence that fits is ")));
}

/// The reason is that of the strategy; what would do is named.
TEST(TuneError, StrategiesThatDoNotSolveTheProblem) {
  const std::string others = "; strategies that solve the problem: allgather, ";
  expect_error(
      asking({"--strategies", "ulysses", "--heads", "3", "--no-cache"}),
      AllOf(StartsWith("tune: strategy: ulysses spreads heads 4 ways but there are 3 query "
                       "heads; u must not exceed the heads; nearest: usp:u=2" +
                       others)));
  expect_error(asking({"--world", "3", "--strategies", "usp,startrail", "--no-cache"}),
               AllOf(HasSubstr("tune: strategy: no value of the keys of usp:u=U"),
                     HasSubstr("fits world 3; "),
                     HasSubstr("no value of the keys of startrail:c=C"), HasSubstr(others)));
  expect_error(asking({"--world", "3", "--strategies", "usp", "--exhaustive"}),
               HasSubstr("no value of the keys of usp:u=U"));
}

/// One that is left out among others is told too.
TEST(Tune, SaysWhichOfTheNamedStrategiesDoesNotFit) {
  const ProgramRun some =
      run(asking({"--strategies", "ring,ulysses", "--heads", "3", "--no-cache"}));
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_THAT(some.out,
              HasSubstr("  left out: strategy: ulysses spreads heads 4 ways but there are "
                        "3 query heads; u must not exceed the heads; nearest: usp:u=2\n"));
  EXPECT_THAT(run(asking({"--strategies", "ring", "--heads", "3", "--no-cache"})).out,
              Not(HasSubstr("left out")));
}

TEST(TuneMeasure, QuestionsThatCannotBeMeasured) {
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  const auto measuring = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--measure", "--no-cache"});
    return asking(flags);
  };
  expect_error(measuring({"--candidates", "0"}), HasSubstr("--candidates"));
  expect_error(measuring({"--batch", "2"}), HasSubstr("a batch of 1"));
  expect_error(measuring({"--exhaustive"}), HasSubstr("one of them is required"));
  expect_error(measuring({"--seconds", "x"}), HasSubstr("--seconds"));
  expect_error(measuring({"--pass", "backward", "--world", "2"}),
               HasSubstr("--pass forward or both is required"));
  expect_error(measuring({"--engine", "carrier"}), HasSubstr("--engine carrier"));
  expect_error({"launch", "-n", "2", "--", "tune", "--cluster", "c8"},
               HasSubstr("tune without --measure"));
}

// The choice by measurement is one of the candidates; it is kept, and `auto` then takes it.
TEST(TuneMeasure, RunsTheBestCandidatesAndKeepsTheAnswer) {
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  const Folder folder;
  setenv("ARMILLARY_CACHE", folder.path("cache").c_str(), 1);
  const std::vector<std::string> words{
      "tune",         "--cluster", "c8",        "--world",  "2",          "--seq",
      "256",          "--heads",   "2",         "--layout", "contiguous", "--measure",
      "--candidates", "2",         "--seconds", "0"};
  const ProgramRun first = run(words);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("| candidate | measured ms |"));
  EXPECT_EQ(run(words).out, first.out) << "known from the cache, not measured again";
  unsetenv("ARMILLARY_CACHE");
}

TEST(Advise, PrintsAMeshItsReasonsAndMethods) {
  const ProgramRun text = run({"advise", "llama2-7b", "c5a", "--seq", "32768", "--methods"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(StartsWith("llama2-7b on c5a: 32768 tokens"),
                              HasSubstr("longest sequence that fits: "),
                              HasSubstr(" times as long: "), HasSubstr("| SP-Unified + ZeRO-3 |")));
  EXPECT_THAT(run({"advise", "llama2-7b", "c5a", "--seq", "32768", "--json"}).out,
              StartsWith("{\"meshes\":[{\"dp\":1,"));
}

// The recipe's model counts its own cost: 4 layers and a vocabulary of bytes.
TEST(AdviseOutput, MeshOfTheModelOfARecipe) {
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  const std::string recipe = ARMILLARY_SOURCE_DIR "/recipes/llama.toml";
  const std::string bf16 = "training.mixed_precision_param=bfloat16";
  const ProgramRun whole = run({"advise", recipe, "c6", "--seq", "8192", "--set", bf16});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, AllOf(StartsWith(recipe + " on c6: 8192 tokens, batch 1\n  dp 1, "),
                               HasSubstr(" runs with\n  armillary train RECIPE --set parallelism."
                                         "data_parallel_shard_degree=1 --set parallelism.")));
  expect_error({"advise", recipe, "c6", "--seq", "8192"},
               AllOf(HasSubstr("float32 given; bfloat16 is required"), HasSubstr("--set " + bf16)));
  expect_error({"advise", recipe, "c6", "--seq", "8192", "--set", bf16, "--set",
                "optimizer.state_device=host"},
               HasSubstr("llama.toml: optimizer.state_device host given; device is required, with "
                         "which meshes are compared: --set optimizer.state_device=device"));
  expect_error({"advise", recipe, "c6", "--seq", "8192", "--set", bf16, "--set",
                "parallelism.expert_parallel_degree=2"},
               HasSubstr("llama.toml: parallelism.expert_parallel_degree 2 given; 1 is required"));
  expect_error({"advise", recipe, "c6", "--seq", "8192", "--set", bf16, "--set", "model.dim=127"},
               HasSubstr("nearest: 128"));
  expect_error({"advise", recipe, "c6", "--seq", "8192", "--step", "dit"},
               HasSubstr("given with --step dit; --step train"));
  const ProgramRun behind = run({"advise", "--seq", "8192", recipe, "c6"}, "", start_the_file);
  EXPECT_EQ(behind.code, 2);
  EXPECT_THAT(behind.err, HasSubstr("given behind flags"));
  expect_error({"advise", "llama2-7b", "c6", "--seq", "8192", "--set", bf16},
               HasSubstr("a recipe is required"));
  expect_error({"advise", "none.toml", "c6", "--seq", "8192"}, HasSubstr("does not exist"));
}

// The patches of a picture all see each other.
TEST(AdviseOutput, MeshOfTheDitOfARecipe) {
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  const std::string recipe = ARMILLARY_SOURCE_DIR "/recipes/digits.toml";
  const auto words = [&](const std::string& seq, const std::vector<std::string>& more) {
    std::vector<std::string> all{
        "advise",  recipe, "c6",     "--seq", seq,
        "--batch", "64",   "--json", "--set", "training.mixed_precision_param=bfloat16"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const ProgramRun own = run(words("16", {}));
  EXPECT_EQ(own.code, 0) << own.err;
  EXPECT_EQ(own.out, run(words("16", {"--mask", "full"})).out);
  EXPECT_NE(own.out, run(words("16", {"--mask", "causal"})).out);
  expect_error(words("32", {}), HasSubstr("training.seq_len 32 with pictures of 8 x 8"));
  for (const char* step : {"prefill", "decode"}) {
    expect_error(words("16", {"--step", step}), HasSubstr("model.name dit, which reads no prompt"));
  }
}

// Keys that mean something on some meshes only, and the mask, are those of the recipe.
TEST(AdviseOutput, MeshesObeyTheKeysOfARecipe) {
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  const auto words = [](const std::vector<std::string>& settings,
                        const std::vector<std::string>& more) {
    const std::string recipe = ARMILLARY_SOURCE_DIR "/recipes/llama.toml";
    const std::string bf16 = "training.mixed_precision_param=bfloat16";
    std::vector<std::string> all{"advise", recipe, "c6", "--seq", "8192", "--json", "--set", bf16};
    for (const std::string& setting : settings) all.insert(all.end(), {"--set", setting});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto meshes = [&](const std::string& setting) {
    const ProgramRun advice = run(words({setting}, {}), "", start_the_file);
    EXPECT_EQ(advice.code, 0) << advice.err;
    return nlohmann::json::parse(advice.out).at("meshes");
  };
  const std::string stays = "parallelism.reshard_after_forward=false";
  for (const auto& mesh : meshes(stays)) EXPECT_EQ(mesh.at("zero").get<int>(), 3);
  const std::string keeps = "parallelism.tensor_parallel_keep_inputs=true";
  for (const auto& mesh : meshes(keeps)) EXPECT_GT(mesh.at("tp").get<int>(), 1);
  expect_error(words({stays}, {"--devices", "1"}),
               AllOf(HasSubstr("advise: no mesh of 1 device obeys every key that is set: "),
                     HasSubstr("parallelism.reshard_after_forward is false with zero = 0"),
                     HasSubstr("nearest: zero = 3")));
  const std::string window = "window:left=64,right=0";
  const auto out = [&](const std::vector<std::string>& settings,
                       const std::vector<std::string>& more) {
    return run(words(settings, more), "", start_the_file).out;
  };
  EXPECT_EQ(out({"parallelism.mask=" + window}, {}), out({}, {"--mask", window}));
  EXPECT_NE(out({}, {}), out({}, {"--mask", window}));
  EXPECT_EQ(out({}, {}), out({}, {"--mask", "causal"})) << "documents as long as their sequence";
}

TEST(AdviseError, QuestionsThatCannotBeAnswered) {
  expect_error({"advise", "llama9", "c5a", "--seq", "1024"}, HasSubstr("nearest: llama"));
  const auto expect_step_error = [](const std::vector<std::string>& more, const char* text) {
    std::vector<std::string> words{"advise", "llama2-7b", "c5a", "--seq", "1024", "--step"};
    words.insert(words.end(), more.begin(), more.end());
    expect_error(words, HasSubstr(text));
  };
  expect_step_error({"dit", "--mask", "causal"}, "mask full is required");
  expect_step_error({"prefil"}, "nearest is 'prefill'");
  expect_step_error({"prefill", "--text-tokens", "8"}, "--step dit is required");
  expect_step_error({"dit", "--methods"}, "--step train is required");
  const auto time_of = [&](const std::string& step) {
    const ProgramRun result = run({"advise", "llama2-7b", "c8", "--seq", "4096", "--step", step});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("gradients and parameters 0.000, optimizer 0.000"));
  };
  time_of("prefill");
  time_of("dit");
  const ProgramRun decode = run({"advise", "llama2-7b", "c8", "--seq", "4096", "--step", "decode"});
  EXPECT_EQ(decode.code, 0) << decode.err;
  EXPECT_THAT(decode.out, HasSubstr("behind 4096 tokens; 524288 bytes of cache a token"));
  expect_step_error({"decode", "--methods"}, "--step decode; --step train is required");
  expect_step_error({"decode", "--mask", "full"}, "--step decode; causal attention");
  expect_error({"advise", "llama2-7b", "c99", "--seq", "1024"}, HasSubstr("c99"));
  expect_error({"advise", "llama2-7b", "c5a", "--seq", "0"}, HasSubstr("--seq"));
  expect_error({"advise", "llama2-7b", "c5a", "--seq", "9", "--devices", "9"}, HasSubstr("has 8"));
  expect_error(
      {"advise", "gpt3-175b", "c2", "--seq", "1024"},
      AllOf(HasSubstr("does not fit: needs "), HasSubstr(", the longest sequence that fits is 0")));
}

}  // namespace
}  // namespace armillary::error
