// json_text.cpp: depth is counted on the text, before the library builds a value that it walks by
// recursion; keys that come twice are noticed while it parses, since the value keeps only one.
#include "armillary/core/json_text.h"

#include <fmt/format.h>

#include <set>
#include <utility>
#include <vector>

#include "armillary/core/user_text.h"

namespace armillary {
namespace {

using Json = nlohmann::ordered_json;

/// Offset of the last string of this contents in the text; 0 if it is written in another way.
std::int64_t last_place_of(std::string_view text, const Json& string) {
  const std::size_t count = text.rfind(json_text(string));
  return count == std::string_view::npos ? 0 : static_cast<std::int64_t>(count);
}

}  // namespace

std::optional<std::int64_t> too_deep_json_at(std::string_view text, int most_depth) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > most_depth) return static_cast<std::int64_t>(i);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::nullopt;
}

JsonRead read_json_text(std::string_view text, int most_depth) {
  if (const auto byte = too_deep_json_at(text, most_depth)) {
    return {nullptr, JsonFault{fmt::format("is nested deeper than {}", most_depth), *byte}};
  }
  JsonRead read;
  std::vector<std::set<std::string>> keys;  // Keys seen so far, of each object that is open.
  const auto watch = [&](int /*depth*/, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    const bool doubled =
        event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second;
    if (doubled && !read.fault) {
      read.fault =
          JsonFault{fmt::format("has key {} twice in one object", quote(parsed.get<std::string>())),
                    last_place_of(text, parsed)};
    }
    return true;
  };
  try {
    read.value = Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    read.fault = JsonFault{"is no JSON", static_cast<std::int64_t>(error.byte)};
  } catch (const Json::exception&) {
    read.fault = JsonFault{"has a number that is too large", 0};
  }
  return read;
}

std::string to_string(const JsonFault& fault, std::int64_t first_byte) {
  return fmt::format("{} at byte {}", fault.what, fault.byte + first_byte);
}

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace armillary
