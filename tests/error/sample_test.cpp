// sample_test.cpp: `armillary sample` as a user sees it: pictures of a run that was trained on
// another mesh, as a PNG and as values; flags that are refused.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "armillary/io/file_system.h"
#include "armillary/io/safetensors.h"
#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::HasSubstr;

class SampleVerb : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
    std::vector<std::uint8_t> pictures(240);
    for (std::size_t i = 0; i < pictures.size(); ++i) {
      pictures[i] = static_cast<std::uint8_t>(i * 7 % 256);
    }
    const std::vector<std::int64_t> classes{0, 1, 0, 1, 0};
    io::write_safetensors(
        io::real_file_system(), data_,
        {{{.name = "pictures", .dtype = io::TensorDtype::U8, .shape = {5, 4, 4, 3}},
          std::as_bytes(std::span(pictures))},
         {{.name = "classes", .dtype = io::TensorDtype::I64, .shape = {5}},
          std::as_bytes(std::span(classes))}},
        {});
    recipe_ = folder_.write(
        "small.toml",
        fmt::format("[model]\nname = 'dit'\ndim = 16\nn_layers = 2\nn_heads = 2\nimage_height = 4\n"
                    "image_width = 4\nchannels = 3\nn_classes = 2\n"
                    "[training]\nseq_len = 4\nsteps = 2\ndataset_path = '{}'\n"
                    "[job]\ndump_folder = '{}'\n[checkpoint]\nenable = true\n"
                    "[parallelism]\ncontext_parallel_degree = 2\nmask = 'full'\n",
                    data_, folder_.path("run")));
  }

  std::vector<float> values_of(const std::string& name) const {
    const io::SafetensorsFile file(folder_.path(name));
    const auto bytes = file.bytes("pictures");
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  const Folder folder_;
  const std::string data_ = folder_.path("pictures.safetensors");
  std::string recipe_;
};

TEST_F(SampleVerb, MakesPicturesOfARunOnAnyMesh) {
  ASSERT_EQ(run({"train", recipe_}).code, 0);
  const auto sample = [&](const std::string& file, const std::string& setting) {
    return run({"sample", folder_.path("run"), folder_.path(file), "--count", "5", "--steps", "3",
                "--guidance", "2", "--set", setting});
  };
  const ProgramRun one = sample("one.safetensors", "parallelism.context_parallel_degree=1");
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("5 pictures in "));
  const ProgramRun three = sample("three.safetensors", "parallelism.context_parallel_degree=3");
  ASSERT_EQ(three.code, 0) << three.err;
  const std::vector<float> mine = values_of("one.safetensors");
  const std::vector<float> theirs = values_of("three.safetensors");
  ASSERT_EQ(mine.size(), 5U * 48);
  for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_NEAR(mine[i], theirs[i], 1e-4) << i;

  const ProgramRun ranks = run({"sample", folder_.path("run"), folder_.path("ranks.safetensors"),
                                "--count", "5", "--steps", "3", "--guidance", "2", "--guidance-by",
                                "ranks", "--set", "parallelism.data_parallel_shard_degree=2"});
  ASSERT_EQ(ranks.code, 0) << ranks.err;
  const std::vector<float> by_ranks = values_of("ranks.safetensors");
  ASSERT_EQ(by_ranks.size(), mine.size());
  for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_NEAR(mine[i], by_ranks[i], 1e-4) << i;

  const ProgramRun png = sample("grid.png", "parallelism.tensor_parallel_degree=2");
  ASSERT_EQ(png.code, 0) << png.err;
  const std::string bytes = folder_.read("grid.png");
  EXPECT_TRUE(bytes.starts_with("\x89PNG\r\n\x1a\n"));
  // 5 pictures of 4 x 4 in rows of 3: width 12, height 8, 8 bits, red, green and blue.
  EXPECT_EQ(bytes.substr(16, 10), std::string("\0\0\0\x0c\0\0\0\x08\x08\x02", 10));
}

