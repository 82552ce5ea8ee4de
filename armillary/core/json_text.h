// json_text.h: JSON from text and to text. The library's reader and writer are templates that take
// 3 s of the compiler's time each in every unit that calls them with optimisation.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace armillary {

/// Called while a text is read: how deep, 0 for the outermost value; the value that has ended, or
/// the key that has been read. `is_key`, `begins` and `ends` (of an object) say which event it is.
struct JsonEvent {
  int depth = 0;
  bool is_key = false;
  bool begins_object = false;
  bool ends_object = false;
  const nlohmann::ordered_json& value;
};

/// Reads a text. Keeps one of equal keys in an object, which `watch` may refuse by throwing.
/// @throws nlohmann::json::parse_error if it is not JSON, or what `watch` throws.
nlohmann::ordered_json read_json_text(std::string_view text,
                                      const std::function<void(const JsonEvent&)>& watch = {});

/// One line, keys in their order. @throws nlohmann::json::type_error for a string that is not
/// UTF-8.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace armillary
