// user_text.h: text of users on its way into lines that people read: errors, reports, a terminal.
//
// Such text may be of any length and hold any bytes. A terminal obeys control characters, and JSON
// and Python refuse what is no UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace armillary {

/// Offset of the first byte that is not part of a well-formed UTF-8 sequence (Unicode 15, table
/// 3-7: no overlong forms, no surrogates, nothing above U+10FFFF); nothing if `text` is UTF-8.
std::optional<std::int64_t> first_invalid_utf8(std::string_view text);

/// The text with `\x1b` for each byte of a control character, of U+2028 and U+2029, which end
/// lines, and for each that is not part of UTF-8. Line feeds stay. The result is UTF-8, and `text`
/// itself if it was printable.
std::string printable(std::string_view text);

/// Longest text that excerpt() and quote() show whole: room for paths, keys and values, not for
/// contents of files. Names of files and most paths are shorter.
inline constexpr std::size_t kMostQuotedBytes = 255;

/// The text as errors show it: printable, on one line, and shortened to kMostQuotedBytes.
std::string excerpt(std::string_view text);

/// excerpt() in quotes.
std::string quote(std::string_view text);

/// Text of an exception. Those of the standard library get words of ours: "out of memory" for
/// std::bad_alloc, the path and the system's reason for errors of files.
std::string error_text(const std::exception& error);

/// The text, with its middle left out if it is longer than `most` bytes: `aaa.. (98000 bytes left
/// out) ..zzz`. It is cut between characters of UTF-8.
std::string shorten(std::string_view text, std::size_t most);

}  // namespace armillary
