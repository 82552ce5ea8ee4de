// check_test.cpp: `armillary check` as a user sees it: its lines and its report, and recipes and
// flags that are refused.
#include <nlohmann/json.hpp>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class CheckVerb : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
    recipe_ = folder_.write("small.toml",
                            "[model]\ndim = 32\nn_layers = 2\nn_kv_heads = 2\n"
                            "[training]\nseq_len = 64\n"
                            "[parallelism]\ncontext_parallel_degree = 3\nstrategy = 'ring'\n");
  }
  const Folder folder_;
  std::string recipe_;
};

TEST_F(CheckVerb, PrintsEachComparisonWithItsBound) {
  const std::string report = folder_.path("report.json");
  const ProgramRun result = run({"check", recipe_, "--tokens", "50", "--report", report});
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out,
              StartsWith("gpt, float32, 50 tokens: 3 ranks, strategy ring, layout "
                         "zigzag, mask documents, transfer dtype accumulator\nok    loss  "));
  for (const std::string row : {"gradients", "attention outputs", "leak", "determinism"}) {
    EXPECT_THAT(result.out, HasSubstr("\nok    " + row + " "));
  }
  EXPECT_THAT(result.out, HasSubstr("\nequal to one device\n"));
  const auto json = nlohmann::json::parse(folder_.read("report.json"));
  EXPECT_TRUE(json["ok"]);
  EXPECT_EQ(json["world"], 3);
  ASSERT_EQ(json["rows"].size(), 5U);
  EXPECT_EQ(json["rows"][0]["bound"], 1e-5);
}

TEST_F(CheckVerb, OneRankSpreadsNothing) {
  const ProgramRun result =
      run({"check", recipe_, "--tokens", "20", "--set", "parallelism.context_parallel_degree=1"});
  EXPECT_EQ(result.code, 2) << result.err << result.out;
  EXPECT_THAT(result.out, StartsWith("gpt, float32, 20 tokens: 1 rank, strategy ring"));
  EXPECT_THAT(result.out, HasSubstr("\nok on one rank, where nothing is spread: "));
  EXPECT_THAT(result.out, Not(HasSubstr("equal to one device")));
}

TEST_F(CheckVerb, BadInputIsRefused) {
  expect_error({"check"}, HasSubstr("recipe"));
  expect_error({"check", folder_.path("none.toml")}, HasSubstr("none.toml' does not exist"));
  expect_error({"check", recipe_, "--tokens", "0"},
               HasSubstr("check: --tokens 0 given; at least 1 is required"));
  expect_error({"check", recipe_, "--set", "parallelism.strategy=rng"}, HasSubstr("nearest: ring"));
  expect_error({"check", recipe_, "--set", "model.name=moe", "--set",
                "parallelism.expert_parallel_degree=3"},
               HasSubstr("parallelism.expert_parallel_degree = 3; every rank of a check has all"));
  const std::string pictures = folder_.write(
      "pictures.toml",
      "[model]\nname = 'dit'\ndim = 16\nn_layers = 1\nn_heads = 2\nimage_height = 48\n"
      "image_width = 48\npatch_size = 2\n[training]\nseq_len = 576\n"
      "[parallelism]\nmask = 'full'\n");
  expect_error({"check", pictures},
               HasSubstr("check: --tokens 512 with training.seq_len 576 of a dit, whose pictures "
                         "are not cut; at least 576 is required; nearest: --tokens 576"));
  expect_error({"check", pictures, "--tokens", "575"}, HasSubstr("check: --tokens 575 with"));
  expect_error({"check", pictures, "--tokens", "576", "--set", "model.image_width=40"},
               HasSubstr("training.seq_len 576 with pictures of 48 x 40 in patches of 2"));
  expect_error({"check", recipe_, "--init-from", folder_.path("none")}, HasSubstr("none"));
  expect_error({"check", recipe_, "--report", "/proc/none/report.txt"}, HasSubstr("/proc/none"));
  expect_error({"check", recipe_, "--engine", "gloo"}, HasSubstr("--engine"));
}

}  // namespace
}  // namespace armillary::error
