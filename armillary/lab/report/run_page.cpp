// The lines of a page are kept as numbers. Its data are made of all of them each time: a page of
// 4,000 lines is half a megabyte, every few seconds.
#include "armillary/lab/report/run_page.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>

#include "armillary/core/json_text.h"
#include "armillary/lab/report/page.h"

namespace armillary::report {
namespace {

constexpr std::size_t kMostLines = 4000;

/// The number of a key; NaN if there is none.
double number_of(const nlohmann::json& line, const char* key) {
  const auto entry = line.find(key);
  const bool is_there = entry != line.end() && entry->is_number();
  return is_there ? entry->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

double now_since_1970_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string_view to_string(RunState state) {
  constexpr std::array<std::string_view, 4> kNames{"running", "done", "stopped", "failed"};
  return kNames.at(static_cast<std::size_t>(state));
}

RunPage::RunPage(RunFacts facts) : facts_(std::move(facts)) {}

void RunPage::add(const nlohmann::json& line) {
  if (!line.is_object() || !line.contains("step") || !line.at("step").is_number_integer()) return;
  const PageLine read{.step = line.at("step").get<std::int64_t>(),
                      .loss = number_of(line, "loss"),
                      .grad_norm = number_of(line, "grad_norm"),
                      .lr = number_of(line, "lr"),
                      .tps = number_of(line, "tps"),
                      .memory_bytes = number_of(line, "memory_bytes"),
                      .step_s = number_of(line, "step_s"),
                      .exposed_s = number_of(line, "exposed_s"),
                      .ranks = line.value("ranks", static_cast<double>(facts_.ranks))};
  newest_ = read;
  if (line.contains("validation_loss")) {
    validation_.emplace_back(read.step, number_of(line, "validation_loss"));
  }
  if (lines_.size() == kMostLines && added_ % stride_ == 0) thin_out();
  if (added_++ % stride_ == 0) {
    lines_.push_back(read);
  } else if (!(read.loss < lines_.back().loss)) {
    lines_.back() = read;
  }
}

void RunPage::thin_out() {
  for (std::size_t i = 0; 2 * i + 1 < lines_.size(); ++i) {
    const PageLine& first = lines_[2 * i];
    const PageLine& second = lines_[2 * i + 1];
    lines_[i] = first.loss > second.loss ? first : second;
  }
  lines_.resize(lines_.size() / 2);
  stride_ *= 2;
}

void RunPage::note(std::int64_t step, std::string text) {
  notices_.emplace_back(step, std::move(text));
}

nlohmann::ordered_json RunPage::series() const {
  nlohmann::ordered_json series;
  const auto list = [&](const char* key, const auto& number) {
    nlohmann::ordered_json values = nlohmann::ordered_json::array();
    for (const PageLine& line : lines_) values.push_back(number(line));
    if (!lines_.empty() && lines_.back().step != newest_.step) values.push_back(number(newest_));
    series[key] = std::move(values);
  };
  list("step", [](const PageLine& line) { return line.step; });
  list("loss", [](const PageLine& line) { return line.loss; });
  list("grad_norm", [](const PageLine& line) { return line.grad_norm; });
  list("lr", [](const PageLine& line) { return line.lr; });
  list("tokens_per_s", [](const PageLine& line) { return line.ranks * line.tps; });
  list("memory_bytes", [](const PageLine& line) { return line.memory_bytes; });
  list("step_s", [](const PageLine& line) { return line.step_s; });
  list("exposed_s", [](const PageLine& line) { return line.exposed_s; });
  return series;
}

std::string RunPage::html(RunState state, std::string_view reason) const {
  using Json = nlohmann::ordered_json;
  Json validation{{"step", Json::array()}, {"loss", Json::array()}};
  for (const auto& [step, loss] : validation_) {
    validation["step"].push_back(step);
    validation["loss"].push_back(loss);
  }
  Json notices = Json::array();
  for (const auto& [step, text] : notices_) notices.push_back(Json::array({step, text}));
  Json simulated;
  if (facts_.simulated) {
    simulated = {{"cluster", facts_.simulated->cluster},
                 {"step_s", facts_.simulated->step_s},
                 {"exposed_s", facts_.simulated->exposed_s},
                 {"tokens_per_s", facts_.simulated->tokens_per_s}};
  }
  const Json data{{"name", facts_.name},
                  {"model", facts_.model},
                  {"mesh", facts_.mesh},
                  {"ranks", facts_.ranks},
                  {"steps", facts_.steps},
                  {"state", to_string(state)},
                  {"reason", reason},
                  {"written_s", now_since_1970_s()},
                  {"reload_s", state == RunState::Running ? kReloadSeconds : 0},
                  {"simulated", simulated},
                  {"series", series()},
                  {"validation", validation},
                  {"notices", notices}};
  return assembled({.html = run_page_html(),
                    .scripts = run_page_scripts(),
                    .title = facts_.name,
                    .data = json_text(data)});
}

}  // namespace armillary::report
