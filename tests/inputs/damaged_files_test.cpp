// damaged_files_test.cpp: small valid files of every kind that is read, with thousands of changes
// of bytes. Each text is either refused with an error of ours, in words of ours, or read; memory
// stays small and every reading is short.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/host/recorder/diagnosis.h"
#include "armillary/host/recorder/reader.h"
#include "armillary/host/recorder/recorder.h"
#include "armillary/host/recorder/trace.h"
#include "armillary/io/gguf.h"
#include "armillary/io/safetensors.h"
#include "armillary/io/testing/gguf_bytes.h"
#include "armillary/lab/validate/row.h"
#include "armillary/model/registry.h"
#include "armillary/plan/json.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/verify/verify.h"
#include "armillary/predict/sim/cluster.h"
#include "armillary/predict/tune/answer.h"
#include "armillary/proof/proof_file.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/gguf_model.h"
#include "armillary/train/checkpoint/hf_config.h"
#include "armillary/train/checkpoint/model_config.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/testing/picture_file.h"
#include "armillary/train/testing/small_checkpoint.h"

namespace armillary {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeaderBytes = 176;  // of a flight file
constexpr double kMostSeconds = 10;        // of the CPU, for one text
constexpr std::int64_t kMostGrowthKib = std::int64_t{200} * 1024;

/// Changes one to four places of a text: a byte, a bit, a digit, a part that is cut out, doubled or
/// put elsewhere. Numbers of files grow by digits.
class Changes {
 public:
  explicit Changes(unsigned seed) : random_(seed) {}

  std::string changed(std::string text) {
    for (std::size_t left = 1 + below(4); left > 0 && !text.empty(); --left) {
      const std::size_t at = below(text.size());
      const std::size_t length = std::min(1 + below(12), text.size() - at);
      const std::string part = text.substr(at, length);
      switch (below(7)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          break;
        case 2:
          change_number(text);
          break;
        case 3:
          text.erase(at, length);
          break;
        case 4:
          text.insert(at, part);
          break;
        case 5:
          text.insert(below(text.size()), part);
          break;
        default:
          text.insert(at, length, "[{\"9-\\"[below(6)]);
      }
    }
    return text;
  }

  /// The same size, as a file that is mapped: only bytes of the first `most` are changed.
  std::string with_other_bytes(std::string text, std::size_t most) {
    for (std::size_t left = 1 + below(4); left > 0; --left) {
      text[below(std::min(most, text.size()))] = static_cast<char>(below(256));
    }
    return text;
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }

  void change_number(std::string& text) {
    const std::size_t at = text.find_first_of("0123456789", below(text.size()));
    if (at == std::string::npos) return;
    constexpr std::string_view kNumbers[] = {"-1",         "0",    "99999",
                                             "2147483648", "1e99", "9223372036854775807"};
    text.replace(at, 1, kNumbers[below(std::size(kNumbers))]);
  }

  std::mt19937 random_;
};

double cpu_s() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::int64_t peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

/// Whether a text of an error has only words of ours, on a line that a terminal may be given.
bool is_ours(const std::string& text) {
  for (const char* foreign : {"json.exception", "std::", "basic_string", "vector::", "map::at",
                              "filesystem error", "stoi", "invariant broken"}) {
    if (text.find(foreign) != std::string::npos) return false;
  }
  return text.size() < 4000 && !first_invalid_utf8(text);
}

class DamagedFiles : public testing::Test {
 protected:
  DamagedFiles() {
    folder_ = fs::temp_directory_path() / fmt::format("armillary_damaged_{}", getpid());
    fs::create_directories(folder_);
    alarm(600);
  }
  ~DamagedFiles() override {
    alarm(0);
    fs::remove_all(folder_);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  static std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }

  /// Reads `count` changed texts, and the whole one first. Returns how many were refused.
  static int read_changed(const std::string& whole, int count,
                          const std::function<void(const std::string&)>& read,
                          std::size_t same_size = 0) {
    EXPECT_NO_THROW(read(whole));
    Changes changes(20260729);
    const std::int64_t before = peak_kib();
    int refused = 0;
    for (int i = 0; i < count; ++i) {
      const std::string text =
          same_size == 0 ? changes.changed(whole) : changes.with_other_bytes(whole, same_size);
      const double begin = cpu_s();
      std::string error;
      try {
        read(text);
      } catch (const Error& known) {
        ++refused;
        error = known.what();
      } catch (const std::exception& foreign) {
        ADD_FAILURE() << "change " << i << ": " << foreign.what();
      }
      EXPECT_TRUE(is_ours(error)) << "change " << i << ": " << shorten(printable(error), 500);
      EXPECT_LT(cpu_s() - begin, kMostSeconds) << "change " << i;
      EXPECT_LT(peak_kib() - before, kMostGrowthKib) << "change " << i;
      if (HasFailure()) return refused;
    }
    return refused;
  }

