#include "cli/bench/turns_output.h"

#include <fmt/format.h>

#include <cstdio>
#include <istream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/lab/bench/result_json.h"

namespace armillary::cli {

void print_json(const nlohmann::ordered_json& line) {
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

std::string as_text(const nlohmann::ordered_json& line) {
  std::string text;
  for (const auto& [key, value] : line.items()) {
    const std::string shown = value.is_number_float() ? fmt::format("{:.4g}", value.get<double>())
                              : value.is_string()     ? value.get<std::string>()
                                                      : value.dump();
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, shown);
  }
  return text;
}

void serve(const nlohmann::ordered_json& facts, const std::vector<bench::Side>& sides,
           std::istream& in) {
  nlohmann::ordered_json ready = facts;
  std::vector<std::string> names;
  names.reserve(sides.size());
  for (const bench::Side& side : sides) names.push_back(side.name);
  const std::vector<std::string_view> choices(names.begin(), names.end());
  ready["sides"] = names;
  print_json(ready);
  std::fflush(stdout);  // The other program waits for this line, and for every answer.
  for (std::string name; std::getline(in, name);) {
    const std::size_t side = parse_choice("side", name, choices);
    print_json({{"side", name}, {"value", sides[side].run()}});
    std::fflush(stdout);
  }
}

void print_turns(const bench::TurnSummary& turns, const bench::Contenders& others, bool json) {
  if (json) return print_json(turns_json(turns, others));
  for (const std::string& line : turns_text(turns, others)) fmt::print("{}\n", line);
}

void print_left_out(const bench::TurnSummary& turns, bool json) {
  const std::string text = json ? "" : left_out_text(turns);
  if (!text.empty()) fmt::print("{}\n", text);
}

}  // namespace armillary::cli
