#include "armillary/core/json_text.h"

#include <nlohmann/json.hpp>

namespace armillary {

nlohmann::ordered_json read_json_text(std::string_view text,
                                      const std::function<void(const JsonEvent&)>& watch) {
  using Json = nlohmann::ordered_json;
  if (!watch) return Json::parse(text);
  return Json::parse(text, [&](int depth, Json::parse_event_t event, const Json& value) {
    watch({.depth = depth,
           .is_key = event == Json::parse_event_t::key,
           .begins_object = event == Json::parse_event_t::object_start,
           .ends_object = event == Json::parse_event_t::object_end,
           .value = value});
    return true;
  });
}

std::string json_text(const nlohmann::ordered_json& value) {
  return value.dump();
}

}  // namespace armillary
