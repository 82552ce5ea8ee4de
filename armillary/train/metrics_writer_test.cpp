// metrics_writer_test.cpp: the printed line and the JSON of a step, and the files of a run that
// begins, goes on, or was cut off.
#include "armillary/train/metrics_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace armillary::train {
namespace {

constexpr StepMetrics kMetrics = {.step = 3,
                                  .loss = 5.54517744,
                                  .grad_norm = 1.23456,
                                  .lr = 0.00079999,
                                  .memory_bytes = 547608330,
                                  .tps = 1234567.4,
                                  .tflops = 0.125,
                                  .exposed_s = 0.25,
                                  .mfu = 31.2,
                                  .step_s = 0.5};

TEST(ConsoleLine, IsTorchtitans) {
  EXPECT_EQ(console_line(kMetrics),
            "step:  3  loss:  5.5452  grad_norm:  1.2346  lr: 8.00e-04  memory:  0.51GiB  "
            "tps: 1,234,567  tflops: 0.125  mfu: 31.20%");
  StepMetrics unknown = kMetrics;
  unknown.tps = 12;
  unknown.mfu.reset();
  EXPECT_EQ(console_line(unknown),
            "step:  3  loss:  5.5452  grad_norm:  1.2346  lr: 8.00e-04  memory:  0.51GiB  "
            "tps: 12  tflops: 0.125  mfu: -");
  unknown.validation_loss = 4.25;
  EXPECT_THAT(console_line(unknown), testing::EndsWith("mfu: -  validation_loss:  4.2500"));
}

TEST(MetricsJson, KeepsAllDigits) {
  StepMetrics metrics = kMetrics;
  metrics.loss = 0.1 + 0.2;
  metrics.mfu.reset();
  const nlohmann::json json = nlohmann::json::parse(to_json(metrics).dump());
  EXPECT_EQ(json.at("loss").get<double>(), 0.1 + 0.2);
  EXPECT_EQ(json.at("lr").get<double>(), 0.00079999);
  EXPECT_EQ(json.at("step"), 3);
  EXPECT_EQ(json.at("memory_bytes"), 547608330);
  EXPECT_TRUE(json.at("mfu").is_null());
  EXPECT_EQ(json.at("exposed_s"), 0.25);
  EXPECT_EQ(json.at("step_s"), 0.5);
  EXPECT_EQ(json.at("ranks"), 1);
  EXPECT_EQ(json.size(), 11U);
  metrics.validation_loss = 2.25;
  EXPECT_EQ(to_json(metrics).at("validation_loss"), 2.25);
}

TEST(ProgressBar, Grows) {
  EXPECT_EQ(progress_bar(0, 20, 61.2, 10), "[>         ] 0/20  1:01 left");
  EXPECT_EQ(progress_bar(10, 20, 9, 10), "[=====>    ] 10/20  0:09 left");
  EXPECT_EQ(progress_bar(20, 20, 0, 10), "[==========] 20/20  0:00 left");
}

TEST(MetricsWriter, WritesTheRunFolder) {
  const auto folder = std::filesystem::temp_directory_path() / "armillary_reporter_test";
  std::filesystem::remove_all(folder);
  const std::string run = (folder / "run").string();
  {
    MetricsWriter metrics_writer({.folder = run, .recipe = "[job]\n", .steps = 100, .log_freq = 2});
    StepMetrics metrics = kMetrics;
    testing::internal::CaptureStdout();
    for (metrics.step = 1; metrics.step <= 4; ++metrics.step) metrics_writer.write(metrics);
    const std::string printed = testing::internal::GetCapturedStdout();
    EXPECT_EQ(printed.substr(0, 9), "step:  1 ");
  }
  std::ifstream recipe(folder / "run/recipe.toml");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(recipe), {}), "[job]\n");
  std::ifstream lines(folder / "run/metrics.jsonl");
  std::vector<int> steps;
  for (std::string line; std::getline(lines, line);) {
    steps.push_back(nlohmann::json::parse(line).at("step"));
  }
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 4}));
  std::filesystem::remove_all(folder);
}

// Steps 1 to 4, and, as a run that resumes behind step 2, 3 to 4 again.
TEST(MetricsWriter, TellsItsLinesAndWritesEventFiles) {
  const auto folder = std::filesystem::temp_directory_path() / "armillary_reporter_lines_test";
  std::filesystem::remove_all(folder);
  std::vector<std::int64_t> told;
  const auto write_steps = [&](std::int64_t before) {
    told.clear();
    MetricsWriter metrics_writer(
        {.folder = folder.string(),
         .steps = 4,
         .log_freq = 10,
         .steps_before = before,
         .event_folder = "tensorboard",
         .on_line = [&](const nlohmann::json& line) { told.push_back(line.at("step")); }});
    StepMetrics metrics = kMetrics;
    testing::internal::CaptureStdout();
    for (metrics.step = before + 1; metrics.step <= 4; ++metrics.step) {
      metrics.validation_loss.reset();
      if (metrics.step % 2 == 0) metrics.validation_loss = 2;
      metrics_writer.write(metrics);
    }
    testing::internal::GetCapturedStdout();
  };
  write_steps(0);
  EXPECT_EQ(told, (std::vector<std::int64_t>{1, 2, 4})) << "steps with validation have a line";
  write_steps(2);
  EXPECT_EQ(told, (std::vector<std::int64_t>{1, 2, 4})) << "kept ones first";
  const std::filesystem::directory_iterator events(folder / "tensorboard");
  EXPECT_EQ(std::distance(events, std::filesystem::directory_iterator()), 2);
  std::filesystem::remove_all(folder);
}

TEST(MetricsWriter, WritesTheFirstAndTheLastStepWhateverTheFrequency) {
  const auto folder = std::filesystem::temp_directory_path() / "armillary_reporter_last_test";
  {
    MetricsWriter metrics_writer(
        {.folder = folder.string(), .steps = 7, .log_freq = 3, .json = true});
    StepMetrics metrics = kMetrics;
    testing::internal::CaptureStdout();
    for (metrics.step = 1; metrics.step <= 7; ++metrics.step) metrics_writer.write(metrics);
    testing::internal::GetCapturedStdout();
  }
  std::ifstream lines(folder / "metrics.jsonl");
  std::vector<int> steps;
  for (std::string line; std::getline(lines, line);) {
    steps.push_back(nlohmann::json::parse(line).at("step"));
  }
  EXPECT_EQ(steps, (std::vector<int>{1, 3, 6, 7}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace armillary::train
