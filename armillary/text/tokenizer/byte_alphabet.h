// byte_alphabet.h: the letters that byte-level tokenizers write for bytes: `Ġ` for a blank.
//
// Printable bytes of Latin-1 are themselves; the others are U+0100, U+0101, .. in their order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace armillary::tokenizer {

/// The letter of a byte.
std::uint32_t letter_of_byte(unsigned char byte);

/// The bytes of a text of letters; nothing if a code point is no letter. Requires UTF-8.
std::optional<std::string> bytes_of_letters(std::string_view letters);

}  // namespace armillary::tokenizer