 private:
  fs::path folder_;
};

const plan::Problem kProblem{.world = 3,
                             .batch = 1,
                             .heads = 3,
                             .kv_heads = 3,
                             .head_dim = 4,
                             .value_dim = 4,
                             .dtype = plan::Dtype::F32,
                             .mask = plan::causal_mask({12, 12}, plan::Align::Start)};

TEST_F(DamagedFiles, Plans) {
  const std::string whole =
      plan::to_json(plan::make_plan(kProblem, plan::parse_strategy("ring"), plan::Pass::Backward));
  EXPECT_GT(read_changed(whole, 2000,
                         [](const std::string& text) { plan::verify(plan::parse_json(text), 1); }),
            1000);
}

TEST_F(DamagedFiles, Proofs) {
  const plan::Strategy ring = plan::parse_strategy("ring");
  const std::string file = proof::save_proof(path("proofs"), kProblem, ring);
  const auto right = proof::load_proof(path("proofs"), kProblem, ring);
  // A proof that was changed by a byte is refused, or holds what it held.
  EXPECT_GT(read_changed(contents(file), 700,
                         [&](const std::string& text) {
                           write(file, text);
                           EXPECT_EQ(proof::load_proof(path("proofs"), kProblem, ring), right);
                         }),
            650);
}

TEST_F(DamagedFiles, FlightFiles) {
  const std::string run = path("run");
  for (const int rank : {0, 1, 2}) {
    recorder::Recorder recorder(run, {.world = 3, .rank = rank, .program = "test"});
    const std::uint8_t words = recorder.words(plan::attention_words());
    recorder.begin_step(7);
    recorder.set_activity({.name = "all_reduce of gradients", .bytes = 96, .collective = true});
    recorder.begin_call("ring", words, static_cast<int>(plan::Pass::Backward));
    for (int op = 0; op < 20; ++op) {
      recorder.finish(
          recorder.start({.kind = plan::OpKind::Send, .index = op, .peer = (rank + 1) % 3}));
    }
    recorder.start({.kind = plan::OpKind::Recv, .index = 20, .peer = (rank + 2) % 3, .bytes = 96});
    recorder.wait(recorder::Wait::Messages);
  }
  const std::string file = recorder::flight_path(run, 1);
  const auto explain = [&](const std::string& bytes) {
    write(file, bytes);
    const recorder::RecordedRun read = recorder::read_run(run);
    EXPECT_EQ(read.flights.size(), 3U) << "ranks that nobody wrote";
    EXPECT_LT(recorder::diagnose(read).cause.size(), 4000U);
    EXPECT_LT(recorder::to_trace(read).size(), 100'000U);
  };
  // Each change of the header is noticed.
  const std::string whole = contents(file);
  EXPECT_GT(read_changed(whole, 800, explain, kHeaderBytes), 780) << "a byte may stay the same";
  EXPECT_GT(read_changed(whole, 800, explain, kHeaderBytes + 4000), 100);
}

TEST_F(DamagedFiles, Checkpoints) {
  fs::create_directories(path("checkpoints"));
  train::save_small(io::real_file_system(), path("checkpoints"), 6, 2);
  const std::string folder = path("checkpoints") + "/step-000006";
  const auto read = [&] { EXPECT_TRUE(train::holds_its_state(train::Checkpoint(folder))); };
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().string();
    const std::string whole = contents(file);
    EXPECT_GT(read_changed(whole, 400,
                           [&](const std::string& bytes) {
                             write(file, bytes);
                             read();
                           }),
              380)
        << file;
    write(file, whole);
  }
}

TEST_F(DamagedFiles, Safetensors) {
  const std::vector<float> values(12, 1);
  io::write_safetensors(
      io::real_file_system(), path("a"),
      {{{"weight", io::TensorDtype::F32, {3, 4}}, std::as_bytes(std::span(values))}},
      {{"format", "pt"}});
  read_changed(contents(path("a")), 1200, [&](const std::string& bytes) {
    write(path("b"), bytes);
    const io::SafetensorsFile file(path("b"));
    for (const io::TensorInfo& tensor : file.tensors()) {
      EXPECT_EQ(static_cast<std::int64_t>(file.bytes(tensor.name).size()), tensor.bytes());
    }
  });
}

TEST_F(DamagedFiles, Pictures) {
  const train::PictureOptions options = train::picture_options(train::small_text_dit_recipe());
  train::write_pictures(path("a"), options.shape, 3, options.n_classes);
  const auto read = [&](const std::string& bytes) {
    write(path("b"), bytes);
    const train::PictureData data(path("b"), options);
    for (std::int64_t index = 0; index < 4; ++index) data.at(index);
  };
  EXPECT_GT(read_changed(contents(path("a")), 1200, read), 300);
}

/// A file with metadata and blocks, as llama.cpp writes them.
TEST_F(DamagedFiles, GgufFiles) {
  io::GgufBytes file;
  file.add_text("general.architecture", "llama");
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::uint32_t>>{{"block_count", 1},
                                                          {"embedding_length", 32},
                                                          {"feed_forward_length", 32},
                                                          {"attention.head_count", 2}}) {
    file.add_number("llama." + key, value);
  }
  file.add_float("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  file.add_tensor("token_embd.weight", {4, 32}, static_cast<std::uint32_t>(io::GgufType::Q8_0),
                  std::string(std::size_t{4} * 34, '\1'));
  const auto read = [&](const std::string& bytes) {
    write(path("m.gguf"), bytes);
    const io::GgufFile opened(path("m.gguf"));
    for (const io::GgufTensor& tensor : opened.tensors()) {
      const std::int64_t count = model::count_of_values(tensor.shape);
      std::vector<float> values(static_cast<std::size_t>(count));
      opened.read(tensor.name, 0, values);
    }
    train::read_gguf_model(opened);
  };
  EXPECT_GT(read_changed(file.bytes(), 2000, read), 500);
  EXPECT_GT(read_changed(file.bytes(), 2000, read, file.bytes().size() - file.data.size()), 500);
}

