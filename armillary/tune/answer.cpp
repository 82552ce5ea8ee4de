// answer.cpp: answers as JSON and back. Numbers keep all their digits, so an answer that was read
// equals the one that was written.
#include "armillary/tune/answer.h"

#include <array>
#include <nlohmann/json.hpp>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/spec.h"

namespace armillary::tune {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 6> kFates{"chosen",    "slower",    "bounded",
                                                 "estimated", "too_large", "wrong"};

Json json_of(const Rival& rival) {
  const Candidate& candidate = rival.candidate;
  Json json{{"strategy", to_string(candidate.strategy)},
            {"layout", to_string(candidate.layout)},
            {"wire", to_string(candidate.wire)},
            {"placement_stride", candidate.placement.stride},
            {"fate", to_string(rival.fate)},
            {"bound_s", rival.bound_s},
            {"estimate_s", rival.estimate_s}};
  if (rival.simulated()) {
    json["time_s"] = rival.times.total_s;
    json["compute_s"] = rival.times.compute_s;
    json["exposed_s"] = rival.times.exposed_s;
  }
  json["sent_bytes"] = rival.sent_bytes;
  json["memory_bytes"] = rival.memory_bytes;
  if (rival.measured_s > 0) json["measured_s"] = rival.measured_s;
  if (!rival.error.empty()) json["error"] = rival.error;
  return json;
}

Rival rival_of(const Json& json) {
  Rival rival;
  rival.candidate.strategy = plan::parse_strategy(json.at("strategy").get<std::string>());
  rival.candidate.layout = plan::parse_layout(json.at("layout").get<std::string>());
  rival.candidate.wire = plan::parse_wire(json.at("wire").get<std::string>());
  rival.candidate.placement.stride = json.at("placement_stride").get<int>();
  rival.fate =
      static_cast<Fate>(parse_choice("answer: fate", json.at("fate").get<std::string>(), kFates));
  rival.bound_s = json.at("bound_s").get<double>();
  rival.estimate_s = json.at("estimate_s").get<double>();
  if (json.contains("time_s")) {
    rival.times = {.total_s = json.at("time_s").get<double>(),
                   .compute_s = json.at("compute_s").get<double>(),
                   .exposed_s = json.at("exposed_s").get<double>()};
  }
  rival.sent_bytes = json.at("sent_bytes").get<std::int64_t>();
  rival.memory_bytes = json.at("memory_bytes").get<std::int64_t>();
  rival.measured_s = json.value("measured_s", 0.0);
  rival.error = json.value("error", "");
  return rival;
}

}  // namespace

std::string_view to_string(Fate fate) {
  return kFates.at(static_cast<std::size_t>(fate));
}

std::string to_json(const Answer& answer) {
  Json json{{"floor_s", answer.floor_s}, {"rivals", Json::array()}};
  for (const Rival& rival : answer.rivals) json["rivals"].push_back(json_of(rival));
  return json.dump();
}

Answer parse_answer(std::string_view text) {
  const JsonRead read = read_json_text(text);
  if (read.fault) {
    fail<InvalidArgument>("answer: the text {}; an answer of the tuner is required",
                          to_string(*read.fault));
  }
  try {
    const Json& json = read.value;
    Answer answer{.rivals = {}, .floor_s = json.at("floor_s").get<double>()};
    for (const Json& rival : json.at("rivals")) answer.rivals.push_back(rival_of(rival));
    if (answer.rivals.empty() || answer.chosen().fate != Fate::Chosen) {
      fail<InvalidArgument>("answer: no chosen candidate given; one is required");
    }
    return answer;
  } catch (const nlohmann::json::exception&) {
    fail<InvalidArgument>(
        "answer: a field is missing or of another type; an answer of the tuner is required");
  }
}

}  // namespace armillary::tune
