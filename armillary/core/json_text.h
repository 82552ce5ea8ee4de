// json_text.h: JSON from text and to text. The library's reader and writer are templates that take
// 3 s of the compiler's time each in every unit that calls them with optimisation.
//
// Texts come from files of users. So reading never throws, its words are our own, and a value that
// was read may be walked by recursion, as the library does to print, copy and compare it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace armillary {

/// Deepest nesting that is read; files of this project have less than ten levels.
inline constexpr int kMostJsonDepth = 64;

/// Place and kind of the first fault of a text.
struct JsonFault {
  std::string what;       ///< "is no JSON", "has key 'a' twice in one object"
  std::int64_t byte = 0;  ///< Offset in the text.
};

/// Offset of the first bracket that opens more than `most_depth` levels; nothing if none does.
/// Brackets in strings do not count.
std::optional<std::int64_t> too_deep_json_at(std::string_view text, int most_depth);

/// A text that was read: its value, or its fault.
struct JsonRead {  // NOLINT(bugprone-exception-escape): the library calls its own move unsafe
  nlohmann::ordered_json value;
  std::optional<JsonFault> fault;
};

/// Reads a text. Equal keys in an object are a fault, since readers do not agree on which of them
/// counts; so are numbers that no double holds, and more than `most_depth` levels.
JsonRead read_json_text(std::string_view text, int most_depth = kMostJsonDepth);

/// `is no JSON at byte 12`: a fault behind the name of what was read. `first_byte` is that of the
/// text in its file.
std::string to_string(const JsonFault& fault, std::int64_t first_byte = 0);

/// One line, keys in their order. U+FFFD stands for bytes that are no UTF-8.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace armillary
