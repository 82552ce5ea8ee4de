// Bad input to `armillary train`: exit code 2, one line that names what was given and what is
// required, nothing written.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Arguments = std::vector<std::string>;

class TrainErrorTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(path("empty"));
    if (!has_torch()) {
      GTEST_SKIP() << "[SKIP] the program was built without libtorch";
    }
    write("text.txt", std::string(200, 'a'));
    write("tiny.toml", fmt::format("[training]\nseq_len = 16\ndataset_path = '{}'\n"
                                   "[job]\ndump_folder = '{}'\n",
                                   path("text.txt"), path("run")));
  }

  std::string path(const std::string& name) const { return folder_.path(name); }
  void write(const std::string& name, const std::string& bytes) const {
    folder_.write(name, bytes);
  }
  std::string read(const std::string& name) const { return folder_.read(name); }

  static ProgramRun train(Arguments arguments) {
    arguments.insert(arguments.begin(), "train");
    return run(arguments);
  }

  template <class... Texts>
  void expect_train_refused(Arguments arguments, const Texts&... texts) const {
    arguments.insert(arguments.begin(), "train");
    expect_error(arguments, AllOf(HasSubstr(texts)...));
    EXPECT_FALSE(std::filesystem::exists(path("run")));
  }
  template <class... Texts>
  void expect_setting_refused(const std::string& setting, const Texts&... texts) const {
    expect_train_refused({path("tiny.toml"), "--set", setting}, texts...);
  }

 private:
  const Folder folder_;
};

TEST_F(TrainErrorTest, Recipes) {
  expect_train_refused({}, "recipe");
  expect_train_refused({path("none.toml")}, "none.toml' does not exist; a TOML file is required");
  expect_train_refused({path("empty")}, "empty' is a folder; a TOML file is required");
  write("bad.toml", "[training]\nsteps = \"ten\"\n");
  expect_train_refused({path("bad.toml")}, "bad.toml:2: training.steps is a string; an integer");
  write("bad.toml", "[trainig]\nsteps = 10\n");
  expect_train_refused({path("bad.toml")}, "bad.toml:1: section 'trainig'", "nearest: training");
  write("bad.toml", "[training\n");
  expect_train_refused({path("bad.toml")}, "bad.toml:1: ", "TOML is required");
  write("bad.toml", "\xFF\xFE");
  expect_train_refused({path("bad.toml")}, "bad.toml: not UTF-8 at byte 0; TOML is required");
}

// Opening a pipe waits for somebody who writes; run() ends the program after a minute.
TEST_F(TrainErrorTest, PipesAndDevicesAreNotWaitedFor) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  expect_train_refused({path("pipe")}, "pipe' is a pipe; a TOML file is required");
  expect_train_refused({"/dev/zero"}, "recipe: '/dev/zero' is a device; a TOML file is required");
  expect_setting_refused("training.dataset_path=" + path("pipe"),
                         "pipe' is a pipe; a folder or a file of text is required");
}

TEST_F(TrainErrorTest, StrategiesThatTheTunerChooses) {
  unsetenv("ARMILLARY_CLUSTER");
  expect_setting_refused("parallelism.strategy=auto", "auto without a cluster; auto:cluster=NAME");
  expect_setting_refused("parallelism.strategy=auto:cluster=c88", "preset 'c88'", "nearest: c8");
  expect_setting_refused("parallelism.strategy=auto:cluster=no.toml", "no.toml");
  setenv("ARMILLARY_CACHE", path("cache").c_str(), 1);
  // c8 has 4 devices, and kernels in bf16.
  const auto with = [&](const std::string& world) {
    return Arguments{path("tiny.toml"), "--dry-run",
                     "--set",           "parallelism.strategy=auto:cluster=c8",
                     "--set",           "parallelism.context_parallel_degree=" + world,
                     "--set",           "training.mixed_precision_param=bfloat16"};
  };
  const ProgramRun four = train(with("4"));
  EXPECT_EQ(four.code, 0) << four.err;
  EXPECT_THAT(four.out,
              AllOf(HasSubstr("strategy auto:cluster=c8 on c8: "),
                    HasSubstr(" ms a layer (simulated); "), HasSubstr(" times as long\n")));
  EXPECT_THAT(four.out, testing::Not(HasSubstr("attention   auto")));
  expect_train_refused(with("5"), "5");
  unsetenv("ARMILLARY_CACHE");
}