TEST_F(DamagedFiles, ConfigsOfModels) {
  model::ModelOptions model = model::default_options("llama");
  model.rope_scaling = "yarn:factor=4,original=64,beta_fast=16";
  for (const char* window : {"0", "9"}) {
    model.sliding_window = window[0] - '0';
    const std::string whole = train::hf_config(model, 64).dump();
    EXPECT_GT(read_changed(whole, 2000,
                           [](const std::string& text) {
                             const JsonRead read = read_json_text(text);
                             if (read.fault || !read.value.is_object()) {
                               fail<IoError>("config: {}",
                                             read.fault ? to_string(*read.fault) : "");
                             }
                             train::read_model_config("config.json", read.value);
                           }),
              500);
  }
}

TEST_F(DamagedFiles, Clusters) {
  const std::string whole = sim::to_toml(sim::load_cluster("c6"));
  EXPECT_GT(read_changed(whole, 1500,
                         [](const std::string& text) { sim::parse_cluster(text, "my.toml"); }),
            500);
}

TEST_F(DamagedFiles, Recipes) {
  const std::string whole = train::print_recipe({});
  EXPECT_GT(read_changed(whole, 1500,
                         [](const std::string& text) { train::parse_recipe(text, "my.toml"); }),
            300);
}

TEST_F(DamagedFiles, Rows) {
  std::string cells;
  for (const std::string& name : validate::columns()) {
    const std::string cell = name == "id" ? "\"a\"" : name == "mask" ? "\"full\"" : "null";
    cells += fmt::format("{}\"{}\": {}", cells.empty() ? "" : ", ", name, cell);
  }
  const std::string whole = "{\"source\": \"s\", \"rows\": [{" + cells + "}]}";
  EXPECT_GT(read_changed(whole, 2000,
                         [](const std::string& text) { validate::parse_rows(text, "my.json"); }),
            500);
}

TEST_F(DamagedFiles, AnswersOfTheTuner) {
  tune::Answer answer{.evaluations = {{.outcome = tune::Outcome::Chosen, .times = {.total_s = 1}}},
                      .floor_s = 1};
  answer.evaluations[0].candidate.strategy = plan::parse_strategy("usp:u=2");
  EXPECT_GT(read_changed(tune::to_json(answer), 2000,
                         [](const std::string& text) { tune::parse_answer(text); }),
            500);
}

// Depth and length that no file has are refused before they are walked by recursion.
TEST_F(DamagedFiles, DepthAndLengthAreBounded) {
  const std::string deep(1'000'000, '[');
  std::string dotted = "a";
  for (int i = 0; i < 200'000; ++i) dotted += ".a";
  const std::string long_key(200'000, 'k');
  const auto refusal = [](const std::function<void()>& read) -> std::string {
    try {
      read();
    } catch (const Error& error) {
      EXPECT_TRUE(is_ours(error.what())) << shorten(error.what(), 500);
      return error.what();
    }
    return "none";
  };
  for (const std::string& text : std::vector<std::string>{
           "a = " + deep, dotted + " = 1", "[" + dotted + "]", long_key + " = 1",
           "[" + long_key + "]\nb = 1", "a = \"" + long_key, "a = '\xff'"}) {
    EXPECT_NE(refusal([&] { sim::parse_cluster(text, "my.toml"); }), "none") << text.substr(0, 20);
    EXPECT_NE(refusal([&] { train::parse_recipe(text, "my.toml"); }), "none") << text.substr(0, 20);
  }
  for (const std::string& text :
       {deep, "{\"" + long_key + "\":1}", "{\"rows\":[{\"" + long_key + "\":1}]}"}) {
    EXPECT_NE(refusal([&] { plan::parse_json(text); }), "none") << text.substr(0, 20);
    EXPECT_NE(refusal([&] { tune::parse_answer(text); }), "none") << text.substr(0, 20);
    EXPECT_NE(refusal([&] { validate::parse_rows(text, "my.json"); }), "none")
        << text.substr(0, 20);
  }
  train::Recipe recipe;
  for (const std::string& setting :
       {long_key, "a." + long_key + "=1", long_key + ".b=1", "training.steps=" + long_key,
        "model.name=" + long_key, "training.steps={" + dotted + "=1}"}) {
    EXPECT_NE(refusal([&] { apply_setting(recipe, setting); }), "none") << setting.substr(0, 20);
  }
}

}  // namespace
}  // namespace armillary
