// UTF-8: the first two bytes of a sequence tell its length and whether it is overlong or a
// surrogate, as in table 3-7 of the Unicode standard.
#include "armillary/core/user_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "armillary/core/count_text.h"

namespace armillary {
namespace {

/// Length of the well-formed sequence at `text[i]`; 0 if there is none.
std::size_t sequence_length(std::string_view text, std::size_t i) {
  // Bytes behind the end read as 0, which no sequence continues with.
  const auto byte = [&](std::size_t j) -> unsigned {
    return j < text.size() ? static_cast<unsigned char>(text[j]) : 0U;
  };
  const auto follows = [&](std::size_t j) { return (byte(j) & 0xC0U) == 0x80U; };
  // One to four bytes, by the lead byte; for some lead bytes the second one has a smaller range.
  const unsigned lead = byte(i);
  const unsigned second = byte(i + 1);
  if (lead < 0x80U) return 1;
  if (lead < 0xC2U || lead > 0xF4U || !follows(i + 1)) return 0;  // 0xC0, 0xC1: overlong
  if (lead < 0xE0U) return 2;
  if (!follows(i + 2)) return 0;
  if (lead == 0xE0U && second < 0xA0U) return 0;  // overlong
  if (lead == 0xEDU && second > 0x9FU) return 0;  // surrogate
  if (lead < 0xF0U) return 3;
  if (!follows(i + 3)) return 0;
  if (lead == 0xF0U && second < 0x90U) return 0;  // overlong
  if (lead == 0xF4U && second > 0x8FU) return 0;  // above U+10FFFF
  return 4;
}

/// Whether a sequence is a control character: C0, DEL, or C1, which terminals obey too; or U+2028
/// or U+2029, which end a line.
bool is_control(std::string_view sequence) {
  if (sequence == "\xE2\x80\xA8" || sequence == "\xE2\x80\xA9") return true;
  const auto lead = static_cast<unsigned char>(sequence.front());
  if (sequence.size() == 2) return lead == 0xC2U && static_cast<unsigned char>(sequence[1]) < 0xA0U;
  return lead < 0x20U || lead == 0x7FU;
}

/// Appends all of `text`, escaped.
void append_printable(std::string& out, std::string_view text, bool keep_line_ends) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text, i);
    const std::string_view sequence = text.substr(i, std::max<std::size_t>(length, 1));
    const bool stays =
        length > 0 && (!is_control(sequence) || (keep_line_ends && sequence.front() == '\n'));
    if (stays) {
      out += sequence;
    } else {
      for (const char byte : sequence) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
      }
    }
    i += sequence.size();
  }
}

/// The largest end of at most `most` bytes that is between characters.
std::size_t character_end(std::string_view text, std::size_t most) {
  std::size_t end = std::min(most, text.size());
  // A character has at most three bytes behind its first; more are no UTF-8, and are cut anywhere.
  for (int i = 0; i < 3 && end > 0 && end < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80U) break;
    --end;
  }
  return end;
}

}  // namespace

std::optional<std::int64_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text, i);
    if (length == 0) return static_cast<std::int64_t>(i);
    i += length;
  }
  return std::nullopt;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  append_printable(out, text, /*keep_line_ends=*/true);
  return out;
}

std::string excerpt(std::string_view text) {
  std::string out;
  append_printable(out, shorten(text, kMostQuotedBytes), /*keep_line_ends=*/false);
  return out;
}

std::string quote(std::string_view text) {
  return "'" + excerpt(text) + "'";
}

std::string error_text(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  if (dynamic_cast<const std::length_error*>(&error) != nullptr) {
    return "out of memory: a list that is longer than any memory";
  }
  using FileError = std::filesystem::filesystem_error;
  if (const auto* const of_file = dynamic_cast<const FileError*>(&error)) {
    return fmt::format("{}: {}", excerpt(of_file->path1().string()), of_file->code().message());
  }
  if (const auto* const of_system = dynamic_cast<const std::system_error*>(&error)) {
    return of_system->code().message();
  }
  return error.what();
}

std::string shorten(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  const std::size_t head = character_end(text, most / 3 * 2);
  const std::size_t tail = text.size() - (most - most / 3 * 2);
  const std::size_t begin = std::max(head, character_end(text, tail));
  return fmt::format("{}.. ({} left out) ..{}", text.substr(0, head),
                     count_of(begin - head, "byte"), text.substr(begin));
}

}  // namespace armillary