TEST_F(TrainErrorTest, Settings) {
  expect_setting_refused("training.step=3", "nearest: steps");
  expect_setting_refused("training.steps=99999999999999999999", "an integer is required");
  expect_setting_refused("optimizer.name=SGD",
                         "optimizer.name 'SGD' is not known; AdamW or Adam is required");
  expect_setting_refused("model.n_heads=3", "nearest: n_heads 2");
  expect_setting_refused("model.n_kv_heads=3", "n_kv_heads must divide n_heads");
  expect_setting_refused("parallelism.mask=causl", "causal");
  expect_setting_refused("parallelism.layout=zigzug", "zigzag");
  expect_setting_refused("parallelism.strategy=rang", "ring");
  expect_setting_refused("parallelism.strategy=usp:u=8", "8");
  expect_setting_refused("parallelism.context_parallel_degree=0", "between 1 and 1024");
  expect_setting_refused("model.scale=tny", "full or tiny is required; nearest: tiny");
}

// A run on one rank of a recipe for many is told what does nothing; nothing is saved by accident.
TEST_F(TrainErrorTest, SettingsWithoutEffect) {
  expect_setting_refused("checkpoint.interval=100",
                         "checkpoint.interval = 100 with checkpoint.enable = false, where nothing",
                         "nearest: checkpoint.enable = true");
  expect_setting_refused("checkpoint.folder=other",
                         "checkpoint.folder = other with checkpoint.enable = false, where nothing",
                         "; checkpoints, the default, is required; nearest: checkpoint.enable");
  expect_train_refused({path("tiny.toml"), "--set", "lr_scheduler.decay_ratio=0", "--set",
                        "lr_scheduler.decay_type=linear"},
                       "lr_scheduler.decay_type = linear with lr_scheduler.decay_ratio = 0");
  const std::string line =
      "parallelism.zero = 3 has no effect with data_parallel_shard_degree 1 and "
      "context_parallel_degree 1, where nothing is divided";
  const Arguments zero{path("tiny.toml"), "--set", "parallelism.zero=3"};
  const auto with = [&](const Arguments& more) {
    Arguments all = zero;
    all.insert(all.end(), more.begin(), more.end());
    return train(all);
  };
  EXPECT_THAT(with({"--dry-run"}).out, HasSubstr("\nnote        " + line + "\n"));
  const auto dry = nlohmann::json::parse(with({"--dry-run", "--json"}).out);
  EXPECT_EQ(dry.at("without_effect"), nlohmann::json::array({line}));
  const ProgramRun trained = with({"--set", "training.steps=2", "--set", "model.dim=16", "--json"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, StartsWith(nlohmann::json{{"notice", line}}.dump() + "\n"));
  EXPECT_THAT(train({path("tiny.toml"), "--dry-run"}).out, testing::Not(HasSubstr("no effect")));
  // A run that saves nothing may go on from checkpoints.
  EXPECT_THAT(train({path("tiny.toml"), "--set", "checkpoint.folder=other", "--resume"}).err,
              HasSubstr("run/other has no whole checkpoint to resume from"));
}

TEST_F(TrainErrorTest, Text) {
  expect_setting_refused("training.dataset_path=", "training.dataset_path is empty");
  expect_setting_refused("training.dataset_path=" + path("none"), "none' does not exist");
  expect_setting_refused("training.dataset_path=" + path("empty"), "empty holds no text");
  expect_setting_refused("training.seq_len=201", "nearest seq_len: 200");
  write("latin1.txt", "caf\xE9");
  expect_setting_refused("training.dataset_path=" + path("latin1.txt"),
                         "latin1.txt is not UTF-8 at byte 3");
  expect_setting_refused("job.dump_folder=" + path("text.txt/run"), "text.txt/run",
                         "cannot be made (Not a directory)");
}

TEST_F(TrainErrorTest, GoodInputIsNotRefused) {
  const std::string tiny = path("tiny.toml");
  EXPECT_EQ(train({tiny, "--print-config"}).code, 0);
  EXPECT_EQ(train({tiny, "--dry-run", "--json"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  const ProgramRun trained =
      train({tiny, "--set", "training.steps=2", "--set", "model.dim=16", "--json"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(trained.out, read("run/metrics.jsonl"));
  const ProgramRun failed =
      train({tiny, "--set", "optimizer.lr=1e30", "--set", "lr_scheduler.warmup_steps=0"});
  EXPECT_EQ(failed.code, 1) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("lower optimizer.lr"));
}

// The dry run of a recipe of a paper needs no text: its mask follows no documents.
TEST_F(TrainErrorTest, RecipesOfPapers) {
  const std::string recipe = ARMILLARY_SOURCE_DIR "/recipes/papers/gpt_3b.toml";
  const ProgramRun full = train({recipe, "--dry-run"});
  EXPECT_EQ(full.code, 0) << full.err;
  EXPECT_EQ(run({"verify", recipe}, "", start_the_file).code, 0);
  EXPECT_THAT(full.out, AllOf(HasSubstr("gpt, 2621874176 parameters\n"), HasSubstr("32 ranks\n")));
  expect_train_refused({recipe, "--dry-run", "--set", "parallelism.mask=documents"},
                       "training.dataset_path is empty");
  const Arguments tiny{recipe, "--set", "model.scale=tiny"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tiny.begin(), tiny.end());
    return more;
  };
  expect_train_refused(with({}), "training.dataset_path is empty");
  const ProgramRun printed = train(with({"--print-config"}));
  EXPECT_THAT(printed.out, AllOf(HasSubstr("\nn_layers = 2 "), HasSubstr("\"startrail:c=2\"")));
  // The printed recipe is the same run.
  write("printed.toml", printed.out);
  EXPECT_EQ(train({path("printed.toml"), "--dry-run"}).out, train(with({"--dry-run"})).out);
}

TEST_F(TrainErrorTest, TheMeshOfACluster) {
  const std::string tiny = path("tiny.toml");
  const std::string bf16 = "training.mixed_precision_param=bfloat16";
  const ProgramRun printed = train({tiny, "--mesh", "auto:c8", "--set", bf16, "--print-config"});
  EXPECT_EQ(printed.code, 0) << printed.err;
  // c8 has 4 devices, and there is one sequence: cp or tp, or both.
  const auto degree = [&](const std::string& key) {
    const std::size_t at = printed.out.find("\n" + key + " = ");
    return at == std::string::npos ? 0 : std::stoi(printed.out.substr(at + key.size() + 4));
  };
  EXPECT_EQ(degree("data_parallel_shard_degree"), 1) << printed.out;
  EXPECT_EQ(degree("context_parallel_degree") * degree("tensor_parallel_degree"), 4) << printed.out;
  const auto expect_mesh_refused = [&](const char* mesh, const std::string& setting,
                                       const char* text) {
    expect_train_refused({tiny, "--mesh", mesh, "--set", setting}, text);
  };
  expect_mesh_refused("c8", bf16, "--mesh: 'c8' given; auto:CLUSTER is required");
  expect_mesh_refused("auto:c88", bf16, "nearest: c8");
  expect_mesh_refused("auto:c8", "training.steps=2", "bfloat16 is required");
  // The text of --mesh is told before what the recipe lacks for it.
  expect_mesh_refused("c8", "training.steps=2", "--mesh: 'c8' given; auto:CLUSTER is required");
  expect_mesh_refused("auto:", "training.steps=2", "--mesh: 'auto:' given; auto:CLUSTER");
  expect_mesh_refused("auto:c88", "training.steps=2", "nearest: c8");
  expect_train_refused(
      {tiny, "--mesh", "auto:c8", "--set", bf16, "--set", "optimizer.state_device=host"},
      "tiny.toml: optimizer.state_device host given; device is required");
}

TEST_F(TrainErrorTest, TheMeshOfAClusterObeysTheRecipe) {
  const auto with = [&](const char* mesh, const std::string& setting) {
    return Arguments{path("tiny.toml"),
                     "--mesh",
                     mesh,
                     "--set",
                     setting,
                     "--set",
                     "training.mixed_precision_param=bfloat16"};
  };
  const auto printed = [&](const std::string& setting) {
    Arguments words = with("auto:c8", setting);
    words.emplace_back("--print-config");
    const ProgramRun config = train(words);
    EXPECT_EQ(config.code, 0) << config.err;
    return config.out;
  };
  EXPECT_THAT(printed("parallelism.reshard_after_forward=false"), HasSubstr("\nzero = 3 "));
  EXPECT_THAT(printed("parallelism.tensor_parallel_keep_inputs=true"),
              Not(HasSubstr("\ntensor_parallel_degree = 1 ")));
  EXPECT_THAT(printed("training.mixed_precision_reduce=bfloat16"),
              Not(HasSubstr("\ncontext_parallel_degree = 1 ")));
  expect_train_refused(with("auto:c10:nodes=4", "parallelism.tensor_parallel_keep_inputs=true"),
                       "advise: no mesh of 4 devices obeys every key that is set: ",
                       "tensor_parallel_keep_inputs is true with tensor_parallel_degree 1");
}

TEST_F(TrainErrorTest, TheMeshOfAClusterForADit) {
  const std::string recipe = ARMILLARY_SOURCE_DIR "/recipes/digits.toml";
  const ProgramRun printed = train({recipe, "--mesh", "auto:c8", "--set",
                                    "training.mixed_precision_param=bfloat16", "--print-config"});
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(printed.out, HasSubstr("\nmask = \"full\""));
}

// No mesh has passes of the file's 5 sequences out of 8; the printed recipe has those of `advise`.
TEST_F(TrainErrorTest, TheMeshOfAClusterHasItsLocalBatchSize) {
  const std::string batch = path("batch.toml");
  write("batch.toml", fmt::format("[training]\nseq_len = 16\ndataset_path = '{}'\n"
                                  "mixed_precision_param = 'bfloat16'\n"
                                  "global_batch_size = 8\nlocal_batch_size = 5\n",
                                  path("text.txt")));
  const ProgramRun printed = train({batch, "--mesh", "auto:c8", "--print-config"});
  ASSERT_EQ(printed.code, 0) << printed.err;
  const std::string key = "\nlocal_batch_size = ";
  const std::size_t at = printed.out.find(key);
  ASSERT_NE(at, std::string::npos) << printed.out;
  const int local = std::stoi(printed.out.substr(at + key.size()));
  EXPECT_EQ(8 % local, 0) << printed.out;
  EXPECT_THAT(run({"advise", batch, "c8", "--seq", "16", "--batch", "8"}).out,
              HasSubstr(fmt::format("--set training.local_batch_size={} "
                                    "--set training.global_batch_size=8\n",
                                    local)));
  write("printed.toml", printed.out);
  EXPECT_EQ(train({path("printed.toml"), "--dry-run"}).code, 0);
  expect_train_refused(
      {batch, "--mesh", "auto:c8", "--set", "training.local_batch_size=1"},
      "train: --set training.local_batch_size=1 and --mesh auto:c8 given, which chooses it");
}

// The mesh of a cluster as a file, as --print-config writes it, and what a reader may break in it.
TEST_F(TrainErrorTest, AMeshThatWasEditedByHand) {
  const ProgramRun printed = train({path("tiny.toml"), "--mesh", "auto:c8", "--set",
                                    "training.mixed_precision_param=bfloat16", "--print-config"});
  ASSERT_EQ(printed.code, 0) << printed.err;
  const auto expect_edit_refused = [&](const std::string& key, const std::string& line,
                                       const auto&... texts) {
    const std::size_t begin = printed.out.find("\n" + key + " = ");
    ASSERT_NE(begin, std::string::npos) << key;
    const std::size_t end = printed.out.find('\n', begin + 1);
    write("mesh.toml",
          printed.out.substr(0, begin) + "\n" + line + printed.out.substr(end, std::string::npos));
    expect_train_refused({path("mesh.toml")}, texts...);
  };
  write("mesh.toml", printed.out);
  EXPECT_EQ(train({path("mesh.toml"), "--dry-run"}).code, 0);
  expect_edit_refused("context_parallel_degree", "context_parallel_degre = 4",
                      "mesh.toml:", "nearest: context_parallel_degree");
  expect_edit_refused("context_parallel_degree", "context_parallel_degree = \"4\"",
                      "mesh.toml:", "is a string; an integer is required");
  expect_edit_refused("tensor_parallel_degree", "tensor_parallel_degree = 0",
                      "mesh.toml:", "between 1 and 1024");
  expect_edit_refused("tensor_parallel_degree", "tensor_parallel_degree = 64", " over tp 64; ",
                      "nearest: tp ");
  expect_edit_refused("data_parallel_shard_degree", "data_parallel_shard_degree = 3",
                      "a multiple of 3 is required; nearest: 3");
  expect_edit_refused("data_parallel_shard_degree", "data_parallel_shard_degree = 512",
                      "a mesh of ", " ranks; at most 1024 are required");
  expect_edit_refused("pipeline_parallel_degree", "pipeline_parallel_degree = 2",
                      "pp 2, an axis that is not built yet");
  expect_edit_refused("zero", "zero = 4", "parallelism.zero = 4; a value between 0 and 3");
  expect_edit_refused("zero", "zero = 1\nzero = 1", "mesh.toml:");
}

TEST_F(TrainErrorTest, AKeyThatTheMeshChoosesIsNotSetToo) {
  expect_train_refused(
      {path("tiny.toml"), "--mesh", "auto:c8", "--set", "training.mixed_precision_param=bfloat16",
       "--set", "parallelism.zero=3"},
      "train: --set parallelism.zero=3 and --mesh auto:c8 given, which chooses it");
}

TEST_F(TrainErrorTest, TheStepOfARecipeIsPrintedProvedAndBroken) {
  const auto with_recipe = [&](const char* verb, Arguments more) {
    Arguments words{verb,    path("tiny.toml"),   "--set", "parallelism.context_parallel_degree=2",
                    "--set", "parallelism.zero=3"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, "", start_the_file);
  };
  const ProgramRun grid = with_recipe("plan", {});
  EXPECT_EQ(grid.code, 0) << grid.err;
  EXPECT_THAT(grid.out, AllOf(HasSubstr("tiny.toml: 2 ranks, 6 units, 1 microbatch, ZeRO-3\n"),
                              HasSubstr("layers.0"), HasSubstr("gather(")));
  const ProgramRun proof = with_recipe("verify", {});
  EXPECT_EQ(proof.code, 0) << proof.err;
  EXPECT_THAT(proof.out, HasSubstr(": proved: every gradient is summed once"));
  const ProgramRun broken = with_recipe("verify", {"--break", "0"});
  EXPECT_EQ(broken.code, 1) << broken.err;
  EXPECT_THAT(broken.out,
              AllOf(StartsWith("broken: "), HasSubstr("<-- HERE"), HasSubstr(": NOT proved\n")));
  EXPECT_EQ(with_recipe("verify", {"--break", "100000"}).code, 2);
}

// At full size, on the papers' clusters: seconds are at least those of the operations at the peak.
TEST_F(TrainErrorTest, StepsOfThePapersAreSimulated) {
  struct Published {
    const char* recipe;
    const char* cluster;
    int ranks;
    int zero;
    double seq;
    double flops_per_s;  ///< Sum of the devices.
    double flops;        ///< 6 a parameter and token, and attention's.
  };
  for (const Published& of : {Published{"llama2_7b", "c5a", 8, 1, 65536, 8 * 312e12, 6.0e15},
                              {"gpt_760m", "c9", 64, 3, 32768, 64 * 312e12, 3.8e14}}) {
    const std::string recipe =
        fmt::format("{}/recipes/papers/{}.toml", ARMILLARY_SOURCE_DIR, of.recipe);
    const ProgramRun step =
        run({"simulate", recipe, "--cluster", of.cluster, "--json"}, "", start_the_file);
    ASSERT_EQ(step.code, 0) << step.err;
    const auto line = nlohmann::json::parse(step.out);
    EXPECT_EQ(line.at("ranks"), of.ranks) << step.out;
    EXPECT_EQ(line.at("zero"), of.zero) << step.out;
    const double seconds = line.at("end_s").get<double>();
    EXPECT_GE(seconds, line.at("compute_s").get<double>()) << step.out;
    EXPECT_NEAR(line.at("tokens_per_s").get<double>() * seconds, of.seq, 1e-6 * of.seq) << step.out;
    EXPECT_GT(seconds, of.flops / of.flops_per_s) << step.out;
    const double peak_bytes = line.at("peak_bytes").get<double>();
    EXPECT_GT(peak_bytes, 1e9) << step.out;
    EXPECT_LT(peak_bytes, 80e9) << step.out;
  }
}

TEST_F(TrainErrorTest, TheStepOfARecipeIsSimulated) {
  const std::string trace = path("step.json");
  Arguments words{
      "simulate", path("tiny.toml"),    "--set", "parallelism.context_parallel_degree=2",
      "--set",    "parallelism.zero=3", "--set", "training.mixed_precision_param=bfloat16"};
  const auto with = [&](const Arguments& more) {
    Arguments all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run(all, "", start_the_file);
  };
  const ProgramRun step = with({"--cluster", "c6", "--trace", trace});
  EXPECT_EQ(step.code, 0) << step.err;
  EXPECT_THAT(step.out, AllOf(HasSubstr("tiny.toml on c6: 2 ranks, 6 units, 1 microbatch, ZeRO-3"),
                              HasSubstr("tokens/s"), HasSubstr("exposed messages")));
  EXPECT_TRUE(std::filesystem::exists(trace));
  const std::string json = with({"--cluster", "c6", "--json"}).out;
  EXPECT_THAT(json, HasSubstr("\"exposed_s\":{\"gathers\":"));
  // Memory is that of a dry run.
  words.front() = "train";
  const auto dry = nlohmann::json::parse(with({"--dry-run", "--json"}).out);
  const double bytes = dry.at("memory_bytes").at("total").get<double>();
  EXPECT_NEAR(nlohmann::json::parse(json).at("peak_bytes").get<double>(), bytes, 0.05 * bytes);
  words.front() = "simulate";
  words.push_back("--set");
  words.push_back("parallelism.tensor_parallel_degree=2");
  const ProgramRun refused = with({"--cluster", "c10"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("tensor_parallel_degree = 2 on nodes of 1 device; a divisor "
                                     "is required; nearest: 1"));
}

TEST_F(TrainErrorTest, TheStepOfARecipeIsSimulatedInEveryDtype) {
  write("fp64.toml",
        "name = \"fp64\"\n[nodes]\ncount = 1\ndevices = 2\n[device]\nlike = \"a100-sxm\"\n"
        "matmul_fp64_TFLOPs = 18\n[messages]\nbatches = \"serial\"\n"
        "[[link]]\nfrom = \"device\"\nto = \"switch\"\nGBps = 100\n");
  const auto with = [&](Arguments words, const std::string& dtype) {
    const Arguments settings{"parallelism.context_parallel_degree=2",
                             "training.mixed_precision_param=" + dtype};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    if (dtype == "float64") words.insert(words.end(), {"--set", "training.dtype=float64"});
    return run(words, "", start_the_file);
  };
  const std::string tiny = path("tiny.toml");
  double seconds = 0;
  for (const char* dtype : {"bfloat16", "float32", "float64"}) {
    SCOPED_TRACE(dtype);
    const ProgramRun step =
        with({"simulate", tiny, "--cluster", path("fp64.toml"), "--json"}, dtype);
    ASSERT_EQ(step.code, 0) << step.err;
    const auto json = nlohmann::json::parse(step.out);
    EXPECT_GT(json.at("compute_s").get<double>(), seconds) << "a wider dtype takes longer";
    seconds = json.at("compute_s").get<double>();
    const auto dry = nlohmann::json::parse(with({"train", tiny, "--dry-run", "--json"}, dtype).out);
    const double bytes = dry.at("memory_bytes").at("total").get<double>();
    EXPECT_NEAR(json.at("peak_bytes").get<double>(), bytes, 0.05 * bytes);
    EXPECT_EQ(json.at("assumed").get<std::string>().empty(), dtype == std::string("bfloat16"));
  }
  EXPECT_THAT(with({"simulate", tiny, "--cluster", "c6"}, "float32").out,
              HasSubstr("fp32 products at 0.5 of matmul_TFLOPs, as TF32 "
                        "(no device.matmul_fp32_TFLOPs)"));
  const ProgramRun refused = with({"simulate", tiny, "--cluster", "c6"}, "float64");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("device.matmul_fp64_TFLOPs in a file of the cluster is "
                                     "required"));
}

TEST_F(TrainErrorTest, TheBatchHasANameOfItsOwn) {
  expect_setting_refused("training.local_batch_size=4",
                         "nearest: training.global_batch_size = 4, or training.local_batch_size = "
                         "1; what earlier recipes call local_batch_size is global_batch_size");
  expect_setting_refused("parallelism.data_parallel_shard_degree=2",
                         "a multiple of 2 is required; nearest: 2");
}

/// Memory is asked for before anything is allocated or written.
TEST_F(TrainErrorTest, ModelsThatDoNotFitIntoTheMachine) {
  expect_train_refused({path("tiny.toml"), "--set", "model.dim=1000000", "--set",
                        "parallelism.context_parallel_degree=3"},
                       "GiB are needed for 3 ranks, the machine has ", "lower model.dim");
}

TEST_F(TrainErrorTest, ARecipeThatIsNotLegalIsNotPrinted) {
  expect_train_refused({path("tiny.toml"), "--set", "model.n_heads=3", "--print-config"},
                       "model.n_heads 3 with model.dim 128");
}

}  // namespace
}  // namespace armillary::error
