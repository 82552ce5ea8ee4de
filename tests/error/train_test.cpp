// Bad input to `armillary train`: exit code 2, one line that names what was given and what is
// required, nothing written.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::string contents(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class TrainErrorTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "empty");
    if (run("--help").out.find("built without") != std::string::npos) {
      GTEST_SKIP() << "[SKIP] the program was built without libtorch";
    }
    write("text.txt", std::string(200, 'a'));
    write("tiny.toml", fmt::format("[training]\nseq_len = 16\ndataset_path = '{}'\n"
                                   "[job]\ndump_folder = '{}'\n",
                                   path("text.txt"), path("run")));
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }

  struct Result {
    int code;
    std::string out;
    std::string err;
  };
  Result run(const std::string& arguments) const {
    const int status = std::system(fmt::format("'{}' train {} >'{}' 2>'{}'", ARMILLARY_PROGRAM,
                                               arguments, path("out"), path("err"))
                                       .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(folder_ / "out"),
            contents(folder_ / "err")};
  }

  template <class... Texts>
  void expect_refused(const std::string& arguments, const Texts&... texts) const {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 2) << arguments << '\n' << result.err;
    EXPECT_THAT(result.err, AllOf(StartsWith("armillary: "), EndsWith("\n"), HasSubstr(texts)...));
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << "one line: " << result.err;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_FALSE(fs::exists(folder_ / "run")) << arguments;
  }
  template <class... Texts>
  void expect_setting_refused(const std::string& setting, const Texts&... texts) const {
    expect_refused(fmt::format("{} --set '{}'", path("tiny.toml"), setting), texts...);
  }

 private:
  const fs::path folder_ =
      fs::temp_directory_path() / fmt::format("armillary_train_error_test_{}", getpid());
};

TEST_F(TrainErrorTest, Recipes) {
  expect_refused("", "recipe");
  expect_refused(path("none.toml"), "none.toml' does not exist; a TOML file is required");
  expect_refused(path("empty"), "empty' is a folder; a TOML file is required");
  write("bad.toml", "[training]\nsteps = \"ten\"\n");
  expect_refused(path("bad.toml"), "bad.toml:2: training.steps is a string; an integer");
  write("bad.toml", "[trainig]\nsteps = 10\n");
  expect_refused(path("bad.toml"), "bad.toml:1: section 'trainig'", "nearest: training");
  write("bad.toml", "[training\n");
  expect_refused(path("bad.toml"), "bad.toml:1: ", "TOML is required");
  write("bad.toml", "\xFF\xFE");
  expect_refused(path("bad.toml"), "bad.toml is not UTF-8 at byte 0");
}

TEST_F(TrainErrorTest, Settings) {
  expect_setting_refused("training.step=3", "nearest: steps");
  expect_setting_refused("training.steps=99999999999999999999", "an integer is required");
  expect_setting_refused("model.n_heads=3", "nearest: n_heads 2");
  expect_setting_refused("model.n_kv_heads=3", "n_kv_heads must divide n_heads");
  expect_setting_refused("parallelism.mask=causl", "causal");
  expect_setting_refused("parallelism.layout=zigzug", "zigzag");
  expect_setting_refused("parallelism.strategy=rang", "ring");
  expect_setting_refused("parallelism.strategy=usp:u=8", "8");
  expect_setting_refused("parallelism.context_parallel_degree=0", "between 1 and 1024");
}

TEST_F(TrainErrorTest, Text) {
  expect_setting_refused("training.dataset_path=", "training.dataset_path is empty");
  expect_setting_refused("training.dataset_path=" + path("none"), "none' does not exist");
  expect_setting_refused("training.dataset_path=" + path("empty"), "empty holds no text");
  expect_setting_refused("training.seq_len=201", "nearest seq_len: 200");
  write("latin1.txt", "caf\xE9");
  expect_setting_refused("training.dataset_path=" + path("latin1.txt"),
                         "latin1.txt is not UTF-8 at byte 3");
  expect_setting_refused("job.dump_folder=" + path("text.txt/run"), "text.txt/run cannot be made");
}

TEST_F(TrainErrorTest, GoodInputIsNotRefused) {
  const std::string tiny = path("tiny.toml");
  EXPECT_EQ(run(tiny + " --print-config").code, 0);
  EXPECT_EQ(run(tiny + " --dry-run --json").code, 0);
  EXPECT_FALSE(fs::exists(path("run")));
  const Result trained = run(tiny + " --set training.steps=2 --set model.dim=16 --json");
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(trained.out, contents(path("run/metrics.jsonl")));
  const Result failed = run(tiny + " --set optimizer.lr=1e30 --set lr_scheduler.warmup_steps=0");
  EXPECT_EQ(failed.code, 1) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("lower optimizer.lr"));
}

}  // namespace
