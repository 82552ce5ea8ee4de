// Every way in which a process can fail ends in give_up(), which keeps the reason, ends the process
// and throws SideRefused. An answer with an error is no failure: the process goes on.
#include "armillary/lab/bench/contender.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace armillary::bench {
namespace {

using Json = nlohmann::ordered_json;

/// Something that a contender wrote, for an error text.
std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 60;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "..";
}

}  // namespace

Contender::Contender(std::string command, double deadline_s,
                     const std::vector<std::string>& environment)
    : command_(std::move(command)), deadline_s_(deadline_s), process_(command_, environment) {
  try {
    get_ready();
  } catch (const SideRefused&) {
    // reason() has the text.
  }
}

/// Reads the first line. All its keys but `sides` are facts.
void Contender::get_ready() {
  facts_ = next_answer();
  if (const auto error = facts_.find("error"); error != facts_.end() && error->is_string()) {
    give_up(error->get<std::string>());
  }
  try {
    sides_ = facts_.at("sides").get<std::vector<std::string>>();
  } catch (const Json::exception&) {
    give_up("its first line has no list of sides");
  }
  facts_.erase("sides");
}

double Contender::run(const std::string& side) {
  if (!reason_.empty()) throw SideRefused(reason_);
  process_.write_line(side);
  // The answer must be for this side: a process that answers twice would be one answer late ever
  // after.
  const Json answer = next_answer();
  if (answer.value("side", Json()) != Json(side)) {
    give_up(fmt::format("answered '{}'; side '{}' is required", shortened(answer.dump()), side));
  }
  // Facts count even if the side is refused.
  if (const auto facts = answer.find("facts"); facts != answer.end() && facts->is_object()) {
    facts_.update(*facts);
  }
  if (const auto error = answer.find("error"); error != answer.end()) {
    throw SideRefused(error->is_string() ? error->get<std::string>() : error->dump());
  }
  const Json value = answer.value("value", Json());
  if (!value.is_number()) {
    give_up(fmt::format("answered '{}'; a number as value is required", shortened(answer.dump())));
  }
  return value.get<double>();
}

/// The next line as an object. Everything else is the end of the contender.
Json Contender::next_answer() {
  std::string line;
  try {
    line = process_.read_line(deadline_s_);
  } catch (const Error& error) {
    give_up(error.what());
  }
  Json answer = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) {
    give_up(fmt::format("answered '{}'; a JSON object is required", shortened(line)));
  }
  return answer;
}

void Contender::give_up(const std::string& reason) {
  reason_ = reason;
  process_.end(std::chrono::milliseconds(0));
  throw SideRefused(reason);
}

Contenders::Contenders(std::span<const std::string> commands, double deadline_s,
                       const std::vector<std::string>& environment) {
  for (const std::string& command : commands) {
    contenders_.emplace_back(command, deadline_s, environment);
  }
}

void Contenders::add_sides(std::vector<Side>& sides) {
  int number = 0;  // of the contender, from 1
  for (Contender& contender : contenders_) {
    ++number;
    for (const std::string& side : contender.sides()) {
      const bool taken = std::any_of(sides.begin(), sides.end(),
                                     [&](const Side& other) { return other.name == side; });
      const std::string name =
          taken && side != kCoresSide ? fmt::format("{} #{}", side, number) : side;
      sides.push_back({name, [&contender, side] { return contender.run(side); }});
    }
  }
}

Json Contenders::json() const {
  Json list = Json::array();
  for (const Contender& contender : contenders_) {
    Json entry{{"command", contender.command()}, {"facts", contender.facts()}};
    if (!contender.reason().empty()) entry["reason"] = contender.reason();
    list.push_back(entry);
  }
  return list;
}

}  // namespace armillary::bench
