#include "armillary/core/json_text.h"

namespace armillary {

nlohmann::ordered_json read_json_text(std::string_view text,
                                      const nlohmann::ordered_json::parser_callback_t& watch) {
  return nlohmann::ordered_json::parse(text, watch);
}

std::string json_text(const nlohmann::ordered_json& value) {
  return value.dump();
}

}  // namespace armillary