TEST_F(SampleVerb, TrainingReadsPicturesWithTheirWords) {
  const std::vector<std::string> settings{
      "--set", "model.words=cross", "--set", "model.text_tokens=2", "--set", "model.vocab_size=5"};
  std::vector<std::string> sample{"sample",  recipe_,   folder_.path("words.safetensors"),
                                  "--words", "4,1",     "--count",
                                  "3",       "--steps", "1"};
  sample.insert(sample.end(), settings.begin(), settings.end());
  const ProgramRun sampled = run(sample);
  ASSERT_EQ(sampled.code, 0) << sampled.err;
  const io::SafetensorsFile file(folder_.path("words.safetensors"));
  EXPECT_EQ(file.info("text").shape, (std::vector<std::int64_t>{3, 2}));
  std::vector<std::int64_t> words(6);
  ASSERT_EQ(file.bytes("text").size(), words.size() * sizeof(std::int64_t));
  std::memcpy(words.data(), file.bytes("text").data(), words.size() * sizeof(std::int64_t));
  EXPECT_EQ(words, (std::vector<std::int64_t>{4, 1, 4, 1, 4, 1}));
  std::vector<std::string> train{"train", recipe_, "--set",
                                 "training.dataset_path=" + folder_.path("words.safetensors")};
  train.insert(train.end(), settings.begin(), settings.end());
  const ProgramRun trained = run(train);
  EXPECT_EQ(trained.code, 0) << trained.err;
}

TEST_F(SampleVerb, ARunOnPicturesIsWatched) {
  const std::string each = "training.validation_interval=1";
  expect_error({"train", recipe_, "--set", each},
               HasSubstr("which is pictures without a validation part; training.validation_path"));
  const ProgramRun trained =
      run({"train", recipe_, "--json", "--set", each, "--set", "training.validation_path=" + data_,
           "--set", "training.spike_guard=rollback", "--set", "metrics.cluster=c6"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("\"validation_loss\":"));
  EXPECT_NE(folder_.read("run/run.html"), "");
  const ProgramRun runs = run({"runs", folder_.path("run")});
  EXPECT_EQ(runs.code, 0) << runs.err;
  EXPECT_THAT(runs.out, HasSubstr(" dit "));
  const ProgramRun evaluated = run({"eval", folder_.path("run")});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.out, HasSubstr("over 20 targets of 5 sequences"));
}

TEST_F(SampleVerb, BadInputIsRefused) {
  const std::string file = folder_.path("a.png");
  expect_error({"sample", recipe_}, HasSubstr("file"));
  expect_error({"sample", recipe_, folder_.path("a.jpg")},
               HasSubstr("a name that ends in .png or .safetensors is required"));
  expect_error({"sample", folder_.path("none"), file},
               HasSubstr("neither recipe.toml nor manifest.json"));
  expect_error({"sample", recipe_, file, "--classes", "3"}, HasSubstr("sample: --classes"));
  expect_error({"sample", recipe_, file, "--count", "0"},
               HasSubstr("sample: --count 0; at least 1 is required"));
  expect_error({"sample", recipe_, file, "--steps", "0"}, HasSubstr("in 0 steps"));
  expect_error({"sample", recipe_, file, "--set", "model.channels=2"},
               HasSubstr("pictures of 2 channels; 1 or 3 is required in a .png"));
  expect_error({"sample", recipe_, file, "--guidance", "2", "--guidance-by", "rank"},
               HasSubstr("sample: --guidance-by: 'rank' is not known; batch, passes or ranks is "
                         "required; nearest is 'ranks'"));
  expect_error({"sample", recipe_, file, "--guidance", "nan"},
               HasSubstr("sample: --guidance nan; a finite number is required"));
  expect_error(
      {"sample", recipe_, file, "--guidance-by", "ranks"},
      HasSubstr("sample: --guidance-by ranks with --guidance 1, which has one prediction"));
  expect_error({"sample", recipe_, file, "--guidance", "2", "--guidance-by", "ranks"},
               HasSubstr("sample: --guidance-by ranks with 1 rank along dp; an even number is "
                         "required, half of them for each prediction; nearest: "
                         "parallelism.data_parallel_shard_degree = 2"));
  const std::string gpt = folder_.write("gpt.toml", "[training]\nsteps = 1\n");
  expect_error({"sample", gpt, file}, HasSubstr("model.name gpt; dit"));
  expect_error({"sample", recipe_, file, "--set", "model.words=cross"},
               HasSubstr("model.text_tokens 0, where there are no words"));
  expect_error(
      {"sample", recipe_, file, "--set", "training.seq_len=5"},
      HasSubstr("training.seq_len 5 with pictures of 4 x 4 in patches of 2 and 0 words; 4"));
  expect_error({"sample", recipe_, file, "--set", "parallelism.mask=causal"},
               HasSubstr("whose patches all see each other; full is required"));
}

}  // namespace
}  // namespace armillary::error
