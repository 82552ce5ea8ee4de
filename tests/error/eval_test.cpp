// eval_test.cpp: `armillary eval` as a user sees it: the loss of a run that was trained on another
// mesh, as text and as JSON, on prepared data and on text; flags that are refused.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "armillary/text/tokenizer/testing/small_tokenizers.h"
#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class EvalVerb : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
    const std::string text = folder_.write("text.txt", std::string(400, 'a'));
    recipe_ = folder_.write(
        "small.toml",
        fmt::format("[model]\ndim = 32\nn_layers = 2\nn_kv_heads = 2\nvocab_size = 300\n"
                    "[training]\nseq_len = 32\nsteps = 2\ndataset_path = '{}'\n"
                    "[job]\ndump_folder = '{}'\n[checkpoint]\nenable = true\n"
                    "[parallelism]\ncontext_parallel_degree = 2\nstrategy = 'ring'\n",
                    text, folder_.path("run")));
  }
  const Folder folder_;
  std::string recipe_;
};

TEST_F(EvalVerb, SaysTheLossOfARunOnAnotherMesh) {
  ASSERT_EQ(run({"train", recipe_}).code, 0);
  const ProgramRun one = run({"eval", folder_.path("run"), "--json", "--sequences", "3", "--set",
                              "parallelism.context_parallel_degree=1"});
  ASSERT_EQ(one.code, 0) << one.err;
  const ProgramRun three = run({"eval", folder_.path("run"), "--json", "--sequences", "3", "--set",
                                "parallelism.context_parallel_degree=3"});
  ASSERT_EQ(three.code, 0) << three.err;
  const auto loss = nlohmann::json::parse(one.out);
  const auto other = nlohmann::json::parse(three.out);
  EXPECT_EQ(loss["sequences"], 3);
  EXPECT_EQ(loss["targets"], other["targets"]);
  EXPECT_NEAR(loss["loss"].get<double>(), other["loss"].get<double>(), 1e-5);
  const ProgramRun all = run({"eval", folder_.path("run")});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, StartsWith("loss "));
  EXPECT_THAT(all.out, HasSubstr(" sequences\n"));
}

TEST_F(EvalVerb, ReadsThePartsOfPreparedData) {
  ASSERT_EQ(run({"train", recipe_}).code, 0);
  const std::string tokenizer = folder_.write("tokenizer.json", tokenizer::byte_level_json());
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += fmt::format("{{\"text\": \"document {}\"}}\n", i);
  const std::string source = folder_.write("a.jsonl", lines);
  const auto prepare = [&](const std::string& to, const std::string& validation) {
    return run({"data", "prepare", folder_.path(to), "--tokenizer", tokenizer, "--source", source,
                "--seq-len", "32", "--separator", "<|end|>", "--validation", validation});
  };
  ASSERT_EQ(prepare("tokens", "0.4").code, 0);
  ASSERT_EQ(prepare("all", "0").code, 0);
  const auto path = [&](const std::string& name) {
    return "training.dataset_path=" + folder_.path(name);
  };
  const std::string saved = folder_.path("run");
  const ProgramRun validation = run({"eval", saved, "--set", path("tokens")});
  EXPECT_EQ(validation.code, 0) << validation.err;
  const ProgramRun training = run({"eval", saved, "--set", path("tokens"), "--part", "train"});
  EXPECT_EQ(training.code, 0) << training.err;
  EXPECT_NE(validation.out, training.out);
  expect_error({"eval", saved, "--set", path("all")}, HasSubstr("prepare it with --validation"));
}

TEST_F(EvalVerb, BadInputIsRefused) {
  expect_error({"eval"}, HasSubstr("run"));
  expect_error({"eval", folder_.path("none")}, HasSubstr("neither recipe.toml nor manifest.json"));
  expect_error({"eval", folder_.path("none.toml")}, HasSubstr("none.toml' does not exist"));
  expect_error({"eval", recipe_, "--part", "test"}, HasSubstr("eval: --part"));
  expect_error({"eval", recipe_, "--sequences", "99"}, HasSubstr("eval: --sequences 99 of data"));
  expect_error({"eval", recipe_, "--init-from", folder_.path("none")}, HasSubstr("none"));
  ASSERT_EQ(run({"train", recipe_}).code, 0);
  expect_error({"eval", folder_.path("run"), "--set", "model.n_heads=16"},
               HasSubstr("eval: model.n_heads = 16 given; model.n_heads = "));
  expect_error({"eval", folder_.path("run"), "--init-from", folder_.path("run")},
               HasSubstr("one is required"));
}

}  // namespace
}  // namespace armillary::error
