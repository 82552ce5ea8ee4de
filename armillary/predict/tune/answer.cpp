// answer.cpp: answers as JSON and back. Numbers keep all their digits, so an answer that was read
// equals the one that was written.
#include "armillary/predict/tune/answer.h"

#include <array>
#include <nlohmann/json.hpp>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/spec.h"

namespace armillary::tune {
namespace {

using Json = nlohmann::ordered_json;

/// In the order of the enum.
constexpr std::array<std::string_view, 6> kOutcomes{"chosen",    "slower",    "bounded",
                                                    "estimated", "too_large", "wrong"};

Json json_of(const Evaluation& evaluation) {
  const Candidate& candidate = evaluation.candidate;
  Json json{{"strategy", to_string(candidate.strategy)},
            {"layout", to_string(candidate.layout)},
            {"wire", to_string(candidate.transfer_dtype)},
            {"placement_stride", candidate.placement.stride},
            {"outcome", to_string(evaluation.outcome)},
            {"bound_s", evaluation.bound_s},
            {"estimate_s", evaluation.estimate_s}};
  // Evaluations that were not simulated have no times: zeros would read as the fastest.
  if (evaluation.simulated()) {
    json["time_s"] = evaluation.times.total_s;
    json["compute_s"] = evaluation.times.compute_s;
    json["exposed_s"] = evaluation.times.exposed_s;
  }
  json["sent_bytes"] = evaluation.sent_bytes;
  json["memory_bytes"] = evaluation.memory_bytes;
  if (evaluation.measured_s > 0) json["measured_s"] = evaluation.measured_s;
  if (!evaluation.error.empty()) json["error"] = evaluation.error;
  return json;
}

Evaluation evaluation_of(const Json& json) {
  Evaluation evaluation;
  evaluation.candidate.strategy = plan::parse_strategy(json.at("strategy").get<std::string>());
  evaluation.candidate.layout = plan::parse_layout(json.at("layout").get<std::string>());
  evaluation.candidate.transfer_dtype =
      plan::parse_transfer_dtype(json.at("wire").get<std::string>());
  evaluation.candidate.placement.stride = json.at("placement_stride").get<int>();
  evaluation.outcome = static_cast<Outcome>(
      parse_choice("answer: outcome", json.at("outcome").get<std::string>(), kOutcomes));
  evaluation.bound_s = json.at("bound_s").get<double>();
  evaluation.estimate_s = json.at("estimate_s").get<double>();
  if (json.contains("time_s")) {
    evaluation.times = {.total_s = json.at("time_s").get<double>(),
                        .compute_s = json.at("compute_s").get<double>(),
                        .exposed_s = json.at("exposed_s").get<double>()};
  }
  evaluation.sent_bytes = json.at("sent_bytes").get<std::int64_t>();
  evaluation.memory_bytes = json.at("memory_bytes").get<std::int64_t>();
  evaluation.measured_s = json.value("measured_s", 0.0);
  evaluation.error = json.value("error", "");
  return evaluation;
}

}  // namespace

std::string_view to_string(Outcome outcome) {
  return kOutcomes.at(static_cast<std::size_t>(outcome));
}

std::string to_json(const Answer& answer) {
  Json json{{"floor_s", answer.floor_s}, {"evaluations", Json::array()}};
  for (const Evaluation& evaluation : answer.evaluations)
    json["evaluations"].push_back(json_of(evaluation));
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
    Answer answer{.evaluations = {}, .floor_s = json.at("floor_s").get<double>()};
    for (const Json& evaluation : json.at("evaluations"))
      answer.evaluations.push_back(evaluation_of(evaluation));
    if (answer.evaluations.empty() || answer.choice().outcome != Outcome::Chosen) {
      fail<InvalidArgument>("answer: no chosen candidate given; one is required");
    }
    return answer;
  } catch (const nlohmann::json::exception&) {
    fail<InvalidArgument>(
        "answer: a field is missing or of another type; an answer of the tuner is required");
  }
}

}  // namespace armillary::tune
