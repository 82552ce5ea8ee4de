// run_page_test.cpp: the data of a page of a run: its lines, those that long runs keep, and texts
// that would end its elements. tests/report looks at it in a browser.
#include "armillary/lab/report/run_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace armillary::report {
namespace {

using testing::HasSubstr;

nlohmann::json line_of(std::int64_t step, double loss) {
  return {{"step", step}, {"loss", loss},  {"grad_norm", 1.5},   {"lr", 1e-3},
          {"tps", 100.0}, {"step_s", 0.5}, {"exposed_s", 0.125}, {"memory_bytes", 1 << 20}};
}

nlohmann::json data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
}

TEST(RunPage, HasTheLinesOfItsRun) {
  RunPage page({.name = "mine",
                .model = "gpt",
                .mesh = "dp 2",
                .ranks = 2,
                .steps = 10,
                .simulated = SimulatedStep{.cluster = "c6", .step_s = 0.25}});
  page.add(line_of(1, 5));
  page.note(1, "rollback");
  nlohmann::json second = line_of(2, 4);
  second["validation_loss"] = 4.5;
  second.erase("exposed_s");
  page.add(second);
  page.add({{"notice", "no step"}});
  const nlohmann::json data = data_of(page.html(RunState::Running));
  EXPECT_EQ(data["series"]["step"], nlohmann::json::parse("[1, 2]"));
  EXPECT_EQ(data["series"]["loss"], nlohmann::json::parse("[5.0, 4.0]"));
  EXPECT_EQ(data["series"]["tokens_per_s"][0], 200.0) << "of both ranks";
  EXPECT_TRUE(data["series"]["exposed_s"][1].is_null());
  EXPECT_EQ(data["validation"], nlohmann::json::parse(R"({"step": [2], "loss": [4.5]})"));
  EXPECT_EQ(data["notices"], nlohmann::json::parse(R"([[1, "rollback"]])"));
  EXPECT_EQ(data["simulated"]["step_s"], 0.25);
  EXPECT_EQ(data["state"], "running");
  EXPECT_EQ(data["reload_s"], kReloadSeconds);
}

TEST(RunPage, OfARunThatIsOverDoesNotLoadAgain) {
  const RunPage page({.name = "mine"});
  const nlohmann::json data = data_of(page.html(RunState::Failed, "loss nan"));
  EXPECT_EQ(data["reload_s"], 0.0);
  EXPECT_EQ(data["state"], "failed");
  EXPECT_EQ(data["reason"], "loss nan");
  EXPECT_TRUE(data["simulated"].is_null());
  EXPECT_TRUE(data["series"]["loss"].empty());
}

TEST(RunPage, KeepsTheSpikesOfALongRun) {
  RunPage page({.name = "long", .steps = 50000});
  constexpr std::int64_t kSpike = 23457;
  for (std::int64_t step = 1; step <= 50000; ++step) {
    page.add(line_of(step, step == kSpike ? 9 : 3 - 1e-5 * static_cast<double>(step)));
  }
  const nlohmann::json series = data_of(page.html(RunState::Done))["series"];
  const std::size_t size = series["step"].size();
  EXPECT_LE(size, 4001U);
  EXPECT_GE(size, 2000U);
  EXPECT_EQ(series["loss"].size(), size);
  std::int64_t before = 0;
  bool has_spike = false;
  for (std::size_t i = 0; i < size; ++i) {
    EXPECT_GT(series["step"][i].get<std::int64_t>(), before);
    before = series["step"][i];
    has_spike = has_spike || (before == kSpike && series["loss"][i] == 9.0);
  }
  EXPECT_TRUE(has_spike);
  EXPECT_EQ(before, 50000) << "the newest line is the last";
}

TEST(RunPage, TextsOfUsersEndNothing) {
  RunPage page({.name = "</title><script>/* data */", .model = "</script>"});
  page.note(0, "<!-- title --> /* scripts */");
  const std::string html = page.html(RunState::Done);
  EXPECT_THAT(html, HasSubstr("<title>&lt;/title>&lt;script>/* data */</title>"));
  const nlohmann::json data = data_of(html);
  EXPECT_EQ(data["model"], "</script>");
  EXPECT_EQ(data["notices"][0][1], "<!-- title --> /* scripts */");
}

}  // namespace
}  // namespace armillary::report
