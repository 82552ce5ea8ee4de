// json_text.h: JSON from text and to text. The library's reader and writer are templates that take
// 3 s of the compiler's time each in every unit that calls them with optimisation.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace armillary {

/// Reads a text. Keeps one of equal keys in an object; `watch`, the library's own callback, may
/// refuse them by throwing.
/// @throws nlohmann::json::parse_error if it is not JSON, or what `watch` throws.
nlohmann::ordered_json read_json_text(
    std::string_view text, const nlohmann::ordered_json::parser_callback_t& watch = nullptr);

/// One line, keys in their order. @throws nlohmann::json::type_error for a string that is not
/// UTF-8.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace armillary
